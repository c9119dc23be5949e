package openclaw

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

const (
	accepted = pb.AckStatus_ACK_STATUS_ACCEPTED
	rejected = pb.AckStatus_ACK_STATUS_REJECTED
)

func (r *recorder) register(server *grpc.Server) { pb.RegisterEnvironmentServiceServer(server, r) }

var soon = Backoff{First: 5 * time.Millisecond, Max: 20 * time.Millisecond}

func deliverTo(t *testing.T, fake *recorder, options SenderOptions) *Delivery[*pb.PolicyEvent] {
	t.Helper()
	if options.Backoff == (Backoff{}) {
		options.Backoff = soon
	}
	delivery := Deliver(environmentAt(t, serve(t, fake.register)).TurnsRing(), options)
	t.Cleanup(func() { _ = delivery.Close() })
	return delivery
}

func give(t *testing.T, delivery *Delivery[*pb.PolicyEvent], n int) (ids []string) {
	t.Helper()
	for i := range n {
		ids = append(ids, fmt.Sprintf("turn_%04d", i))
		if err := delivery.Send(within(t), turnEvent(ids[i])); err != nil {
			t.Fatal(err)
		}
	}
	return ids
}

func TestAllArriveInOrder(t *testing.T) {
	fake := &recorder{each: func(ids []string, send func(pb.AckStatus, ...string)) error {
		send(accepted, ids...)
		return nil
	}}
	var mutex sync.Mutex
	var acked []string
	delivery := deliverTo(t, fake, SenderOptions{Window: 8, OnAck: func(id string) {
		mutex.Lock()
		defer mutex.Unlock()
		acked = append(acked, id)
	}})
	ids := give(t, delivery, 300)
	if err := delivery.Flush(within(t)); err != nil {
		t.Fatal(err)
	}
	mutex.Lock()
	defer mutex.Unlock()
	if !slices.Equal(fake.seen, ids) || !slices.Equal(acked, ids) {
		t.Errorf("seen %d, acked %d", len(fake.seen), len(acked))
	}
	if stats := delivery.Stats(); stats.Delivered != 300 || stats.Pending != 0 || !stats.Connected || stats.LastError != "" {
		t.Error(stats)
	}
}

func TestWhatIsNotAcknowledgedIsSentAgain(t *testing.T) {
	var acks atomic.Int32
	fake := &recorder{each: func(ids []string, send func(pb.AckStatus, ...string)) error {
		for _, id := range ids {
			send(accepted, id)
			if acks.Add(1)%2 == 0 {
				return status.Error(codes.Unavailable, "the line broke")
			}
		}
		return nil
	}}
	var broken atomic.Int32
	delivery := deliverTo(t, fake, SenderOptions{OnError: func(e *Error) {
		if e.Code == codes.Unavailable {
			broken.Add(1)
		}
	}})
	ids := give(t, delivery, 15)
	if err := delivery.Flush(within(t)); err != nil {
		t.Fatal(err)
	}
	slices.Sort(fake.seen)
	if got := slices.Compact(fake.seen); !slices.Equal(got, ids) || broken.Load() < 5 {
		t.Errorf("%d arrived, %d cuts", len(got), broken.Load())
	}
}

func TestAReceiverThatNeverAcknowledges(t *testing.T) {
	fake := &recorder{each: func([]string, func(pb.AckStatus, ...string)) error { return nil }}
	told := make(chan *Error, 100)
	delivery := deliverTo(t, fake, SenderOptions{AckTimeout: 50 * time.Millisecond, OnError: func(e *Error) { told <- e }})
	give(t, delivery, 3)
	for range 2 { // it tries again
		if e := failure(t, <-told, codes.Unavailable, ReasonNoAck); !strings.Contains(e.Message, "turn_0000") || !strings.Contains(e.Message, "3 messages") {
			t.Error(e)
		}
	}
	ctx, cancel := context.WithTimeout(within(t), 100*time.Millisecond)
	defer cancel()
	if e := failure(t, delivery.Flush(ctx), codes.DeadlineExceeded, "DEADLINE_EXCEEDED"); !strings.Contains(e.Message, "3 turns") || !strings.Contains(e.Message, ReasonNoAck) {
		t.Error(e)
	}
	if delivery.Stats().Pending != 3 {
		t.Error(delivery.Stats())
	}
}

