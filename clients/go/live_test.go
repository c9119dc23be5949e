package openclaw

import (
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// talkative is an environment server that answers with what it was told; after "bye" it ends the stream.
type talkative struct {
	pb.UnimplementedEnvironmentServiceServer
	ended chan struct{}
}

func (s *talkative) Interact(stream grpc.BidiStreamingServer[pb.InteractRequest, pb.InteractResponse]) error {
	defer close(s.ended)
	session := ""
	for {
		request, err := stream.Recv()
		if err != nil || request.Messages[0].Content == "bye" {
			return nil
		}
		if request.Turn != nil {
			session = request.Turn.SessionId
		}
		_ = stream.Send(&pb.InteractResponse{Event: &pb.InteractResponse_Content{Content: request.Messages[0].Content}})
		_ = stream.Send(&pb.InteractResponse{Event: &pb.InteractResponse_Turn{Turn: &pb.Turn{SessionId: session}}})
	}
}

func liveAt(t *testing.T) (*Live, *talkative) {
	t.Helper()
	fake := &talkative{ended: make(chan struct{})}
	environment := environmentAt(t, serve(t, func(server *grpc.Server) { pb.RegisterEnvironmentServiceServer(server, fake) }))
	live := must(environment.Interact(within(t), InSession("s")))(t)
	t.Cleanup(func() { _ = live.Close() })
	return live, fake
}

func TestALiveSession(t *testing.T) {
	live, fake := liveAt(t)
	for _, said := range []string{"one", "two"} {
		heard := ""
		var turn *pb.Turn
		for event, err := range live.Say(User(said)) {
			if err != nil {
				t.Fatal(err)
			}
			heard += event.GetContent()
			turn = event.GetTurn()
		}
		if heard != said || turn.GetSessionId() != "s" {
			t.Errorf("%q, %v", heard, turn)
		}
	}
	for _, err := range live.Say(User("bye")) {
		if e := failure(t, err, codes.Unavailable, "UNAVAILABLE"); !strings.Contains(e.Message, "ended the live session") {
			t.Error(e)
		}
	}
	<-fake.ended
}

func TestALiveSessionEndsWhenAnAnswerIsLeft(t *testing.T) {
	live, fake := liveAt(t)
	for range live.Say(User("one")) {
		break
	}
	<-fake.ended // the call is cancelled
	for _, err := range live.Say(User("two")) {
		if e := failure(t, err, codes.Canceled, "CANCELLED"); !strings.Contains(e.Message, "left in its middle") {
			t.Error(e)
		}
	}
}

func TestAClosedLiveSession(t *testing.T) {
	live, fake := liveAt(t)
	_ = live.Close()
	<-fake.ended
	for _, err := range live.Say(User("one")) {
		failure(t, err, codes.Canceled, "CANCELLED")
	}
}
