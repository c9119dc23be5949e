package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// hold is how long a transition waits for a judge that can't work.
const hold = 15 * time.Minute

// service is what the judge does, without gRPC: it takes transitions, has them judged, hands the samples on and tells
// those who watch.
type service struct {
	store   *store
	panel   *panel
	log     *slog.Logger
	pause   time.Duration // between two tries of a judge that can't work
	mutex   sync.Mutex
	outage  string // why the judge can't work; empty while it does
	watched map[*watcher]struct{}
	inHand  map[uint64]struct{} // numbers of the queue
}

func newService(store *store, panel *panel, log *slog.Logger) *service {
	return &service{store: store, panel: panel, log: log, pause: 5 * time.Second, watched: map[*watcher]struct{}{}, inHand: map[uint64]struct{}{}}
}

// accept takes transitions in with one transaction, and gives an ack for each once that is on the disk. Rules judge in
// the same transaction; for a model they wait in the queue.
func (s *service) accept(ctx context.Context, transitions []*pb.Transition) ([]*pb.Ack, error) {
	var acks []*pb.Ack
	var judged []*pb.WatchJudgementsResponse
	err := s.store.update(func(tx *txn) error {
		for _, transition := range transitions {
			ack := &pb.Ack{Id: transition.GetTurn().GetTurnId(), Status: pb.AckStatus_ACK_STATUS_ACCEPTED}
			acks = append(acks, ack)
			payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(transition)
			if err != nil {
				return err
			}
			reject := func(reason string) error {
				ack.Status, ack.Reason = pb.AckStatus_ACK_STATUS_REJECTED, reason
				return tx.refuse(reason, payload)
			}
			if reason := unfit(transition); reason != "" {
				if err := reject(reason); err != nil {
					return err
				}
				continue
			}
			if tx.forgot(transition) { // while it was under way
				continue
			}
			isNew, forged, err := tx.take(transition, payload)
			switch {
			case err != nil:
				return err
			case forged:
				err = reject("turn.turn_id: this id was used before, for a message with another content; the first one stands")
			case !isNew:
				ack.Status = pb.AckStatus_ACK_STATUS_DUPLICATE
			case s.panel.instant():
				judgement, _ := s.panel.decide(ctx, transition)
				judged = append(judged, &pb.WatchJudgementsResponse{Judgement: judgement, SessionId: transition.Turn.SessionId})
				err = errors.Join(tx.count("transitions", 1), tx.judged(transition, judgement))
			default:
				err = errors.Join(tx.count("transitions", 1), tx.enqueue(payload))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.tell(judged...)
	return acks, nil
}

// unfit says why a transition can never be judged; empty when it can.
func unfit(transition *pb.Transition) string {
	turn := transition.GetTurn()
	if n := utf8.RuneCountInString(turn.GetTurnId()); n == 0 || n > 256 {
		return fmt.Sprintf("turn.turn_id: %d characters; it must have 1 to 256", n)
	}
	for _, r := range turn.TurnId {
		if unicode.IsControl(r) {
			return fmt.Sprintf("turn.turn_id: %q has control characters", cut(turn.TurnId, 40))
		}
	}
	switch turn.TurnClass {
	case pb.TurnClass_TURN_CLASS_SIDE, pb.TurnClass_TURN_CLASS_UNKNOWN:
		return fmt.Sprintf("turn.turn_class: %s; only main turns are judged", turn.TurnClass)
	}
	return ""
}

// work judges from the queue until the context ends; several may run. What is judged then is finished, for as long as
// votes lets it.
func (s *service) work(ctx, votes context.Context) {
	for ctx.Err() == nil {
		number, received, transition, err := s.next()
		if err != nil {
			s.log.Error("the queue can't be read", "error", err)
		}
		if transition == nil {
			select {
			case <-s.store.queued:
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			continue
		}
		if err := s.judgeQueued(votes, number, received, transition); err != nil && votes.Err() == nil {
			s.log.Error("judging waits", "turn", transition.Turn.TurnId, "error", err)
			select {
			case <-time.After(s.pause):
			case <-ctx.Done():
			}
		}
		s.mutex.Lock()
		delete(s.inHand, number)
		s.mutex.Unlock()
	}
}

// next takes the oldest transition of the queue that nobody has in hand; nil when there is none.
func (s *service) next() (number uint64, received time.Time, transition *pb.Transition, err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	err = s.store.view(func(tx *txn) error {
		cursor := tx.bucket(queue).Cursor()
		for at, value := cursor.First(); at != nil; at, value = cursor.Next() {
			number = binary.BigEndian.Uint64(at)
			if _, taken := s.inHand[number]; taken {
				continue
			}
			s.inHand[number] = struct{}{}
			found := &pb.Transition{}
			if err := proto.Unmarshal(value[8:], found); err != nil || found.Turn == nil {
				s.log.Error("a transition is damaged on the disk; it stays there until the next start, the others go on", "number", number, "error", err)
				continue
			}
			received, transition = stamp(value), found
			wake(s.store.queued) // for another worker: there may be more
			return nil
		}
		return nil
	})
	return
}

func (s *service) judgeQueued(ctx context.Context, number uint64, received time.Time, transition *pb.Transition) error {
	judgement, outage := s.panel.decide(ctx, transition)
	if ctx.Err() != nil { // it stays in the queue for the next start
		return ctx.Err()
	}
	why := ""
	if outage {
		why = judgement.Votes[0].Error
	}
	s.mutex.Lock()
	s.outage = why
	s.mutex.Unlock()
	if outage {
		if time.Since(received) < hold {
			return fmt.Errorf("judge %s: %s", s.panel.judge.name(), why)
		}
		judgement = s.panel.giveUp(ctx, transition, fmt.Sprintf("not judged within %s: %s", hold, why))
	}
	there := false
	err := s.store.update(func(tx *txn) error {
		if there = tx.bucket(queue).Get(key(number)) != nil; !there { // it was forgotten meanwhile
			return nil
		}
		tx.queue--
		return errors.Join(tx.bucket(queue).Delete(key(number)), tx.judged(transition, judgement))
	})
	if err == nil && there {
		s.tell(&pb.WatchJudgementsResponse{Judgement: judgement, SessionId: transition.Turn.SessionId})
	}
	return err
}

// kept gives the judgements that there are of these turns, in their order.
func (s *service) kept(turnIDs []string) (found []*pb.Judgement, err error) {
	seen := map[string]struct{}{}
	err = s.store.view(func(tx *txn) error {
		for _, id := range turnIDs {
			if _, twice := seen[id]; twice {
				continue
			}
			seen[id] = struct{}{}
			value := tx.bucket(judgements).Get([]byte(id))
			if value == nil {
				continue
			}
			kept := &pb.WatchJudgementsResponse{}
			if err := proto.Unmarshal(value, kept); err != nil {
				return fmt.Errorf("the judgement of %s: %w", id, err)
			}
			found = append(found, kept.Judgement)
		}
		return nil
	})
	return
}

// watcher gets the judgements of one session, or ("") of all.
type watcher struct {
	session string
	told    chan *pb.WatchJudgementsResponse
}

// watch begins to watch; end it by the function that it returns. A watcher that reads slowly loses the oldest beyond
// 1000, and never holds the judge up.
func (s *service) watch(session string) (*watcher, func()) {
	w := &watcher{session, make(chan *pb.WatchJudgementsResponse, 1000)}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.watched[w] = struct{}{}
	return w, func() {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		delete(s.watched, w)
	}
}

func (s *service) tell(judged ...*pb.WatchJudgementsResponse) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, judgement := range judged {
		for w := range s.watched {
			if w.session != "" && w.session != judgement.SessionId {
				continue
			}
			for full := true; full; {
				select {
				case w.told <- judgement:
					full = false
				default:
					select {
					case <-w.told:
					default:
					}
				}
			}
		}
	}
}
