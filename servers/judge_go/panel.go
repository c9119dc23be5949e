package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// voter is one way to judge; make your own and give it to a panel. It must be safe for concurrent use.
type voter interface {
	name() string
	// vote gives score, hint, rationale and certain. An error is a failed vote; one that wraps errOutage may pass.
	vote(ctx context.Context, transition *pb.Transition) (*pb.Vote, error)
}

// errOutage is wrapped by the error of a vote that failed since the voter can't work just now.
var errOutage = errors.New("it can't work just now")

// panel asks a voter m times at once and takes the majority.
type panel struct {
	judge   voter
	votes   int
	timeout time.Duration
	guard   voter // its vote counts beside the judge's when it is certain; nil for none
}

// instant tells whether votes are computed at once, so that nothing need wait.
func (p *panel) instant() bool { _, is := p.judge.(rules); return is }

func (p *panel) description() string {
	text := p.judge.name()
	if p.votes > 1 {
		text = fmt.Sprintf("%d x %s", p.votes, text)
	}
	if p.guard != nil {
		text += ", guarded by " + p.guard.name()
	}
	return text
}

// decide judges; outage tells that all votes failed for a reason that may pass.
func (p *panel) decide(ctx context.Context, transition *pb.Transition) (judgement *pb.Judgement, outage bool) {
	votes, failures := make([]*pb.Vote, p.votes), make([]error, p.votes)
	if p.instant() {
		votes[0], failures[0] = p.one(ctx, p.judge, transition)
	} else {
		var all sync.WaitGroup
		for i := range votes {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, p.timeout)
				defer cancel()
				votes[i], failures[i] = p.one(ctx, p.judge, transition)
			})
		}
		all.Wait()
	}
	judgement = p.conclude(ctx, transition, votes)
	for _, err := range failures {
		outage = outage || errors.Is(err, errOutage) || errors.Is(err, context.DeadlineExceeded)
	}
	return judgement, judgement.Failed && outage
}

// giveUp is the judgement without asking the judge: failed, unless the guard is certain.
func (p *panel) giveUp(ctx context.Context, transition *pb.Transition, reason string) *pb.Judgement {
	return p.conclude(ctx, transition, []*pb.Vote{{Judge: p.judge.name(), Error: reason}})
}

func (p *panel) one(ctx context.Context, judge voter, transition *pb.Transition) (vote *pb.Vote, err error) {
	began := time.Now()
	defer func() {
		if broken := recover(); broken != nil {
			err = fmt.Errorf("a fault of the judge: %v", broken)
		}
		if err == nil && (vote == nil || vote.Score < -1 || vote.Score > 1) {
			err = fmt.Errorf("a fault of the judge: its vote is %v", vote)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %s: %w", p.timeout, err)
		}
		if err != nil {
			vote = &pb.Vote{Error: cut(err.Error(), 2000)}
		}
		vote.Judge, vote.DurationMs = judge.name(), float64(time.Since(began))/1e6
		vote.Hint, vote.Rationale = cut(vote.Hint, 2000), cut(vote.Rationale, 2000)
	}()
	return judge.vote(ctx, transition)
}

func (p *panel) conclude(ctx context.Context, transition *pb.Transition, votes []*pb.Vote) *pb.Judgement {
	if p.guard != nil {
		if vote, err := p.one(ctx, p.guard, transition); err == nil && vote.Certain {
			votes = append(votes, vote)
		}
	}
	judgement := &pb.Judgement{TurnId: transition.Turn.TurnId, Votes: votes, JudgedAt: timestamppb.Now(), Panel: p.description()}
	judgement.Score, judgement.Hint, judgement.Failed = majority(votes)
	return judgement
}

// majority is what follows from votes: failed ones don't count, and only certain ones do if there are any; a tie of
// the two most frequent scores is 0. The hint is the most specific one of those with the majority's score.
func majority(votes []*pb.Vote) (score int32, hint string, failed bool) {
	var counting []*pb.Vote
	for _, certain := range []bool{true, false} {
		for _, vote := range votes {
			if vote.Error == "" && (vote.Certain || !certain) {
				counting = append(counting, vote)
			}
		}
		if len(counting) > 0 {
			break
		}
	}
	number := map[int32]int{}
	for _, vote := range counting {
		number[vote.Score]++
	}
	for _, candidate := range []int32{-1, 1} {
		if number[candidate] > number[0] && number[candidate] > number[-candidate] {
			score = candidate
		}
	}
	for _, vote := range counting {
		if a, b := different(vote.Hint), different(hint); vote.Score == score && (a > b || a == b && len(vote.Hint) < len(hint)) {
			hint = vote.Hint
		}
	}
	return score, hint, len(counting) == 0
}

// different counts the different words; a Chinese character is a word.
func different(text string) int {
	seen := map[string]struct{}{}
	for _, word := range wordsOf(text) {
		seen[word] = struct{}{}
	}
	return len(seen)
}

func wordsOf(text string) []string {
	var words []string
	var word strings.Builder
	flush := func() {
		if word.Len() > 0 {
			words = append(words, word.String())
			word.Reset()
		}
	}
	for _, r := range strings.ToLower(text) {
		switch {
		case unicode.Is(unicode.Han, r):
			flush()
			words = append(words, string(r))
		case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '\'':
			word.WriteRune(r)
		default:
			flush()
		}
	}
	flush()
	return words
}

// cut bounds a text for people; what is no text in it would make a message that can't be sent.
func cut(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most])
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
