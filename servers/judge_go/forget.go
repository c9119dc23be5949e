package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// mark stands for a session or a turn that was forgotten: its name is not to be kept.
func mark(kind, id string) []byte {
	digest := sha256.Sum256([]byte(kind + "\x00" + id))
	return digest[:16]
}

// forgot tells whether a transition's turn, or its session after the turn was asked for, was forgotten.
func (t *txn) forgot(transition *pb.Transition) bool {
	turn := transition.Turn
	if t.bucket(forgotten).Get(mark("turn", turn.TurnId)) != nil {
		return true
	}
	before := t.bucket(forgotten).Get(mark("session", turn.SessionId))
	return before != nil && turn.RequestedAt.AsTime().Before(stamp(before))
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
		// meant are the keys of a bucket's messages that are to go. What names neither session nor turn is left unread, and
		// what names one and is damaged goes.
		meant := func(name []byte, turnOf func(value []byte) (*pb.Turn, error)) (keys [][]byte) {
			tx.bucket(name).each(func(at, value []byte) {
				names := func(id string) bool { return bytes.Contains(value, []byte(id)) }
				if !names(session) && !slices.ContainsFunc(turnIDs, names) {
					return
				}
				turn, err := turnOf(value)
				_, named := turns[turn.GetTurnId()]
				if err == nil && !named && (turn.GetSessionId() != session || !turn.GetRequestedAt().AsTime().Before(before)) {
					return
				}
				keys = append(keys, bytes.Clone(at))
				if name := turn.GetTurnId(); name != "" && err == nil {
					turns[name] = struct{}{}
				}
			})
			return keys
		}
		waiting := meant(queue, func(value []byte) (*pb.Turn, error) { return transitionTurn(value[8:]) })
		unsent := meant(samples, func(value []byte) (*pb.Turn, error) { return sampleTurn(value[8:]) })
		aside := meant(refused, func(value []byte) (*pb.Turn, error) {
			reason, message, _ := bytes.Cut(value, []byte("\x00"))
			if bytes.HasPrefix(reason, []byte(byTrainer)) {
				return sampleTurn(message)
			}
			return transitionTurn(message)
		})
		tx.bucket(judgements).each(func(id, value []byte) {
			kept := &pb.WatchJudgementsResponse{}
			if bytes.Contains(value, []byte(session)) && proto.Unmarshal(value, kept) == nil && kept.SessionId == session && kept.Judgement.JudgedAt.AsTime().Before(before) {
				turns[string(id)] = struct{}{}
			}
		})
		var failures []error
		for _, at := range waiting {
			tx.queue--
			failures = append(failures, tx.bucket(queue).Delete(at))
		}
		for _, at := range unsent {
			failures = append(failures, tx.takeOut(at))
		}
		for _, at := range aside {
			failures = append(failures, tx.bucket(refused).Delete(at))
		}
		for id := range turns {
			if tx.bucket(judgements).Get([]byte(id)) != nil {
				removed["judgements"]++
			}
			failures = append(failures, tx.bucket(judgements).Delete([]byte(id)), tx.bucket(sampleOf).Delete([]byte(id)),
				tx.bucket(forgotten).Put(mark("turn", id), key(math.MaxInt64)))
		}
		removed["transitions"], removed["samples"], removed["set aside"] = int64(len(waiting)), int64(len(unsent)), int64(len(aside))
		if told := tx.bucket(forgotten).Get(mark("session", session)); told == nil || stamp(told).Before(before) {
			failures = append(failures, tx.bucket(forgotten).Put(mark("session", session), key(uint64(before.UnixNano()))))
		}
		return errors.Join(failures...)
	})
	if err == nil {
		err = s.store.scrub()
	}
	return &pb.ForgetResponse{TurnIds: slices.Sorted(maps.Keys(turns)), Removed: removed, Message: "the judge has forgotten it"}, err
}

func transitionTurn(message []byte) (*pb.Turn, error) {
	transition := &pb.Transition{}
	err := proto.Unmarshal(message, transition)
	return transition.Turn, err
}

func sampleTurn(message []byte) (*pb.Turn, error) {
	sample := &pb.Sample{}
	err := proto.Unmarshal(message, sample)
	return sample.GetTransition().GetTurn(), err
}
