package main

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// forgot tells whether a transition's session was forgotten after its turn was asked for.
func (t *txn) forgot(transition *pb.Transition) bool {
	before := t.bucket(forgotten).Get([]byte(transition.Turn.SessionId))
	return before != nil && transition.Turn.SessionId != "" && transition.Turn.RequestedAt.AsTime().Before(stamp(before))
}

// forget removes a session's turns (those asked for before a moment, and those named) from all that is kept, and keeps
// out those that are still to come.
func (s *service) forget(session string, before time.Time, turnIDs []string) (*pb.ForgetResponse, error) {
	turns := map[string]struct{}{}
	for _, id := range turnIDs {
		turns[id] = struct{}{}
	}
	removed := map[string]int64{}
	err := s.store.update(func(tx *txn) error {
		meant := func(turn *pb.Turn) bool {
			_, named := turns[turn.GetTurnId()]
			return named || turn.GetSessionId() == session && turn.GetRequestedAt().AsTime().Before(before)
		}
		// What names neither is left unread.
		mentions := func(value []byte) bool {
			if bytes.Contains(value, []byte(session)) {
				return true
			}
			return slices.ContainsFunc(turnIDs, func(id string) bool { return bytes.Contains(value, []byte(id)) })
		}
		var waits, sent, aside [][]byte
		tx.bucket(queue).each(func(at, value []byte) {
			transition := &pb.Transition{}
			if mentions(value) && (proto.Unmarshal(value[8:], transition) != nil || meant(transition.Turn)) {
				waits = append(waits, bytes.Clone(at))
				turns[transition.GetTurn().GetTurnId()] = struct{}{}
			}
		})
		tx.bucket(samples).each(func(_, value []byte) {
			sample := &pb.Sample{}
			if mentions(value) && (proto.Unmarshal(value[8:], sample) != nil || meant(sample.Transition.GetTurn())) {
				sent = append(sent, []byte(sample.GetTransition().GetTurn().GetTurnId()))
				turns[sample.GetTransition().GetTurn().GetTurnId()] = struct{}{}
			}
		})
		tx.bucket(judgements).each(func(id, value []byte) {
			kept := &pb.WatchJudgementsResponse{}
			if mentions(value) && proto.Unmarshal(value, kept) == nil && kept.SessionId == session && kept.Judgement.JudgedAt.AsTime().Before(before) {
				turns[string(id)] = struct{}{}
			}
		})
		tx.bucket(refused).each(func(at, value []byte) {
			if mentions(value) {
				aside = append(aside, bytes.Clone(at))
			}
		})
		var failures []error
		for _, at := range waits {
			tx.queue--
			failures = append(failures, tx.bucket(queue).Delete(at))
		}
		for _, id := range sent {
			_, err := tx.unsend(string(id))
			failures = append(failures, err)
		}
		for _, at := range aside {
			failures = append(failures, tx.bucket(refused).Delete(at))
		}
		for id := range turns {
			if tx.bucket(judgements).Get([]byte(id)) != nil {
				removed["judgements"]++
				failures = append(failures, tx.bucket(judgements).Delete([]byte(id)))
			}
		}
		removed["transitions"], removed["samples"], removed["set aside"] = int64(len(waits)), int64(len(sent)), int64(len(aside))
		failures = append(failures, tx.bucket(forgotten).Put([]byte(session), key(uint64(before.UnixNano()))))
		return errors.Join(failures...)
	})
	if err == nil {
		err = s.store.scrub()
	}
	delete(turns, "")
	return &pb.ForgetResponse{TurnIds: slices.Sorted(maps.Keys(turns)), Removed: removed, Message: "the judge has forgotten it"}, err
}
