package openclaw

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// holding is an outbox in memory with these events.
func holding(events ...*pb.PolicyEvent) *memoryOutbox[*pb.PolicyEvent] {
	outbox := &memoryOutbox[*pb.PolicyEvent]{ids: map[string]struct{}{}, changed: make(chan struct{}, 1), settled: make(chan struct{})}
	for _, event := range events {
		outbox.put(eventID(event), event)
	}
	return outbox
}

func TestWhatIsTooLargeHoldsNothingUp(t *testing.T) {
	fake := &recorder{each: func(ids []string, send func(pb.AckStatus, ...string)) error {
		send(accepted, ids...)
		return nil
	}}
	var events []*pb.PolicyEvent
	for _, id := range []string{"large_1", "large_2", "large_3", "small"} {
		event := turnEvent(id)
		if id != "small" {
			event.GetTurn().Messages = []*pb.ChatMessage{User(strings.Repeat("x", MaxMessage))}
		}
		events = append(events, event)
	}
	ctx, cancel := context.WithCancel(within(t))
	sender := NewSender(environmentAt(t, serve(t, fake.register)).TurnsRing(), holding(events...), SenderOptions{OnAck: func(string) { cancel() }})
	_ = sender.Run(ctx)
	if stats := sender.Stats(); stats.Rejected != 3 || stats.Delivered != 1 {
		t.Error(stats)
	}
}

func TestTheEndDoesNotWaitForAWriterThatHasEnded(t *testing.T) {
	sender := NewSender(environmentAt(t, "127.0.0.1:1").TurnsRing(), holding(turnEvent("a")), SenderOptions{})
	flight := &flight[*pb.PolicyEvent]{Sender: sender, waiting: map[string]struct{}{}, settled: map[string]struct{}{}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ended := make(chan error, 1)
	go func() { ended <- flight.coordinate(ctx, nil, nil, make(chan []*pb.PolicyEvent), nil) }()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it waits for a writer that has ended")
	}
}

func TestPauses(t *testing.T) {
	for _, c := range []struct {
		backoff  Backoff
		n        int
		from, to time.Duration
	}{
		{DefaultBackoff, 0, 100 * time.Millisecond, 120 * time.Millisecond},
		{DefaultBackoff, 3, 800 * time.Millisecond, 960 * time.Millisecond},
		{DefaultBackoff, 1 << 40, 5 * time.Second, 6 * time.Second},
		{Backoff{First: time.Minute, Max: 24 * time.Hour}, 29, 24 * time.Hour, 29 * time.Hour},
		{Backoff{First: time.Second}, 9, 5 * time.Second, 6 * time.Second},
		{Backoff{First: time.Minute}, 9, time.Minute, 72 * time.Second},
		{Backoff{Max: time.Second}, 0, 100 * time.Millisecond, 120 * time.Millisecond},
		{Backoff{First: -1, Max: -1}, 0, 100 * time.Millisecond, 120 * time.Millisecond},
	} {
		if pause := c.backoff.after(c.n, nil); pause < c.from || pause > c.to {
			t.Errorf("%v, attempt %d: %s", c.backoff, c.n, pause)
		}
	}
	if pause := DefaultBackoff.after(0, &Error{RetryAfter: time.Minute}); pause != time.Minute {
		t.Error("what the server asks for:", pause)
	}
}
