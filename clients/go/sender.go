package openclaw

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

const (
	// requestMessages and requestBytes bound one request, unless a single message has more.
	requestMessages = 64
	requestBytes    = 1 << 20
	// tooLarge is what does not fit into a request at all.
	tooLarge = MaxMessage - 1024
	// remembered are ids that a stream has settled, so that a second ack of one is no foreign one.
	remembered = 1024
)

// Entry is a message in an outbox.
type Entry[M proto.Message] struct {
	// Seq grows from message to message.
	Seq uint64
	// ID is acknowledged.
	ID string
	// Message is what is sent.
	Message M
	// Size is its length in bytes.
	Size int
}

// Outbox keeps the messages of a ring stream until they are acknowledged. A server has one on its disk; a Delivery has
// one in memory. It must be safe for concurrent use.
type Outbox[M proto.Message] interface {
	// Next gives the messages whose Seq is larger than after, oldest first: at most limit of them, and no more than about
	// so many bytes, but at least one if there is one.
	Next(after uint64, limit, bytes int) ([]Entry[M], error)
	// Settle takes out what is acknowledged, and sets aside what is rejected. Ids that it does not know are passed over.
	Settle(acks []*pb.Ack) error
	// Changed gets a value when there may be more.
	Changed() <-chan struct{}
}

// SenderOptions say how messages are sent; the zero value is the usual. The functions are called by the goroutine that
// sends: a Delivery must not be closed, and nothing waited for, in them.
type SenderOptions struct {
	// Window is the most messages in flight; 0 means 256.
	Window int
	// AckTimeout is the longest wait for the ack of the oldest message in flight; then the stream is given up and made
	// anew. 0 means 60 s.
	AckTimeout time.Duration
	// Backoff has the pauses between two streams; what is 0 in it is as in DefaultBackoff.
	Backoff Backoff
	// OnAck is told of each message that the receiver has (ACCEPTED or DUPLICATE), after it left the outbox.
	OnAck func(id string)
	// OnReject is told of each message that the receiver will never take, and why.
	OnReject func(id, reason string)
	// OnError is told why a stream broke; it is made anew.
	OnError func(*Error)
	// Logger is told the same; nil logs nothing.
	Logger *slog.Logger
}

// Sender carries what is in an outbox to its receiver, for as long as both live: whatever breaks, what is not
// acknowledged is sent again, in order.
type Sender[M proto.Message] struct {
	ring    Ring[M]
	outbox  Outbox[M]
	options SenderOptions

	mutex sync.Mutex
	stats pb.OutboxStats
}

// NewSender makes a sender; Run sends.
func NewSender[M proto.Message](ring Ring[M], outbox Outbox[M], options SenderOptions) *Sender[M] {
	if options.Window <= 0 {
		options.Window = 256
	}
	if options.AckTimeout <= 0 {
		options.AckTimeout = time.Minute
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	return &Sender[M]{ring: ring, outbox: outbox, options: options}
}

// Stats tells how the stream is: connected, delivered, rejected and the last error. What is pending the outbox knows.
func (s *Sender[M]) Stats() *pb.OutboxStats {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return &pb.OutboxStats{Name: s.ring.name, Connected: s.stats.Connected, Delivered: s.stats.Delivered,
		Rejected: s.stats.Rejected, LastError: s.stats.LastError}
}

func (s *Sender[M]) note(change func(*pb.OutboxStats)) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	change(&s.stats)
}

