package main

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

func user(text string) *pb.ChatMessage { return &pb.ChatMessage{Role: "user", Content: text} }

// asked is a transition: what was asked, answered, and what came next.
func asked(request, answer string, next ...*pb.ChatMessage) *pb.Transition {
	return &pb.Transition{
		Turn: &pb.Turn{TurnId: "turn_1", SessionId: "s", TurnClass: pb.TurnClass_TURN_CLASS_MAIN, Messages: []*pb.ChatMessage{user(request)},
			Response: &pb.ChatMessage{Role: "assistant", Content: answer}},
		NextState: &pb.NextState{Kind: pb.NextStateKind_NEXT_STATE_KIND_CONTINUED, Messages: next}}
}

func voteOn(t *testing.T, transition *pb.Transition) *pb.Vote {
	t.Helper()
	vote, err := rules{}.vote(t.Context(), transition)
	if err != nil {
		t.Fatal(err)
	}
	return vote
}

func TestWords(t *testing.T) {
	for _, c := range []struct {
		said  string
		score int32
		hint  string
	}{
		{"Thanks!", 1, ""},
		{"Perfect, that works.", 1, ""},
		{"Not bad at all", 1, ""},
		{"it failed at first, but now it works", 1, ""},
		{"谢谢，很清楚", 1, ""},
		{"没错", 1, ""},
		{"解决了！", 1, ""},
		{"No, it is Canberra.", -1, "It is Canberra."},
		{"That's wrong.", -1, ""},
		{"thanks, but that's wrong", -1, ""},
		{"I said in German", -1, "I said in German."},
		{"Too long.", -1, "Answer more briefly."},
		{"Shorter please", -1, "Shorter please."},
		{"Your code crashes on an empty list", -1, ""},
		{"不对，应该是堪培拉", -1, "应该是堪培拉。"},
		{"太长了", -1, "Answer more briefly."},
		{"请用一句话回答", -1, "请用一句话回答。"},
		{"答非所问", -1, ""},
		{"[Mon 2026-03-16 15:30 GMT+1] 谢谢", 1, ""},
		{"And what is the capital of Spain?", 0, ""},
		{"Write a review: the food was terrible.", 0, ""},
		{"What is photosynthesis? Answer in one sentence.", 0, ""},
		{"Here is my essay. It is too long.", 0, ""},
		{"My friend said \"that's wrong\"", 0, ""},
		{"西班牙的首都是哪里？", 0, ""},
	} {
		vote := voteOn(t, asked("What is the capital of Australia?", "Sydney.", user(c.said)))
		if vote.Score != c.score || vote.Hint != c.hint || vote.Certain {
			t.Errorf("%q: %+d, hint %q (%s); expected %+d, %q", c.said, vote.Score, vote.Hint, vote.Rationale, c.score, c.hint)
		}
	}
}

func TestTheSameQuestionAgainAndRepliesToQuestions(t *testing.T) {
	if vote := voteOn(t, asked("What is the capital of Australia?", "Nice weather.", user("what is the capital of australia"))); vote.Score != -1 {
		t.Error(vote)
	}
	if vote := voteOn(t, asked("什么是递归？", "天气很好。", user("什么是递归"))); vote.Score != -1 {
		t.Error(vote)
	}
	if vote := voteOn(t, asked("What is the capital of Australia?", "Canberra.", user("What is the capital of Austria?"))); vote.Score != 0 {
		t.Error(vote)
	}
	if vote := voteOn(t, asked("Tell me a story.", "Shall I make it scary?", user("no"))); vote.Score != 0 {
		t.Error(vote)
	}
}

func TestToolResults(t *testing.T) {
	for _, c := range []struct {
		result  string
		score   int32
		certain bool
	}{
		{`{"exit_code": 1, "output": "ls: cannot access"}`, -1, true},
		{`{"exit_code": 0}`, 1, false},
		{`{"is_error": true, "text": "no"}`, -1, true},
		{`{"success": false}`, -1, true},
		{`{"error": {"message": "no such file"}}`, -1, true},
		{`{"error": ""}`, 0, false},
		{`{"status": 404}`, -1, true},
		{`{"temperature": 21}`, 0, false},
		{"hello\n[exit code: 0]", 1, false},
		{"bash: foo: command not found\n[exit code: 127]", -1, true},
		{"Traceback (most recent call last):\n  File \"a.py\"\nValueError: bad", -1, false},
		{"The word error is in this text", 0, false},
	} {
		vote := voteOn(t, asked("Do it.", "", &pb.ChatMessage{Role: "tool", Content: c.result}))
		if vote.Score != c.score || vote.Certain != c.certain {
			t.Errorf("%s: %+d, certain %v (%s)", c.result, vote.Score, vote.Certain, vote.Rationale)
		}
		if vote.Score < 0 && !strings.HasPrefix(vote.Hint, "Avoid: ") {
			t.Errorf("%s: hint %q", c.result, vote.Hint)
		}
	}
}

func TestTheStrongestEvidenceDecides(t *testing.T) {
	transition := asked("Do it.", "Done.", &pb.ChatMessage{Role: "tool", Content: `{"exit_code": 2}`}, user("Great, thanks!"))
	if vote := voteOn(t, transition); vote.Score != -1 || !vote.Certain {
		t.Error("a certain tool error outranks thanks:", vote)
	}
	transition.NextState.Feedback = []*pb.Feedback{{Score: new(-1.0)}, {Score: new(0.9)}}
	if vote := voteOn(t, transition); vote.Score != 1 || !vote.Certain {
		t.Error("the last thumb outranks both:", vote)
	}
	transition = asked("Capital of France?", "Lyon.", user("No, it is Paris."))
	transition.NextState.Feedback = []*pb.Feedback{{Score: new(-1.0)}}
	if vote := voteOn(t, transition); vote.Score != -1 || !vote.Certain || vote.Hint != "It is Paris." {
		t.Error("the user's words are the hint:", vote)
	}
	transition = asked("Capital of France?", "Lyon.")
	transition.NextState.Feedback = []*pb.Feedback{{Score: new(-1.0), Comment: "Paris"}}
	if vote := voteOn(t, transition); vote.Hint != "Paris." {
		t.Error("the comment is the hint:", vote)
	}
	transition.NextState.Feedback = []*pb.Feedback{{Score: new(0.1)}}
	if vote := voteOn(t, transition); vote.Score != 0 || !vote.Certain {
		t.Error("near zero is zero:", vote)
	}
	if vote := voteOn(t, &pb.Transition{}); vote.Score != 0 || vote.Certain {
		t.Error("nothing came next:", vote)
	}
}

func TestLettersWhoseLowerCaseIsLonger(t *testing.T) {
	vote := voteOn(t, asked("q", "a", user("\u0130\u0130 No, that's wrong, 你好吗朋友, use \u212a\u212a instead"))) // as long in lower case, with other places
	if !utf8.ValidString(vote.Hint) || vote.Score != -1 || !strings.Contains(vote.Hint, "你好吗朋友") {
		t.Error(vote)
	}
}

func TestALongMessageHoldsNothingUp(t *testing.T) {
	long := strings.Repeat("well, this is it. ", 300_000)
	began := time.Now()
	if vote := voteOn(t, asked("q", "a", user("No, that's wrong. "+long))); vote.Score != -1 {
		t.Error(vote)
	}
	if vote := voteOn(t, asked("q", "a", &pb.ChatMessage{Role: "tool", Content: long + "[exit code: 1]"})); vote.Score != -1 {
		t.Error(vote)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Error("it took", took)
	}
}
