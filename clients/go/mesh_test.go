package openclaw

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// peer is what the variable OPENCLAW_RL_TEST_name says; without it the test is left out.
func peer(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv("OPENCLAW_RL_TEST_" + name)
	if value == "" {
		t.Skipf("OPENCLAW_RL_TEST_%s is not set: this test needs a running mesh, see the README", name)
	}
	return value
}

// meshed is a context for a call of a real mesh, on a busy machine.
func meshed(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func session(t *testing.T) string { return fmt.Sprintf("go-%s-%d", t.Name(), time.Now().UnixNano()) }

func short(tokens int32) *pb.SamplingParams {
	return &pb.SamplingParams{MaxTokens: new(tokens), Temperature: new(0.0)}
}

func meshPolicy(t *testing.T) *Policy { return policyAt(t, peer(t, "POLICY")) }

func judgeAt(t *testing.T, address string, options ...Option) *Judge {
	t.Helper()
	judge := must(DialJudge(append(options, WithAddress(address))...))(t)
	t.Cleanup(func() { _ = judge.Close() })
	return judge
}

// thumbsDown is a transition that each judge has to find bad.
func thumbsDown() *pb.Transition {
	return &pb.Transition{
		Turn: &pb.Turn{TurnId: fmt.Sprintf("turn_go_%d", time.Now().UnixNano()), TurnClass: pb.TurnClass_TURN_CLASS_MAIN,
			Messages: []*pb.ChatMessage{User("What is the capital of France?")}, Response: &pb.ChatMessage{Role: "assistant", Content: "Lyon."}},
		NextState: &pb.NextState{Kind: pb.NextStateKind_NEXT_STATE_KIND_FEEDBACK,
			Feedback: []*pb.Feedback{{FeedbackId: "f1", Score: new(-1.0), Comment: "It is Paris."}}}}
}

func TestMeshAllFourAnswer(t *testing.T) {
	for name, role := range map[string]string{"POLICY": RolePolicy, "ENVIRONMENT": RoleEnvironment, "JUDGE": RoleJudge, "TRAINER": RoleTrainer} {
		component := must(dial(role, peer(t, name), nil))(t)
		report, err := component.Check(meshed(t))
		if err != nil || report.Status.Pid == 0 {
			t.Errorf("%s: %v, %v", name, report, err)
		}
		_ = component.Close()
	}
	_, err := policyAt(t, peer(t, "JUDGE")).Check(meshed(t))
	failure(t, err, codes.FailedPrecondition, ReasonWrongComponent)
	_, err = policyAt(t, peer(t, "JUDGE")).Get(meshed(t))
	if e := failure(t, err, codes.Unimplemented, "UNIMPLEMENTED"); !strings.Contains(e.Advice, "another component") {
		t.Error(e)
	}
}

func TestMeshChatWithSessionVersionToolsAndFeedback(t *testing.T) {
	policy, id := meshPolicy(t), session(t)
	state := must(policy.Get(meshed(t)))(t).State
	var start *pb.ChatStart
	var end *pb.ChatEnd
	pieces := ""
	for event, err := range policy.Chat(meshed(t), &pb.ChatRequest{
		Messages: []*pb.ChatMessage{System("Answer briefly."), User("Name a bird.")}, Sampling: short(12),
		Tools: []*pb.ToolDefinition{{Name: "look_up", Description: "Looks a word up.",
			ParametersJson: `{"type":"object","properties":{"word":{"type":"string"}}}`}}, ToolChoice: "none",
		Turn: &pb.TurnOptions{SessionId: id, TurnType: "main", MinVersion: new(int64(0))}}) {
		if err != nil {
			t.Fatal(err)
		}
		switch e := event.Event.(type) {
		case *pb.ChatResponse_Start:
			start = e.Start
		case *pb.ChatResponse_Delta:
			pieces += e.Delta.Content
		case *pb.ChatResponse_End:
			end = e.End
		}
	}
	if start.GetSessionId() != id || start.PolicyVersion < state.ActiveVersion || end == nil || end.Message.Content != pieces || len(end.Generation.Spans) == 0 {
		t.Errorf("%v, %q, %v", start, pieces, end)
	}
	if feedback, err := policy.Rate(meshed(t), start.TurnId, -1, "no"); err != nil || feedback == "" {
		t.Error(feedback, err)
	}
	_, err := policy.Complete(meshed(t), &pb.ChatRequest{Messages: []*pb.ChatMessage{User("hi")}, Turn: &pb.TurnOptions{ExactVersion: new(int64(999_999))}})
	if e := AsError(err); e == nil || e.Code != codes.FailedPrecondition || !strings.HasPrefix(e.Reason, "VERSION_") {
		t.Error(err)
	}
	_, err = policy.Complete(meshed(t), &pb.ChatRequest{})
	if e := failure(t, err, codes.InvalidArgument, "INVALID_ARGUMENT"); len(e.Violations) == 0 || e.Violations[0].Field != "messages" {
		t.Errorf("%+v", e)
	}
	environment := environmentAt(t, peer(t, "ENVIRONMENT"))
	var found *pb.GetSessionResponse
	for ctx := meshed(t); found == nil; { // the turn reaches the environment server in its own time
		if found, err = environment.Session(ctx, id); err != nil && !sleep(ctx, 50*time.Millisecond) {
			t.Fatal(err)
		}
	}
	if found.Turns[0].TurnId != start.TurnId {
		t.Error(found)
	}
	for turn, err := range environment.Turns(meshed(t), &pb.ListTurnsRequest{SessionId: id, PageSize: 1}) {
		if err != nil || turn.TurnId != start.TurnId {
			t.Error(turn, err)
		}
	}
	if _, err := environment.EndSession(meshed(t), id); err != nil {
		t.Error(err)
	}
}

func TestMeshGenerateAndScoreWithTokenIDs(t *testing.T) {
	policy := meshPolicy(t)
	prompt := []int32{504, 3575, 282, 4649, 314} // any will do
	ids, end := slices.Clone(prompt), (*pb.GenerationEnd)(nil)
	for event, err := range policy.Generate(meshed(t), &pb.GenerateRequest{PromptIds: prompt, Sampling: short(6)}) {
		if err != nil {
			t.Fatal(err)
		}
		if token := event.GetToken(); token != nil {
			ids = append(ids, token.Id)
		}
		if event.GetEnd() != nil {
			end = event.GetEnd()
		}
	}
	if end == nil || int(end.CompletionTokens) != len(ids)-len(prompt) {
		t.Fatal(ids, end)
	}
	logprobs, _, err := policy.Score(meshed(t), ids, nil)
	if err != nil || len(logprobs) != len(ids)-1 {
		t.Error(logprobs, err)
	}
	_, _, err = policy.Score(meshed(t), ids, new(int64(999_999)))
	if e := AsError(err); e == nil || e.Code != codes.FailedPrecondition || !strings.HasPrefix(e.Reason, "VERSION_") {
		t.Error(err)
	}
}

func TestMeshADeadlineAndALeftLoopEndAGeneration(t *testing.T) {
	policy := meshPolicy(t)
	request := &pb.ChatRequest{Messages: []*pb.ChatMessage{User("Count from one to a thousand.")}, Sampling: &pb.SamplingParams{MaxTokens: new(int32(1000))}, Turn: &pb.TurnOptions{NoRecord: true}}
	// Less than any answer takes: the model often has said all that it has to say after eight tokens.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err := policy.Complete(ctx, request)
	if failure(t, err, codes.DeadlineExceeded, "DEADLINE_EXCEEDED"); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	for event, err := range policy.Chat(meshed(t), request) {
		if err != nil {
			t.Fatal(err)
		}
		if event.GetDelta() != nil {
			break
		}
	}
}

func TestMeshInteract(t *testing.T) {
	environment := environmentAt(t, peer(t, "ENVIRONMENT"))
	live := must(environment.Interact(meshed(t), InSession(session(t))))(t)
	defer live.Close()
	for round, said := range []string{"Name a bird.", "And a fish."} {
		var turn *pb.Turn
		for event, err := range live.Send(&pb.InteractRequest{Messages: []*pb.ChatMessage{User(said)}, Sampling: short(8)}) {
			if err != nil {
				t.Fatal(err)
			}
			turn = event.GetTurn()
		}
		if len(turn.GetMessages()) != 1+2*round || turn.GetResponse() == nil {
			t.Errorf("round %d: %v", round, turn)
		}
	}
}

func TestMeshWatches(t *testing.T) {
	policy := meshPolicy(t)
	for state, err := range policy.WatchPolicy(meshed(t)) {
		if err != nil || state.ActiveVersion < 0 || len(state.KeptVersions) == 0 {
			t.Fatal(state, err)
		}
		break
	}
	n := 0
	for stats, err := range policy.WatchStats(meshed(t), 100*time.Millisecond) {
		if err != nil || stats.Status.Name != RolePolicy {
			t.Fatal(stats, err)
		}
		if n++; n == 3 {
			break
		}
	}
	for _, err := range policy.WatchStats(meshed(t), time.Millisecond) {
		if e := failure(t, err, codes.InvalidArgument, "INVALID_ARGUMENT"); e.Violations[0].Field != "interval" {
			t.Error(e)
		}
	}
}

func TestMeshPinAndRollBack(t *testing.T) {
	policy := meshPolicy(t)
	state, err := policy.Pin(meshed(t), nil, "a test")
	if err != nil || !state.Pinned {
		t.Fatal(state, err)
	}
	defer func() { _, _ = policy.Unpin(meshed(t), "the test is over") }()
	if state, err = policy.RollBack(meshed(t), state.ActiveVersion, "a test"); err != nil {
		t.Error(err)
	}
	_, err = policy.RollBack(meshed(t), 999_999, "a test")
	if e := AsError(err); e == nil || e.Code != codes.FailedPrecondition {
		t.Error(err)
	}
	if state, err = policy.Unpin(meshed(t), "the test is over"); err != nil || state.Pinned {
		t.Error(state, err)
	}
	trainer := must(DialTrainer(WithAddress(peer(t, "TRAINER"))))(t)
	defer trainer.Close()
	count := 0
	for version, err := range trainer.Versions(meshed(t)) {
		if err != nil {
			t.Fatal(err)
		}
		if count++; count == 1 {
			if same, err := trainer.Version(meshed(t), version.Manifest.Version); err != nil || same.Manifest.Digest != version.Manifest.Digest {
				t.Error(same, err)
			}
		}
	}
	if count == 0 {
		t.Error("no version, not even the base")
	}
	_, err = trainer.Version(meshed(t), 999_999)
	failure(t, err, codes.NotFound, "NOT_FOUND")
}

func TestMeshALeaseFromAcquireToRelease(t *testing.T) {
	environment := environmentAt(t, peer(t, "ENVIRONMENT"))
	lease := must(environment.Acquire(meshed(t), "tool_call", LeaseOptions{TTL: 3 * time.Second, Wait: 30 * time.Second, Holder: "go test"}))(t)
	defer lease.Close()
	tasks := must(environment.Raw.ListTasks(meshed(t), &pb.ListTasksRequest{Type: "tool_call"}))(t).Tasks
	first := must(lease.Reset(meshed(t), tasks[0].TaskId, nil))(t)
	if len(first.Tools) == 0 || !json.Valid([]byte(first.Observation.Json)) {
		t.Fatal(first)
	}
	var parameters struct{ Required []string }
	if err := json.Unmarshal([]byte(first.Tools[0].ParametersJson), &parameters); err != nil {
		t.Fatal(err)
	}
	arguments := map[string]any{}
	for _, name := range parameters.Required {
		arguments[name] = 1
	}
	for range 2 {
		if _, err := lease.Step(meshed(t), first.Tools[0].Name, arguments); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(4 * time.Second) // longer than the lease lives without being renewed
	if check, err := lease.Evaluate(meshed(t)); err != nil || check.Outcome < 0 || check.Outcome > 1 {
		t.Error(check, err)
	}
	if err := lease.Close(); err != nil {
		t.Error(err)
	}
	_, err := lease.Step(meshed(t), first.Tools[0].Name, nil)
	failure(t, err, codes.FailedPrecondition, ReasonLeaseClosed)
	left := must(environment.Raw.ListLeases(meshed(t), &pb.ListLeasesRequest{}))(t).Leases
	if slices.ContainsFunc(left, func(l *pb.Lease) bool { return l.LeaseId == lease.Info.LeaseId }) {
		t.Error("the lease was not given back")
	}
	_, err = environment.Acquire(meshed(t), "no-such", LeaseOptions{})
	if e := AsError(err); e == nil || e.Code != codes.InvalidArgument && e.Code != codes.NotFound {
		t.Error(err)
	}
}

func TestMeshJudgeAndTheRing(t *testing.T) {
	judge := judgeAt(t, peer(t, "JUDGE"), WithMesh(peer(t, "MESH"), ""))
	transition := thumbsDown()
	judgement, err := judge.Judge(meshed(t), transition)
	if err != nil || judgement.Score != -1 || !strings.Contains(judgement.Hint, "Paris") {
		t.Fatal(judgement, err)
	}
	_, err = judge.Judge(meshed(t), &pb.Transition{})
	if e := failure(t, err, codes.InvalidArgument, "INVALID_ARGUMENT"); len(e.Violations) != 3 {
		t.Error(e)
	}
	transition.Turn.SessionId = session(t)
	transition.Turn.RequestedAt = timestamppb.Now()
	refused := make(chan string, 1)
	delivery := Deliver(judge.TransitionsRing(), SenderOptions{OnReject: func(id, reason string) { refused <- id }})
	defer delivery.Close()
	side := thumbsDown()
	side.Turn.TurnClass = pb.TurnClass_TURN_CLASS_SIDE
	if err := delivery.Send(meshed(t), transition, side); err != nil {
		t.Fatal(err)
	}
	if err := delivery.Flush(meshed(t)); err != nil {
		t.Fatal(err)
	}
	if id := <-refused; id != side.Turn.TurnId {
		t.Error(id)
	}
	kept, err := judge.Judgements(meshed(t), transition.Turn.TurnId)
	for end := time.Now().Add(time.Minute); err == nil && len(kept) == 0 && time.Now().Before(end); { // acknowledged before it is judged
		time.Sleep(20 * time.Millisecond)
		kept, err = judge.Judgements(meshed(t), transition.Turn.TurnId)
	}
	if err != nil || len(kept) != 1 || kept[0].Score != -1 {
		t.Error(kept, err)
	}
}
