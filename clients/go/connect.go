package openclaw

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
)

// systemCAs stands for the CAs of the operating system; no file has this name.
const systemCAs = "\x00system"

// ServerName is the name in a component's certificate of the mesh's own making; "" stands for any component.
func ServerName(role string) string {
	if role == "" {
		role = "component"
	}
	return role + ".openclaw-rl.internal"
}

// connect makes the connection, which is opened with the first call.
func connect(o *options) (*grpc.ClientConn, error) {
	if err := checkAddress(o.address); err != nil {
		return nil, badOption(o, fmt.Errorf("WithAddress: %w", err))
	}
	transport, err := transportCredentials(o)
	if err != nil {
		return nil, badOption(o, err)
	}
	dial := []grpc.DialOption{
		transport,
		grpc.WithNoProxy(), // a proxy of the environment is not meant for a mesh
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 20 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 5 * time.Second, Backoff: backoff.Config{
			BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second}}),
		grpc.WithChainUnaryInterceptor(unaryErrors(o)),
		grpc.WithChainStreamInterceptor(streamErrors(o)),
	}
	if o.key != "" {
		if strings.ContainsFunc(o.key, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, badOption(o, errors.New("WithKey: the key has a character that no key has, such as a space or a line's end: cut it off"))
		}
		dial = append(dial, grpc.WithPerRPCCredentials(bearer{o.key, o.ca != "" || o.certs != ""}))
	}
	conn, err := grpc.NewClient("passthrough:///"+o.address, append(dial, o.dial...)...)
	if err != nil {
		return nil, badOption(o, err)
	}
	return conn, nil
}

// checkAddress says what is wrong with an address that can't be one.
func checkAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if number, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || number == 0 || strings.Contains(host, "/") {
		return fmt.Errorf("%q is no address: it has to be HOST:PORT, such as 127.0.0.1:50051", address)
	}
	return nil
}

func badOption(o *options, err error) *Error {
	return &Error{Code: codes.InvalidArgument, Reason: "INVALID_ARGUMENT", Message: err.Error(), Address: o.address,
		cause: err}
}

func transportCredentials(o *options) (grpc.DialOption, error) {
	if o.certs != "" {
		config, err := MutualTLS(o.certs, o.certRole)
		if err != nil {
			return nil, err
		}
		config.ServerName = ServerName(o.role)
		if o.serverName != "" {
			config.ServerName = o.serverName
		}
		return grpc.WithTransportCredentials(credentials.NewTLS(config)), nil
	}
	if o.ca != "" {
		config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.serverName}
		if o.ca != systemCAs {
			pool, err := readCA(o.ca)
			if err != nil {
				return nil, err
			}
			config.RootCAs = pool
		}
		return grpc.WithTransportCredentials(credentials.NewTLS(config)), nil
	}
	if o.key != "" && !loopback(o.address) {
		return nil, fmt.Errorf("WithKey: the key would go to %s in plain text; add WithCA with the mesh's ca.crt", o.address)
	}
	o.dial = append([]grpc.DialOption{grpc.WithContextDialer(o.first.dial)}, o.dial...)
	return grpc.WithTransportCredentials(insecure.NewCredentials()), nil
}

// MutualTLS reads ca.crt, ROLE.crt and ROLE.key of a folder: a configuration for clients, to which the server's name is
// to be added. The certificate is read again for each connection, so that a renewed one is used without a restart.
func MutualTLS(folder, role string) (*tls.Config, error) {
	pool, err := readCA(filepath.Join(folder, "ca.crt"))
	if err != nil {
		return nil, err
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(filepath.Join(folder, role+".crt"), filepath.Join(folder, role+".key"))
		if err != nil {
			return nil, fmt.Errorf("certificate of %s in %s: %w", role, folder, err)
		}
		return &pair, nil
	}
	if _, err := load(); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }}, nil
}

func readCA(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("the CA's certificate: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: no certificate in it", file)
	}
	return pool, nil
}

func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// bearer sends the key with each call.
type bearer struct {
	key    string
	secure bool
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.key}, nil
}

func (b bearer) RequireTransportSecurity() bool { return b.secure }

func unaryErrors(o *options) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		if _, has := ctx.Deadline(); !has && o.timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, o.timeout)
			defer cancel()
		}
		var headers metadata.MD
		err := invoke(o.identified(ctx), method, req, reply, cc, append(opts, grpc.Header(&headers))...)
		if err == nil {
			err = o.confirm(headers, method)
		}
		return o.convert(err, method)
	}
}

func streamErrors(o *options) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer,
		opts ...grpc.CallOption) (grpc.ClientStream, error) {
		ctx, cancel := context.WithCancel(ctx)
		stream, err := streamer(o.identified(ctx), desc, cc, method, opts...)
		if err != nil {
			cancel()
			return nil, o.convert(err, method)
		}
		return &errorStream{ClientStream: stream, options: o, method: method, bidi: desc.ClientStreams, cancel: cancel}, nil
	}
}

// convert makes the *Error of a call; nil and io.EOF pass.
func (o *options) convert(err error, method string) error {
	err = convert(err, o.address, method)
	if e, ok := err.(*Error); ok {
		o.first.advise(e)
		if o.ca != "" && (e.Advice == broke || e.Advice == closedAtOnce) { // we spoke TLS, without a certificate
			e.Advice = wantsCertificate
		}
	}
	return err
}

// errorStream gives a stream's errors as *Error, and takes none of another mesh.
type errorStream struct {
	grpc.ClientStream
	options *options
	method  string
	bidi    bool // headers come before the first message is sent
	cancel  context.CancelFunc
	once    sync.Once
	wrong   error // what answers is of another mesh
}

func (s *errorStream) SendMsg(m any) error {
	if s.bidi {
		if err := s.confirm(); err != nil {
			return err
		}
	}
	return s.options.convert(s.ClientStream.SendMsg(m), s.method)
}

func (s *errorStream) RecvMsg(m any) error {
	if err := s.confirm(); err != nil {
		return err
	}
	err := s.options.convert(s.ClientStream.RecvMsg(m), s.method)
	if err != nil {
		s.cancel()
	}
	return err
}

// confirm waits for the headers, where a mesh is named; how a call ended that has none is left to its reader.
func (s *errorStream) confirm() error {
	if s.options.mesh == "" {
		return nil
	}
	s.once.Do(func() {
		headers, err := s.Header()
		if err != nil {
			return
		}
		if s.wrong = s.options.confirm(headers, s.method); s.wrong != nil {
			s.cancel()
		}
	})
	return s.wrong
}
