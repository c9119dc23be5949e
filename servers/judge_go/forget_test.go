package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	openclaw "github.com/openclaw-rl/openclaw-rl/clients/go"
	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

func TestASessionIsForgotten(t *testing.T) {
	data := t.TempDir()
	judge := start(t, &options{data: data, trainer: "127.0.0.1:1"})
	late := turn("turn_late", "mine", "a secret word")
	deliver(t, judge, turn("turn_1", "mine", "a secret word"), turn("turn_2", "other", "Thanks"))
	gone, err := judge.Forget(t.Context(), "mine", time.Time{})
	if err != nil || gone.Removed["samples"] != 1 || gone.Removed["judgements"] != 1 || !slices.Equal(gone.TurnIds, []string{"turn_1"}) {
		t.Fatal(gone, err)
	}
	deliver(t, judge, late) // it was under way: taken, and not kept
	later := turn("turn_later", "mine", "hello")
	deliver(t, judge, later)
	kept, err := judge.Judgements(t.Context(), "turn_1", "turn_2", "turn_late", "turn_later")
	if err != nil || len(kept) != 2 || kept[0].TurnId != "turn_2" || kept[1].TurnId != "turn_later" {
		t.Error(kept, err)
	}
	if err := judge.stop(); err != nil {
		t.Fatal(err)
	}
	if file, err := os.ReadFile(filepath.Join(data, "state.db")); err != nil || bytes.Contains(file, []byte("secret word")) || !bytes.Contains(file, []byte("turn_2")) {
		t.Error("the file still has its words", err)
	}
	_, err = start(t, &options{data: data, trainer: "127.0.0.1:1"}).Forget(t.Context(), "", time.Time{})
	if e := openclaw.AsError(err); e == nil || e.Violations[0].Field != "session_id" {
		t.Error(err)
	}
}

// left counts what a bucket has.
func left(t *testing.T, s *store, name []byte) (n int) {
	t.Helper()
	if err := s.view(func(tx *txn) error { tx.bucket(name).each(func(_, _ []byte) { n++ }); return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOnlyWhatIsMeantIsForgotten(t *testing.T) {
	s := opened(t)
	service := newService(s, &panel{judge: rules{}, votes: 1}, discard)
	side := turn("turn_side", "s", "hm")
	side.Turn.TurnClass = pb.TurnClass_TURN_CLASS_SIDE
	other := turn("turn_other", "sessions of others", "hm")
	other.Turn.TurnClass = pb.TurnClass_TURN_CLASS_SIDE
	if _, err := service.accept(t.Context(), []*pb.Transition{side, other, turn("turn_1", "s", "hm"), turn("turn_2", "s", "hm")}); err != nil {
		t.Fatal(err)
	}
	if err := (sampleOutbox{s}).Settle([]*pb.Ack{{Id: "turn_1", Status: pb.AckStatus_ACK_STATUS_REJECTED, Reason: "why"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.update(func(tx *txn) error { // damaged, and the session's
		number := tx.bucket(sampleOf).Get([]byte("turn_2"))
		value := bytes.Clone(tx.bucket(samples).Get(number))
		value[8] = 0xff
		return tx.bucket(samples).Put(number, value)
	}); err != nil {
		t.Fatal(err)
	}
	gone, err := service.forget("s", time.Now(), []string{"turn_named"})
	if file, err := os.ReadFile(s.path); err != nil || bytes.Contains(file, []byte("turn_named")) {
		t.Error("its name is kept", err)
	}
	if err != nil || gone.Removed["samples"] != 1 || gone.Removed["set aside"] != 2 || gone.Removed["judgements"] != 2 {
		t.Fatal(gone, err)
	}
	if !slices.Equal(gone.TurnIds, []string{"turn_1", "turn_2", "turn_named", "turn_side"}) {
		t.Error(gone.TurnIds)
	}
	if left(t, s, samples) != 0 || left(t, s, sampleOf) != 0 || left(t, s, refused) != 1 || s.waiting.samples != 0 || s.waiting.bytes != 0 {
		t.Error("what is left is wrong", left(t, s, samples), left(t, s, sampleOf), left(t, s, refused), s.waiting.samples, s.waiting.bytes)
	}
}

func TestWhatWasForgottenIsKeptOut(t *testing.T) {
	s := opened(t)
	service := newService(s, &panel{judge: rules{}, votes: 1}, discard)
	late, named, long := turn("turn_late", "s", "hm"), turn("turn_named", "elsewhere", "hm"), strings.Repeat("s", 1<<20)
	for _, c := range []struct {
		session string
		before  time.Time
		turns   []string
	}{{"s", time.Now(), []string{"turn_named"}}, {"s", time.Now().Add(-time.Hour), nil}, {long, time.Now(), nil}} { // an earlier moment takes nothing back
		if _, err := service.forget(c.session, c.before, c.turns); err != nil {
			t.Fatal(err)
		}
	}
	acks, err := service.accept(t.Context(), []*pb.Transition{late, named, turn("turn_new", "s", "hm")})
	if err != nil || len(acks) != 3 || slices.ContainsFunc(acks, func(ack *pb.Ack) bool { return ack.Status != pb.AckStatus_ACK_STATUS_ACCEPTED }) {
		t.Fatal(acks, err)
	}
	if kept, err := service.kept([]string{"turn_late", "turn_named", "turn_new"}); err != nil || len(kept) != 1 || kept[0].TurnId != "turn_new" {
		t.Error(kept, err)
	}
}

func TestAScrubThatWasCutOffLeavesNothing(t *testing.T) {
	folder := t.TempDir()
	half := filepath.Join(folder, "state.db.new")
	if err := os.WriteFile(half, []byte("a secret word"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := openStore(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if _, err := os.Stat(half); !os.IsNotExist(err) {
		t.Error(err)
	}
}
