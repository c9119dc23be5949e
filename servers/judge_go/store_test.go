package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	openclaw "github.com/openclaw-rl/openclaw-rl/clients/go"
	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

func opened(t *testing.T) *store {
	t.Helper()
	s, err := openStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.close() })
	return s
}

func TestOnlyTheNewestAreKept(t *testing.T) {
	s := opened(t)
	for i := range 5 {
		var gone []string
		err := s.update(func(tx *txn) error {
			if _, err := tx.bucket(order).add(fmt.Appendf(nil, "turn_%d", i)); err != nil {
				return err
			}
			return tx.bucket(order).keep(3, func(value []byte) error { gone = append(gone, string(value)); return nil })
		})
		var want []string
		if i >= 3 {
			want = []string{fmt.Sprintf("turn_%d", i-3)}
		}
		if err != nil || !slices.Equal(gone, want) {
			t.Errorf("behind %d: %v, %v", i, gone, err)
		}
	}
}

func TestADamagedSampleIsNoObstacle(t *testing.T) {
	s := opened(t)
	err := s.update(func(tx *txn) error {
		for i := range 4 {
			if err := tx.judged(turn(fmt.Sprintf("turn_%d", i), "s", "hm"), &pb.Judgement{}); err != nil {
				return err
			}
		}
		return tx.bucket(samples).Put(key(2), stamped([]byte("\xff\xff")))
	})
	if err != nil {
		t.Fatal(err)
	}
	outbox := sampleOutbox{s}
	entries, err := outbox.Next(0, 2, 1<<20)
	if err != nil || len(entries) != 2 || entries[0].ID != "turn_0" || entries[1].ID != "turn_2" {
		t.Error(entries, err)
	}
	if entries, err = outbox.Next(entries[1].Seq, 9, 1); err != nil || len(entries) != 1 || entries[0].ID != "turn_3" {
		t.Error("at least one, however large it is:", entries, err)
	}
	acks := []*pb.Ack{{Id: "turn_0", Status: pb.AckStatus_ACK_STATUS_ACCEPTED}, {Id: "turn_2", Status: pb.AckStatus_ACK_STATUS_REJECTED, Reason: "why"}, {Id: "unknown"}}
	if err := outbox.Settle(acks); err != nil {
		t.Fatal(err)
	}
	if s.waiting.samples != 2 {
		t.Error(s.waiting.samples)
	}
	var list strings.Builder
	data := strings.TrimSuffix(s.path, "/state.db")
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if err := showRefused(data, &list); err != nil || !strings.HasPrefix(list.String(), "by the trainer: why (") {
		t.Error(list.String(), err)
	}
}

func TestADamagedTransitionOfTheQueueIsNoObstacle(t *testing.T) {
	s := opened(t)
	err := s.update(func(tx *txn) error {
		if err := tx.enqueue([]byte("\xff\xff")); err != nil {
			return err
		}
		return tx.enqueue([]byte("\x0a\x08\x0a\x06turn_1"))
	})
	if err != nil {
		t.Fatal(err)
	}
	service := newService(s, &panel{judge: rules{}, votes: 1}, discard)
	for _, want := range []string{"turn_1", ""} {
		_, _, transition, err := service.next()
		if err != nil || transition.GetTurn().GetTurnId() != want {
			t.Error(transition, err)
		}
	}
}

func TestRefusedMessagesAreKeptInBounds(t *testing.T) {
	s := opened(t)
	payload := make([]byte, keepRefusedBytes/2)
	for _, reason := range []string{"one", "two"} { // with their reasons they are beyond it
		if err := s.update(func(tx *txn) error { return tx.refuse(reason, payload) }); err != nil {
			t.Fatal(err)
		}
	}
	if n := left(t, s, refused); n != 1 {
		t.Error(n)
	}
	if err := s.update(func(tx *txn) error {
		for range keepRefused + 5 {
			if err := tx.refuse("small", nil); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n := left(t, s, refused); n != keepRefused {
		t.Error(n)
	}
}

func TestAFileThatCannotBeWrittenIsTold(t *testing.T) {
	s := opened(t)
	c := &component{service: newService(s, &panel{judge: rules{}, votes: 1}, discard), membership: &membership{}, since: map[string]*timestamppb.Timestamp{},
		sender: openclaw.NewSender(openclaw.Ring[*pb.Sample]{}, sampleOutbox{s}, openclaw.SenderOptions{})}
	full := &os.PathError{Op: "write", Path: s.path, Err: syscall.ENOSPC}
	err := s.update(func(*txn) error { return full })
	if e := openclaw.AsError(asStatus(err, "")); e.Reason != "DISK_FULL" || e.RetryAfter == 0 {
		t.Error(e)
	}
	if status := c.status(); len(status.Alarms) != 1 || status.Alarms[0].Name != "state_failing" || !strings.Contains(status.Detail, "no space left") {
		t.Error(status)
	}
	if err := s.update(func(*txn) error { return nil }); err != nil || len(c.status().Alarms) != 0 {
		t.Error(err, c.status())
	}
}

func TestADamagedFileIsToldNotACrash(t *testing.T) {
	whole := opened(t)
	if err := whole.update(func(tx *txn) error { return tx.enqueue(bytes.Repeat([]byte("x"), 100_000)) }); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(whole.path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(content)
	for i := 2 * os.Getpagesize(); i < len(damaged); i++ {
		damaged[i] = 0xed
	}
	for name, content := range map[string][]byte{"half of it": content[:len(content)/2], "five pages": content[:5*os.Getpagesize()],
		"one page": content[:os.Getpagesize()], "no database": []byte("hello"), "damaged": damaged} {
		folder := t.TempDir()
		if err := os.WriteFile(filepath.Join(folder, "state.db"), content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openStore(folder); err == nil || !strings.Contains(err.Error(), "move it away") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
