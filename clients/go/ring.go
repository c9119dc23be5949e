package openclaw

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// Ring is one of the three streams on which every turn goes round the mesh: turns to the environment server,
// transitions to the judge, samples to the trainer. Its receiver acknowledges each message by id, once it is on disk.
type Ring[M proto.Message] struct {
	name, address string
	id            func(M) string
	open          func(context.Context) (ringStream[M], error)
}

// ringStream is an open stream of it.
type ringStream[M proto.Message] interface {
	// taken waits until the server has taken the stream (true), or has ended it.
	taken() bool
	send(messages []M) error
	recv() ([]*pb.Ack, error)
}

// ID is the id by which a message is acknowledged; empty when it has none.
func (r Ring[M]) ID(message M) string { return r.id(message) }

// bidi is a ringStream made of a generated one.
type bidi[M proto.Message, Req, Res any] struct {
	stream grpc.BidiStreamingClient[Req, Res]
	pack   func([]M) *Req
	acks   func(*Res) []*pb.Ack
}

func (b *bidi[M, Req, Res]) send(messages []M) error { return b.stream.Send(b.pack(messages)) }

func (b *bidi[M, Req, Res]) taken() bool {
	header, err := b.stream.Header()
	return header != nil && err == nil
}

func (b *bidi[M, Req, Res]) recv() ([]*pb.Ack, error) {
	response, err := b.stream.Recv()
	if err != nil {
		return nil, err
	}
	return b.acks(response), nil
}

func opener[M proto.Message, Req, Res any](open func(context.Context, ...grpc.CallOption) (grpc.BidiStreamingClient[Req, Res], error),
	pack func([]M) *Req, acks func(*Res) []*pb.Ack) func(context.Context) (ringStream[M], error) {
	return func(ctx context.Context) (ringStream[M], error) {
		stream, err := open(ctx)
		if err != nil {
			return nil, err
		}
		return &bidi[M, Req, Res]{stream, pack, acks}, nil
	}
}

// TurnsRing takes turns, feedback and ends of sessions to an environment server.
func (e *Environment) TurnsRing() Ring[*pb.PolicyEvent] {
	return Ring[*pb.PolicyEvent]{"turns", e.options.address, eventID, opener(e.Raw.RecordTurns,
		func(events []*pb.PolicyEvent) *pb.RecordTurnsRequest { return &pb.RecordTurnsRequest{Events: events} },
		(*pb.RecordTurnsResponse).GetAcks)}
}

// TransitionsRing takes transitions to a judge.
func (j *Judge) TransitionsRing() Ring[*pb.Transition] {
	return Ring[*pb.Transition]{"transitions", j.options.address,
		func(t *pb.Transition) string { return t.GetTurn().GetTurnId() }, opener(j.Raw.JudgeTransitions,
			func(transitions []*pb.Transition) *pb.JudgeTransitionsRequest {
				return &pb.JudgeTransitionsRequest{Transitions: transitions}
			}, (*pb.JudgeTransitionsResponse).GetAcks)}
}

// SamplesRing takes samples to a trainer.
func (t *Trainer) SamplesRing() Ring[*pb.Sample] {
	return Ring[*pb.Sample]{"samples", t.options.address,
		func(s *pb.Sample) string { return s.GetTransition().GetTurn().GetTurnId() }, opener(t.Raw.SubmitSamples,
			func(samples []*pb.Sample) *pb.SubmitSamplesRequest { return &pb.SubmitSamplesRequest{Samples: samples} },
			(*pb.SubmitSamplesResponse).GetAcks)}
}

func eventID(event *pb.PolicyEvent) string {
	switch e := event.GetEvent().(type) {
	case *pb.PolicyEvent_Turn:
		return e.Turn.GetTurnId()
	case *pb.PolicyEvent_Feedback:
		return e.Feedback.GetFeedbackId()
	case *pb.PolicyEvent_SessionEnd:
		return e.SessionEnd.GetEventId()
	case *pb.PolicyEvent_SessionActive:
		return e.SessionActive.GetEventId()
	}
	return ""
}
