package openclaw

import (
	"context"
	"errors"
	"iter"

	"google.golang.org/grpc"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// Policy is a client of the policy server: it answers, and takes feedback.
type Policy struct {
	*Component
	// Raw is the generated stub.
	Raw pb.PolicyServiceClient
}

// DialPolicy makes a client of a policy server; it connects with the first call.
func DialPolicy(opts ...Option) (*Policy, error) {
	c, err := dial(RolePolicy, local(PolicyPort), opts)
	if err != nil {
		return nil, err
	}
	return &Policy{c, pb.NewPolicyServiceClient(c.conn)}, nil
}

// Chat answers a conversation: one start, pieces, one end. Session, type and version go into request.Turn.
func (p *Policy) Chat(ctx context.Context, request *pb.ChatRequest) iter.Seq2[*pb.ChatResponse, error] {
	return once(ctx, func(ctx context.Context) (grpc.ServerStreamingClient[pb.ChatResponse], error) {
		return p.Raw.Chat(ctx, request)
	})
}

// Answer is a whole response.
type Answer struct {
	// Start has the turn's id, its session, and the version that was active as it began.
	Start *pb.ChatStart
	// Message is the response.
	Message *pb.ChatMessage
	// End says why it ended, its length, and which version made which tokens.
	End *pb.GenerationEnd
}

// Complete waits for the whole response.
func (p *Policy) Complete(ctx context.Context, request *pb.ChatRequest) (*Answer, error) {
	answer := &Answer{}
	for event, err := range p.Chat(ctx, request) {
		if err != nil {
			return nil, err
		}
		switch e := event.Event.(type) {
		case *pb.ChatResponse_Start:
			answer.Start = e.Start
		case *pb.ChatResponse_End:
			answer.Message, answer.End = e.End.GetMessage(), e.End.GetGeneration()
		}
	}
	if answer.End == nil {
		return nil, cutShort(p.Component, "PolicyService/Chat")
	}
	return answer, nil
}

// Generate continues token ids, token by token.
func (p *Policy) Generate(ctx context.Context, request *pb.GenerateRequest) iter.Seq2[*pb.GenerateResponse, error] {
	return once(ctx, func(ctx context.Context) (grpc.ServerStreamingClient[pb.GenerateResponse], error) {
		return p.Raw.Generate(ctx, request)
	})
}

// Score gives the natural logarithms of the probabilities of tokenIDs[1:], each given those before it, and the version
// that scored; a nil version takes the active one.
func (p *Policy) Score(ctx context.Context, tokenIDs []int32, version *int64) (logprobs []float32, scoredBy int64, err error) {
	response, err := p.Raw.Score(ctx, &pb.ScoreRequest{TokenIds: tokenIDs, Version: version})
	return response.GetLogprobs(), response.GetVersion(), err
}

// Rate gives feedback on a turn, from -1 (bad) to +1 (good), with a comment that may be empty.
func (p *Policy) Rate(ctx context.Context, turnID string, score float64, comment string) (feedbackID string, err error) {
	return p.Feedback(ctx, &pb.Feedback{TurnId: turnID, Score: &score, Comment: comment})
}

// Feedback gives any feedback: on a session's last turn, or a comment alone.
func (p *Policy) Feedback(ctx context.Context, feedback *pb.Feedback) (feedbackID string, err error) {
	response, err := p.Raw.SubmitFeedback(ctx, &pb.SubmitFeedbackRequest{Feedback: feedback})
	return response.GetFeedbackId(), err
}

// Get tells the active version and those that can be activated, with their manifests.
func (p *Policy) Get(ctx context.Context) (*pb.GetPolicyResponse, error) {
	return p.Raw.GetPolicy(ctx, &pb.GetPolicyRequest{})
}

// WatchPolicy tells the same state at once and again at each change.
func (p *Policy) WatchPolicy(ctx context.Context) iter.Seq2[*pb.PolicyState, error] {
	stream := watch(ctx, p.options, "PolicyService/WatchPolicy",
		func(ctx context.Context) (grpc.ServerStreamingClient[pb.WatchPolicyResponse], error) {
			return p.Raw.WatchPolicy(ctx, &pb.WatchPolicyRequest{})
		})
	return func(yield func(*pb.PolicyState, error) bool) {
		for response, err := range stream {
			if !yield(response.GetState(), err) {
				return
			}
		}
	}
}

// RollBack makes a kept version the active one, also a newer one. The reason is for the log.
func (p *Policy) RollBack(ctx context.Context, version int64, reason string) (*pb.PolicyState, error) {
	return p.activate(ctx, &pb.ActivateVersionRequest{Version: &version, Reason: reason})
}

// Pin makes a version active (nil: the one that is) and keeps it so, whatever the trainer offers.
func (p *Policy) Pin(ctx context.Context, version *int64, reason string) (*pb.PolicyState, error) {
	return p.activate(ctx, &pb.ActivateVersionRequest{Version: version, Reason: reason, Pin: new(true)})
}

// Unpin lets newer versions become active again.
func (p *Policy) Unpin(ctx context.Context, reason string) (*pb.PolicyState, error) {
	return p.activate(ctx, &pb.ActivateVersionRequest{Reason: reason, Pin: new(false)})
}

func (p *Policy) activate(ctx context.Context, request *pb.ActivateVersionRequest) (*pb.PolicyState, error) {
	response, err := p.Raw.ActivateVersion(ctx, request)
	return response.GetState(), err
}

// User is a message of the user.
func User(text string) *pb.ChatMessage { return &pb.ChatMessage{Role: "user", Content: text} }

// System is an instruction for the whole conversation.
func System(text string) *pb.ChatMessage { return &pb.ChatMessage{Role: "system", Content: text} }

// ToolResult is what a tool gave for a call of the response before.
func ToolResult(callID, text string) *pb.ChatMessage {
	return &pb.ChatMessage{Role: "tool", Content: text, ToolCallId: callID}
}

// InSession are the options of a turn that belongs to a session.
func InSession(session string) *pb.TurnOptions { return &pb.TurnOptions{SessionId: session} }

var errCutShort = errors.New("the server ended the stream before the response was complete")

func cutShort(c *Component, method string) error {
	return convert(errCutShort, c.options.address, method)
}
