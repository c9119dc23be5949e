package openclaw

import (
	"context"
	"net"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
)

// firstBytes remembers how the last server of a plain-text connection began to speak: when that was no HTTP/2, gRPC
// says only that a frame makes no sense.
type firstBytes struct {
	mutex sync.Mutex
	bytes []byte
}

func (f *firstBytes) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	f.set(nil)
	return &overheard{Conn: conn, to: f}, nil
}

func (f *firstBytes) set(bytes []byte) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.bytes = bytes
}

// advise says what the server speaks, if that is why the connection failed.
func (f *firstBytes) advise(e *Error) {
	if e.Code != codes.Unavailable {
		return
	}
	f.mutex.Lock()
	defer f.mutex.Unlock()
	switch begin := string(f.bytes); {
	case strings.HasPrefix(begin, "HTTP/") || strings.HasPrefix(begin, "<"):
		e.Advice = speaksHTTP1
	case strings.HasPrefix(begin, "\x15\x03"): // a TLS alert
		e.Advice = speaksTLS
	}
}

// overheard is a connection whose first bytes are kept.
type overheard struct {
	net.Conn
	to   *firstBytes
	once sync.Once
}

func (o *overheard) Read(buffer []byte) (int, error) {
	n, err := o.Conn.Read(buffer)
	if n > 0 {
		o.once.Do(func() { o.to.set([]byte(string(buffer[:min(n, 8)]))) })
	}
	return n, err
}
