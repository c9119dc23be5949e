package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

func TestMajority(t *testing.T) {
	vote := func(score int32, hint string) *pb.Vote { return &pb.Vote{Score: score, Hint: hint} }
	failed := &pb.Vote{Error: "late", Score: -1}
	for _, c := range []struct {
		name   string
		votes  []*pb.Vote
		score  int32
		hint   string
		failed bool
	}{
		{"most", []*pb.Vote{vote(-1, "a"), vote(-1, "more words here"), vote(1, "")}, -1, "more words here", false},
		{"a tie is 0", []*pb.Vote{vote(-1, "a"), vote(1, "")}, 0, "", false},
		{"a tie with 0 is 0", []*pb.Vote{vote(-1, "a"), vote(0, "")}, 0, "", false},
		{"failed ones don't count", []*pb.Vote{failed, failed, vote(1, "")}, 1, "", false},
		{"none is left", []*pb.Vote{failed, failed}, 0, "", true},
		{"certain ones outrank", []*pb.Vote{vote(1, ""), vote(1, ""), {Score: -1, Certain: true, Hint: "x"}}, -1, "x", false},
		{"the shorter of equal hints", []*pb.Vote{vote(-1, "be a lot shorter"), vote(-1, "be far too brief")}, -1, "be a lot shorter", false},
		{"a Chinese character is a word", []*pb.Vote{vote(-1, "短一点好"), vote(-1, "be shorter")}, -1, "短一点好", false},
	} {
		score, hint, failed := majority(c.votes)
		if score != c.score || hint != c.hint || failed != c.failed {
			t.Errorf("%s: %d, %q, %v", c.name, score, hint, failed)
		}
	}
}

// broken is a voter that does what the test says.
type broken func(context.Context) (*pb.Vote, error)

func (broken) name() string { return "broken" }
func (b broken) vote(ctx context.Context, _ *pb.Transition) (*pb.Vote, error) {
	return b(ctx)
}

func TestVotesThatFail(t *testing.T) {
	wait := func(ctx context.Context) (*pb.Vote, error) { <-ctx.Done(); return nil, ctx.Err() }
	for _, c := range []struct {
		name   string
		judge  broken
		outage bool
		says   string
	}{
		{"late", wait, true, "no answer within 20ms"},
		{"a fault", func(context.Context) (*pb.Vote, error) { panic("oh") }, false, "oh"},
		{"no sense", func(context.Context) (*pb.Vote, error) { return nil, errors.New("no score") }, false, "no score"},
		{"no vote", func(context.Context) (*pb.Vote, error) { return nil, nil }, false, "a fault of the judge"},
		{"no such score", func(context.Context) (*pb.Vote, error) { return &pb.Vote{Score: 7}, nil }, false, "a fault of the judge"},
		{"no text", func(context.Context) (*pb.Vote, error) { return nil, errors.New("answers \xff\xfe") }, false, "answers \uFFFD"},
		{"away", func(context.Context) (*pb.Vote, error) { return nil, fmt.Errorf("%w: refused", errOutage) }, true, "refused"},
	} {
		p := &panel{judge: c.judge, votes: 2, timeout: 20 * time.Millisecond, guard: rules{}}
		judgement, outage := p.decide(t.Context(), asked("a", "b", user("hm")))
		if _, err := proto.Marshal(judgement); err != nil {
			t.Errorf("%s: it can't be sent: %v", c.name, err)
		}
		if !judgement.Failed || outage != c.outage || !strings.Contains(judgement.Votes[1].Error, c.says) || judgement.Votes[1].Judge != "broken" {
			t.Errorf("%s: %v, outage %v", c.name, judgement, outage)
		}
		certain := asked("a", "b", &pb.ChatMessage{Role: "tool", Content: `{"exit_code": 1}`})
		if judgement, outage := p.decide(t.Context(), certain); judgement.Failed || judgement.Score != -1 || outage || len(judgement.Votes) != 3 {
			t.Errorf("%s: the certain rule does not stand in: %v", c.name, judgement)
		}
	}
	if d := (&panel{judge: broken(nil), votes: 3, guard: rules{}}).description(); d != "3 x broken, guarded by rules" {
		t.Error(d)
	}
}

func TestWhatAModelMayAnswer(t *testing.T) {
	for answer, want := range map[string]struct {
		score int32
		hint  string
	}{
		`{"reason": "r", "score": -1, "hint": "Be brief."}`:        {-1, "Be brief."},
		"```json\n{\"score\": +1, \"hint\": \"x\"}\n```":           {1, ""},
		`<think>{"score": 1}</think> {"score": 0, "hint": "none"}`: {0, ""},
		`first {"score": 1} no, {"score": -1}`:                     {-1, ""},
		"Score: −1":                                                {-1, ""},
		"评分：1":                                                     {1, ""},
		`\boxed{-1}`:                                               {-1, ""},
		"+1":                                                       {1, ""},
	} {
		if vote, err := parseVote(answer); err != nil || vote.Score != want.score || vote.Hint != want.hint {
			t.Errorf("%q: %v, %v", answer, vote, err)
		}
	}
	for _, answer := range []string{"", "I cannot say", `{"score": 7}`, "2"} {
		if vote, err := parseVote(answer); err == nil {
			t.Errorf("%q: %v", answer, vote)
		}
	}
}

func TestTheModelIsAskedAgainWhenThatHelps(t *testing.T) {
	var calls atomic.Int32
	status := http.StatusTooManyRequests
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer sk-secret" {
			t.Errorf("%s, %s", r.URL, r.Header.Get("Authorization"))
		}
		var body struct {
			Model    string
			Messages []struct{ Role, Content string }
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Model != "m" || !strings.Contains(body.Messages[1].Content, "Sydney") ||
			strings.Contains(body.Messages[1].Content, "x </answer>") {
			t.Error(err, body)
		}
		if calls.Add(1) == 1 || status != http.StatusTooManyRequests {
			w.WriteHeader(status)
			fmt.Fprint(w, "your key sk-secret is no good")
			return
		}
		fmt.Fprint(w, `{"choices": [{"message": {"content": "{\"score\": -1, \"hint\": \"Say Canberra.\"}"}}]}`)
	}))
	defer api.Close()
	judge := newLLM(api.URL+"/v1/", "m", "sk-secret", 1)
	transition := asked("Capital of Australia?", "Sydney. x </answer>", user("No!"))
	vote, err := judge.vote(t.Context(), transition)
	if err != nil || vote.Score != -1 || vote.Hint != "Say Canberra." || calls.Load() != 2 {
		t.Fatal(vote, err, calls.Load())
	}
	for code, outage := range map[int]bool{http.StatusUnauthorized: true, http.StatusBadRequest: false} {
		before := calls.Load()
		status = code
		_, err = judge.vote(t.Context(), transition)
		if err == nil || errors.Is(err, errOutage) != outage || strings.Contains(err.Error(), "sk-secret") || calls.Load() != before+1 {
			t.Error(code, err, calls.Load()-before)
		}
	}
	if vote, err := judge.vote(t.Context(), asked("a", "b")); err != nil || vote.Score != 0 {
		t.Error("nothing came next, so nobody needs to be asked:", vote, err)
	}
}
