package openclaw

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// Delivery sends messages of a ring from memory: give them, and they are sent until the receiver has them on its disk.
// What is not acknowledged when the program ends is lost; give it an Outbox on disk (NewSender) where that matters.
// Messages must not be changed once they are given. Safe for concurrent use.
type Delivery[M proto.Message] struct {
	sender *Sender[M]
	memory *memoryOutbox[M]
	cancel context.CancelFunc
	ended  chan struct{}
}

// Deliver begins to send on a ring, such as judge.TransitionsRing(). Close it.
func Deliver[M proto.Message](ring Ring[M], options SenderOptions) *Delivery[M] {
	memory := &memoryOutbox[M]{ids: map[string]struct{}{}, changed: make(chan struct{}, 1), settled: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	d := &Delivery[M]{NewSender(ring, memory, options), memory, cancel, make(chan struct{})}
	go func() {
		defer close(d.ended)
		_ = d.sender.Run(ctx)
	}()
	return d
}

// Send gives messages. It waits while 10,000 are pending; the context ends the wait. A message whose id is pending
// already is not sent twice.
func (d *Delivery[M]) Send(ctx context.Context, messages ...M) error {
	for _, message := range messages {
		id := d.sender.ring.id(message)
		if id == "" {
			return d.error(codes.InvalidArgument, "INVALID_ARGUMENT", "a message of this ring needs an id: the turn's, the feedback's or the event's")
		}
		for {
			if d.closed() {
				return d.error(codes.Canceled, "CANCELLED", "the delivery was closed")
			}
			room := d.memory.put(id, message)
			if room == nil {
				break
			}
			if err := d.await(ctx, room); err != nil {
				return err
			}
		}
	}
	return nil
}

// Flush waits until all that was given is settled: acknowledged, or rejected.
func (d *Delivery[M]) Flush(ctx context.Context) error {
	for {
		pending, settled := d.memory.pending()
		if pending == 0 {
			return nil
		}
		if err := d.await(ctx, settled); err != nil {
			return err
		}
	}
}

func (d *Delivery[M]) closed() bool {
	select {
	case <-d.ended:
		return true
	default:
		return false
	}
}

func (d *Delivery[M]) await(ctx context.Context, settled <-chan struct{}) error {
	select {
	case <-settled:
		return nil
	case <-d.ended:
		return d.error(codes.Canceled, "CANCELLED", "the delivery was closed")
	case <-ctx.Done():
		pending, _ := d.memory.pending()
		e := convert(ctx.Err(), d.sender.ring.address, "").(*Error)
		e.Advice = ""
		e.Message = fmt.Sprintf("%d %s are not acknowledged yet", pending, d.sender.ring.name)
		if last := d.sender.Stats().LastError; last != "" {
			e.Message += "; the stream's last error: " + last
		}
		return e
	}
}

func (d *Delivery[M]) error(code codes.Code, reason, message string) *Error {
	return &Error{Code: code, Reason: reason, Message: message, Address: d.sender.ring.address}
}

// Stats tells how the stream is, and what is pending.
func (d *Delivery[M]) Stats() *pb.OutboxStats {
	stats := d.sender.Stats()
	pending, _ := d.memory.pending()
	stats.Pending = int64(pending)
	return stats
}

// Close ends the stream at once; call Flush before it. Any number of times.
func (d *Delivery[M]) Close() error {
	d.cancel()
	<-d.ended
	return nil
}

// mostPending bounds what a delivery keeps in memory.
const mostPending = 10_000

type memoryOutbox[M proto.Message] struct {
	mutex   sync.Mutex
	seq     uint64
	entries []Entry[M]
	ids     map[string]struct{} // of the entries
	changed chan struct{}
	settled chan struct{} // closed and made anew with each Settle
}

// put takes a message in; when there is no room it gives what to wait for.
func (o *memoryOutbox[M]) put(id string, message M) <-chan struct{} {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if _, there := o.ids[id]; there {
		return nil
	}
	if len(o.entries) >= mostPending {
		return o.settled
	}
	o.seq++
	o.entries = append(o.entries, Entry[M]{o.seq, id, message, proto.Size(message)})
	o.ids[id] = struct{}{}
	select {
	case o.changed <- struct{}{}:
	default:
	}
	return nil
}

func (o *memoryOutbox[M]) pending() (int, <-chan struct{}) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return len(o.entries), o.settled
}

func (o *memoryOutbox[M]) Next(after uint64, limit, bytes int) ([]Entry[M], error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	first, _ := slices.BinarySearchFunc(o.entries, after+1, func(entry Entry[M], seq uint64) int { return cmp.Compare(entry.Seq, seq) })
	var found []Entry[M]
	for _, entry := range o.entries[first:] {
		bytes -= entry.Size
		if len(found) == limit || bytes < 0 && len(found) > 0 {
			break
		}
		found = append(found, entry)
	}
	return found, nil
}

func (o *memoryOutbox[M]) Settle(acks []*pb.Ack) error {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	for _, ack := range acks {
		delete(o.ids, ack.Id)
	}
	kept := o.entries[:0]
	for _, entry := range o.entries {
		if _, there := o.ids[entry.ID]; there {
			kept = append(kept, entry)
		}
	}
	clear(o.entries[len(kept):])
	o.entries = kept
	close(o.settled)
	o.settled = make(chan struct{})
	return nil
}

func (o *memoryOutbox[M]) Changed() <-chan struct{} { return o.changed }
