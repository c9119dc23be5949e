package openclaw

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// streaming is a policy server whose streams do what the test says.
type streaming struct {
	pb.UnimplementedPolicyServiceServer
	chat  func(*pb.ChatRequest, grpc.ServerStreamingServer[pb.ChatResponse]) error
	watch func(n int32, stream grpc.ServerStreamingServer[pb.WatchPolicyResponse]) error
	n     atomic.Int32
}

func (s *streaming) Chat(request *pb.ChatRequest, stream grpc.ServerStreamingServer[pb.ChatResponse]) error {
	return s.chat(request, stream)
}

func (s *streaming) WatchPolicy(_ *pb.WatchPolicyRequest, stream grpc.ServerStreamingServer[pb.WatchPolicyResponse]) error {
	return s.watch(s.n.Add(1), stream)
}

func (s *streaming) register(server *grpc.Server) { pb.RegisterPolicyServiceServer(server, s) }

func piece(text string) *pb.ChatResponse {
	return &pb.ChatResponse{Event: &pb.ChatResponse_Delta{Delta: &pb.ChatDelta{Content: text}}}
}

func versioned(version int64) *pb.WatchPolicyResponse {
	return &pb.WatchPolicyResponse{State: &pb.PolicyState{ActiveVersion: version}}
}

func TestCompleteGathersTheAnswer(t *testing.T) {
	fake := &streaming{chat: func(request *pb.ChatRequest, stream grpc.ServerStreamingServer[pb.ChatResponse]) error {
		_ = stream.Send(&pb.ChatResponse{Event: &pb.ChatResponse_Start{Start: &pb.ChatStart{TurnId: "turn_1", SessionId: request.Turn.SessionId, PolicyVersion: 4}}})
		_ = stream.Send(piece("hel"))
		_ = stream.Send(piece("lo"))
		if request.Messages[0].Content == "cut" {
			return nil
		}
		return stream.Send(&pb.ChatResponse{Event: &pb.ChatResponse_End{End: &pb.ChatEnd{Message: &pb.ChatMessage{Role: "assistant", Content: "hello"}, Generation: &pb.GenerationEnd{CompletionTokens: 2}}}})
	}}
	policy := policyAt(t, serve(t, fake.register))
	answer, err := policy.Complete(within(t), &pb.ChatRequest{Messages: []*pb.ChatMessage{User("hi")}, Turn: InSession("s")})
	if err != nil || answer.Start.SessionId != "s" || answer.Start.PolicyVersion != 4 || answer.Message.Content != "hello" || answer.End.CompletionTokens != 2 {
		t.Errorf("%v, %v", answer, err)
	}
	_, err = policy.Complete(within(t), &pb.ChatRequest{Messages: []*pb.ChatMessage{User("cut")}, Turn: InSession("s")})
	if err == nil || !strings.Contains(err.Error(), "before the response was complete") {
		t.Errorf("a response without an end: %v", err)
	}
}

func TestLeavingTheLoopCancelsTheCall(t *testing.T) {
	ended := make(chan error, 1)
	fake := &streaming{chat: func(_ *pb.ChatRequest, stream grpc.ServerStreamingServer[pb.ChatResponse]) error {
		_ = stream.Send(piece("one"))
		<-stream.Context().Done()
		ended <- stream.Context().Err()
		return nil
	}}
	policy := policyAt(t, serve(t, fake.register))
	for event, err := range policy.Chat(within(t), &pb.ChatRequest{}) {
		if err != nil || event.GetDelta().Content != "one" {
			t.Fatal(event, err)
		}
		break
	}
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-within(t).Done():
		t.Error("the server was not told")
	}
}

func TestAWatchConnectsAgain(t *testing.T) {
	fake := &streaming{watch: func(n int32, stream grpc.ServerStreamingServer[pb.WatchPolicyResponse]) error {
		_ = stream.Send(versioned(int64(n)))
		if n == 2 {
			return nil // the server may also end it politely
		}
		return status.Error(codes.Unavailable, "this server is stopping")
	}}
	policy := policyAt(t, serve(t, fake.register), fast)
	var seen []int64
	for state, err := range policy.WatchPolicy(within(t)) {
		if err != nil {
			t.Fatal(err)
		}
		if seen = append(seen, state.ActiveVersion); len(seen) == 4 {
			break
		}
	}
	if seen[3] != 4 {
		t.Error(seen)
	}
}

func TestAWatchEndsWhenItIsRefused(t *testing.T) {
	fake := &streaming{watch: func(n int32, stream grpc.ServerStreamingServer[pb.WatchPolicyResponse]) error {
		return status.Error(codes.PermissionDenied, "not for you")
	}}
	policy := policyAt(t, serve(t, fake.register), fast)
	for state, err := range policy.WatchPolicy(within(t)) {
		failure(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
		if state != nil {
			t.Error(state)
		}
	}
	if fake.n.Load() != 1 {
		t.Errorf("asked %d times", fake.n.Load())
	}
}

func TestAWatchEndsWithItsContext(t *testing.T) {
	policy := policyAt(t, "127.0.0.1:1", fast) // nothing is there, so it tries again and again
	ctx, cancel := context.WithCancel(within(t))
	time.AfterFunc(100*time.Millisecond, cancel)
	var last error
	for _, err := range policy.WatchPolicy(ctx) {
		last = err
	}
	failure(t, last, codes.Canceled, "CANCELLED")
}

func TestAWatchNeedNotConnectAgain(t *testing.T) {
	policy := policyAt(t, "127.0.0.1:1", WithReconnect(false))
	var last error
	for _, err := range policy.WatchPolicy(within(t)) {
		last = err
	}
	failure(t, last, codes.Unavailable, "UNAVAILABLE")
}

func TestPausesGrow(t *testing.T) {
	b := Backoff{First: 100 * time.Millisecond, Max: 5 * time.Second}
	for n, least := range map[int]time.Duration{0: 100 * time.Millisecond, 3: 800 * time.Millisecond, 9: 5 * time.Second, 1000: 5 * time.Second} {
		if pause := b.after(n, nil); pause < least || pause > least*6/5 {
			t.Errorf("attempt %d: %s", n, pause)
		}
	}
	if pause := b.after(0, &Error{RetryAfter: time.Minute}); pause != time.Minute {
		t.Errorf("the server asked for a minute: %s", pause)
	}
}