// Run sends until the context ends, whose error it returns. Call it once at a time.
func (s *Sender[M]) Run(ctx context.Context) error {
	silent := false
	for attempt := 0; ; attempt++ {
		flight := &flight[M]{Sender: s, silent: silent, waiting: map[string]struct{}{}, settled: map[string]struct{}{}}
		failed := AsError(flight.run(ctx))
		s.note(func(stats *pb.OutboxStats) { stats.Connected = false })
		if ctx.Err() != nil {
			return ctx.Err()
		}
		silent = failed.Reason == ReasonNoAck || failed.Reason == ReasonForeignAck
		if flight.progress { // it achieved something: the pauses start afresh
			attempt = 0
		}
		pause := s.options.Backoff.after(attempt, failed)
		told := s.Stats().LastError
		s.note(func(stats *pb.OutboxStats) { stats.LastError = failed.Error() })
		if told != failed.Error() { // once, not with each attempt of a long outage
			s.options.Logger.Warn("the stream broke; connecting again and again", "stream", s.ring.name, "error", failed.Error())
		}
		if s.options.OnError != nil {
			s.options.OnError(failed)
		}
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// flight is one stream of a sender.
type flight[M proto.Message] struct {
	*Sender[M]
	silent    bool // the stream before got no right ack: that it is taken says little
	cursor    uint64
	order     []string            // ids in flight, in the order of sending; some of them settled
	waiting   map[string]struct{} // those that are not
	settled   map[string]struct{} // the last ones that are
	forgotten []string            // the same in order
	headSince time.Time           // when the oldest in flight became the oldest
	progress  bool
}

// run sends and settles until the stream breaks, and says why.
func (f *flight[M]) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()
	stream, err := f.ring.open(ctx)
	if err != nil {
		return err
	}
	acks, broken := make(chan []*pb.Ack), make(chan error, 2)
	requests, idle := make(chan []M), make(chan struct{}, 1)
	workers.Go(func() { // reading
		if stream.taken() && !f.silent {
			f.note(func(stats *pb.OutboxStats) { stats.LastError = "" })
		}
		for {
			got, err := stream.recv()
			if err == io.EOF {
				err = f.problem(codes.Unavailable, "UNAVAILABLE", "the receiver has ended the stream")
			}
			if err != nil {
				broken <- err
				return
			}
			select {
			case acks <- got:
			case <-ctx.Done():
				return
			}
		}
	})
	workers.Go(func() { // writing, which blocks when the receiver does not read
		for {
			select {
			case request := <-requests:
				if err := stream.send(request); err != nil {
					if err != io.EOF { // the reader knows why the stream has ended
						broken <- err
					}
					return
				}
				idle <- struct{}{}
			case <-ctx.Done():
				return
			}
		}
	})
	f.note(func(stats *pb.OutboxStats) { stats.Connected = true })
	return f.coordinate(ctx, acks, broken, requests, idle)
}

func (f *flight[M]) coordinate(ctx context.Context, acks <-chan []*pb.Ack, broken <-chan error, requests chan<- []M, idle <-chan struct{}) error {
	free := true // the writer is
	for {
		if free && len(f.waiting) < f.options.Window {
			batch, err := f.next()
			if err != nil {
				return err
			}
			if len(batch) > 0 {
				free = false
				select {
				case requests <- batch: // the writer waits for it
				case <-ctx.Done(): // and ends with the context
					return ctx.Err()
				}
			}
		}
		var late <-chan time.Time
		if len(f.waiting) > 0 {
			late = time.After(time.Until(f.headSince.Add(f.options.AckTimeout)))
		}
		select {
		case got := <-acks:
			if err := f.settle(got); err != nil {
				return err
			}
		case err := <-broken:
			return err
		case <-idle:
			free = true
		case <-f.outbox.Changed():
		case <-late:
			return f.problem(codes.Unavailable, ReasonNoAck, fmt.Sprintf("no acknowledgement of %s for %s, of %d messages in flight: the receiver takes messages and does not acknowledge them, or is stuck",
				f.order[0], f.options.AckTimeout, len(f.waiting)))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// next takes the next request's messages from the outbox, and sets aside what can't be sent.
func (f *flight[M]) next() ([]M, error) {
	var batch []M
	for limit := min(f.options.Window-len(f.waiting), requestMessages); len(batch) == 0; {
		entries, err := f.outbox.Next(f.cursor, limit, requestBytes)
		if err != nil {
			return nil, fmt.Errorf("outbox %s: %w", f.ring.name, err)
		}
		if len(entries) == 0 {
			break
		}
		for _, entry := range entries {
			f.cursor = entry.Seq
			if entry.Size > tooLarge {
				reason := fmt.Sprintf("it has %d bytes, more than %d", entry.Size, tooLarge)
				if err := f.keep([]*pb.Ack{{Id: entry.ID, Status: pb.AckStatus_ACK_STATUS_REJECTED, Reason: reason}}); err != nil {
					return nil, err
				}
				continue
			}
			if len(f.waiting) == 0 {
				f.headSince, f.order = time.Now(), nil
			}
			f.order = append(f.order, entry.ID)
			f.waiting[entry.ID] = struct{}{}
			batch = append(batch, entry.Message)
		}
	}
	return batch, nil
}

func (f *flight[M]) settle(acks []*pb.Ack) error {
	var foreign error
	known := acks[:0:0]
	for _, ack := range acks {
		_, waits := f.waiting[ack.Id]
		_, before := f.settled[ack.Id]
		switch {
		case waits && ack.Status != pb.AckStatus_ACK_STATUS_UNSPECIFIED:
			known = append(known, ack)
			delete(f.waiting, ack.Id)
			f.remember(ack.Id)
		case !waits && !before:
			foreign = f.problem(codes.Internal, ReasonForeignAck, fmt.Sprintf("the receiver acknowledged %q, which was never sent on this stream: it is not a receiver of this ring, or mixes up its clients", ack.Id))
		}
	}
	head := 0
	for head < len(f.order) {
		if _, waits := f.waiting[f.order[head]]; waits {
			break
		}
		head++
	}
	if head > 0 {
		f.order, f.headSince = f.order[head:], time.Now()
	}
	if err := f.keep(known); err != nil {
		return err
	}
	if len(known) > 0 && !f.progress {
		f.progress = true
		f.note(func(stats *pb.OutboxStats) { stats.LastError = "" })
	}
	return foreign
}

func (f *flight[M]) remember(id string) {
	f.settled[id] = struct{}{}
	f.forgotten = append(f.forgotten, id)
	if len(f.forgotten) > remembered {
		delete(f.settled, f.forgotten[0])
		f.forgotten = f.forgotten[1:]
	}
}

// keep settles in the outbox, and tells.
func (f *flight[M]) keep(acks []*pb.Ack) error {
	if len(acks) == 0 {
		return nil
	}
	if err := f.outbox.Settle(acks); err != nil {
		return fmt.Errorf("outbox %s: %w", f.ring.name, err)
	}
	for _, ack := range acks {
		rejected := ack.Status == pb.AckStatus_ACK_STATUS_REJECTED
		f.note(func(stats *pb.OutboxStats) {
			if rejected {
				stats.Rejected++
			} else {
				stats.Delivered++
			}
		})
		switch {
		case rejected && f.options.OnReject != nil:
			f.options.OnReject(ack.Id, ack.Reason)
		case !rejected && f.options.OnAck != nil:
			f.options.OnAck(ack.Id)
		}
	}
	return nil
}

func (f *flight[M]) problem(code codes.Code, reason, message string) *Error {
	return &Error{Code: code, Reason: reason, Message: message, Address: f.ring.address}
}