func TestAcksOfMessagesThatNobodySent(t *testing.T) {
	fake := &recorder{each: func(ids []string, send func(pb.AckStatus, ...string)) error {
		send(accepted, "foreign-"+ids[0])
		return nil
	}}
	told := make(chan *Error, 100)
	delivery := deliverTo(t, fake, SenderOptions{OnError: func(e *Error) { told <- e }})
	give(t, delivery, 1)
	if e := failure(t, <-told, codes.Internal, ReasonForeignAck); !strings.Contains(e.Message, `"foreign-turn_0000"`) {
		t.Error(e)
	}
	if delivery.Stats().Pending != 1 {
		t.Error("a foreign ack settled a message")
	}
}

func TestASecondAckOfAMessageIsNoForeignOne(t *testing.T) {
	fake := &recorder{each: func(ids []string, send func(pb.AckStatus, ...string)) error {
		send(accepted, ids...)
		send(accepted, ids...)
		return nil
	}}
	delivery := deliverTo(t, fake, SenderOptions{OnError: func(e *Error) { t.Error(e) }})
	give(t, delivery, 20)
	if err := delivery.Flush(within(t)); err != nil {
		t.Fatal(err)
	}
}

func TestARejectedMessageIsToldAndNoObstacle(t *testing.T) {
	fake := &recorder{each: func(ids []string, send func(pb.AckStatus, ...string)) error {
		for _, id := range ids {
			if id == "turn_0001" {
				send(rejected, id)
			} else {
				send(accepted, id)
			}
		}
		return nil
	}}
	refused := make(chan string, 9)
	delivery := deliverTo(t, fake, SenderOptions{OnReject: func(id, reason string) { refused <- id + ": " + reason }})
	give(t, delivery, 3)
	large := turnEvent("too-large")
	large.GetTurn().Messages = []*pb.ChatMessage{User(strings.Repeat("x", MaxMessage))}
	if err := delivery.Send(within(t), large); err != nil {
		t.Fatal(err)
	}
	if err := delivery.Flush(within(t)); err != nil {
		t.Fatal(err)
	}
	first, second := <-refused, <-refused
	if first > second {
		first, second = second, first
	}
	if !strings.HasPrefix(first, "too-large: it has 16777") || second != "turn_0001: bad" || delivery.Stats().Rejected != 2 || delivery.Stats().Delivered != 2 {
		t.Error(first, second, delivery.Stats())
	}
}

func TestAnAddressThatServesSomethingElse(t *testing.T) {
	address := serve(t, func(*grpc.Server) {}) // no such service there
	delivery := Deliver(environmentAt(t, address).TurnsRing(), SenderOptions{Backoff: soon})
	give(t, delivery, 2)
	for delivery.Stats().LastError == "" {
		time.Sleep(time.Millisecond)
	}
	if stats := delivery.Stats(); stats.Pending != 2 || !strings.Contains(stats.LastError, "does not serve this call") {
		t.Error(stats)
	}
	_ = delivery.Close()
	failure(t, delivery.Flush(within(t)), codes.Canceled, "CANCELLED")
	failure(t, delivery.Send(within(t), turnEvent("late")), codes.Canceled, "CANCELLED")
}

func TestAMessageNeedsAnID(t *testing.T) {
	delivery := deliverTo(t, &recorder{}, SenderOptions{})
	failure(t, delivery.Send(within(t), &pb.PolicyEvent{}), codes.InvalidArgument, "INVALID_ARGUMENT")
}

func TestIDsOfAllEvents(t *testing.T) {
	for want, event := range map[string]*pb.PolicyEvent{
		"a": turnEvent("a"),
		"b": {Event: &pb.PolicyEvent_Feedback{Feedback: &pb.Feedback{FeedbackId: "b"}}},
		"c": {Event: &pb.PolicyEvent_SessionEnd{SessionEnd: &pb.SessionEnd{EventId: "c"}}},
		"d": {Event: &pb.PolicyEvent_SessionActive{SessionActive: &pb.SessionActive{EventId: "d"}}},
	} {
		if got := eventID(event); got != want {
			t.Errorf("%q, expected %q", got, want)
		}
	}
}
