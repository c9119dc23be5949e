package main

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// rules is a voter without a model. The strongest evidence decides: explicit feedback, certain tool errors, the user's
// words (words.go), other signs in tool results.
type rules struct{}

// readable are the characters of a message that the rules look at: a turn's judging must not hold up the others'.
const readable = 4000

func (rules) name() string { return "rules" }

func (rules) vote(_ context.Context, transition *pb.Transition) (*pb.Vote, error) {
	request := ""
	for _, message := range transition.GetTurn().GetMessages() {
		if message.Role == "user" {
			request = middleCut(textOf(message), readable)
		}
	}
	state, answer := transition.GetNextState(), textOf(transition.GetTurn().GetResponse())
	var tools, said *pb.Vote
	for _, message := range state.GetMessages() {
		switch message.Role {
		case "tool":
			if sign := toolSign(textOf(message)); sign != nil && (tools == nil || sign.Score < tools.Score || sign.Certain && !tools.Certain) {
				tools = sign
			}
		case "user":
			if heard := heardIn(textOf(message), request, answer); said == nil || heard.Score != 0 {
				said = heard
			}
		}
	}
	told := feedbackSign(state.GetFeedback(), request, answer)
	best := strongest(told, said, tools)
	if best == nil {
		return &pb.Vote{Rationale: "nothing came next that says anything"}, nil
	}
	if best.Score < 0 { // the user's words say better what to do than a tool's error or a thumb
		for _, sign := range []*pb.Vote{told, said} {
			if sign != nil && sign.Score < 0 && sign.Hint != "" {
				best.Hint = sign.Hint
				break
			}
		}
	}
	return best, nil
}

// strongest is the first certain sign, else the first with a score, else any.
func strongest(signs ...*pb.Vote) *pb.Vote {
	for _, fits := range []func(*pb.Vote) bool{func(v *pb.Vote) bool { return v.Certain },
		func(v *pb.Vote) bool { return v.Score != 0 }, func(*pb.Vote) bool { return true }} {
		for _, sign := range signs {
			if sign != nil && fits(sign) {
				return sign
			}
		}
	}
	return nil
}

// feedbackSign reads thumbs and comments: the last score counts, and is certain.
func feedbackSign(given []*pb.Feedback, request, answer string) *pb.Vote {
	var sign *pb.Vote
	var comments []string
	for _, feedback := range given {
		if feedback.Comment != "" {
			comments = append(comments, feedback.Comment)
		}
		if feedback.Score != nil {
			sign = &pb.Vote{Certain: true, Rationale: fmt.Sprintf("explicit feedback: %+g", *feedback.Score)}
			if *feedback.Score > 0.2 {
				sign.Score = 1
			} else if *feedback.Score < -0.2 {
				sign.Score = -1
			}
		}
	}
	if len(comments) == 0 {
		return sign
	}
	heard := heardIn(strings.Join(comments, "\n"), request, answer)
	if sign == nil {
		return heard
	}
	if sign.Score < 0 {
		if sign.Hint = heard.Hint; sign.Hint == "" {
			sign.Hint = sentence(comments[len(comments)-1])
		}
	}
	return sign
}

var (
	exitCode    = regexp.MustCompile(`(?i)\[?(?:exit|return)[ _]?code:? *(-?\d+)`)
	saysWhat    = regexp.MustCompile(`(?i)error|exception|not found|no such|denied|failed`)
	looksFailed = regexp.MustCompile(`(?i)^\s*(?:error\b|fatal\b|traceback \(most recent call last\)|[a-z.]*(?:error|exception):|(?:ba)?sh: .*(?:not found|no such file))|\bTraceback \(most recent call last\)`)
)

// toolSign reads one tool result: certain when it says itself that it failed, a guess when its text looks so.
func toolSign(text string) *pb.Vote {
	failed := func(certain bool, why string) *pb.Vote {
		text = middleCut(text, readable)
		return &pb.Vote{Score: -1, Certain: certain, Rationale: "a tool's result: " + cut(why, 200), Hint: sentence(errorLine(text, why))}
	}
	var result map[string]any
	if json.Unmarshal([]byte(text), &result) == nil {
		for _, name := range []string{"is_error", "isError"} {
			if result[name] == true {
				return failed(true, name+" is true")
			}
		}
		for _, name := range []string{"success", "ok"} {
			if result[name] == false {
				return failed(true, name+" is false")
			}
		}
		switch e := result["error"].(type) {
		case string:
			if e != "" {
				return failed(true, e)
			}
		case map[string]any:
			return failed(true, fmt.Sprint(e["message"]))
		}
		for _, name := range []string{"exit_code", "exitCode", "returncode"} {
			if code, is := result[name].(float64); is {
				if code != 0 {
					return failed(true, fmt.Sprintf("exit code %g", code))
				}
				return &pb.Vote{Score: 1, Rationale: "a tool's result: exit code 0"}
			}
		}
		for _, name := range []string{"status", "status_code"} {
			if code, is := result[name].(float64); is && code >= 400 && code < 600 {
				return failed(true, fmt.Sprintf("status %g", code))
			}
		}
		if result["success"] == true || result["ok"] == true {
			return &pb.Vote{Score: 1, Rationale: "a tool's result says that it went well"}
		}
		return nil
	}
	text = middleCut(text, readable)
	if code := exitCode.FindStringSubmatch(text); code != nil {
		if code[1] != "0" {
			return failed(true, "exit code "+code[1])
		}
		return &pb.Vote{Score: 1, Rationale: "a tool's result: exit code 0"}
	}
	if looksFailed.MatchString(text) {
		return failed(false, "it looks like an error")
	}
	return nil
}

// errorLine is the line of a tool's result that says what went wrong.
func errorLine(text, otherwise string) string {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "{") && saysWhat.MatchString(line) &&
			!strings.HasPrefix(line, "Traceback") {
			return "Avoid: " + line
		}
	}
	return "Avoid: " + otherwise
}

// textOf is a message's text, that of its parts included.
func textOf(message *pb.ChatMessage) string {
	texts := []string{message.GetContent()}
	for _, part := range message.GetParts() {
		texts = append(texts, part.GetText())
	}
	return strings.TrimSpace(strings.Join(texts, "\n"))
}
