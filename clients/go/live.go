package openclaw

import (
	"context"
	"io"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// Live is a session over one stream: say something, read the answer, say the next thing. The environment server keeps
// the conversation. Not for concurrent use.
type Live struct {
	stream  grpc.BidiStreamingClient[pb.InteractRequest, pb.InteractResponse]
	cancel  context.CancelFunc
	turn    *pb.TurnOptions
	address string
	broken  *Error
}

// Interact opens a live session; a nil turn leaves session, type and version to the mesh. Close it.
func (e *Environment) Interact(ctx context.Context, turn *pb.TurnOptions) (*Live, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := e.Raw.Interact(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	return &Live{stream: stream, cancel: cancel, turn: turn, address: e.options.address}, nil
}

// Say sends messages of the user or of tools; the pieces of the answer come, and with the last one the whole turn.
func (l *Live) Say(messages ...*pb.ChatMessage) iter.Seq2[*pb.InteractResponse, error] {
	return l.Send(&pb.InteractRequest{Messages: messages})
}

// Send is Say with tools and sampling, which stay for what is said later; the turn of Interact takes the place of the
// first request's. Leaving the loop before the turn came ends
// the live session.
func (l *Live) Send(request *pb.InteractRequest) iter.Seq2[*pb.InteractResponse, error] {
	return func(yield func(*pb.InteractResponse, error) bool) {
		if l.broken != nil {
			yield(nil, l.broken)
			return
		}
		sent := request
		if l.turn != nil { // the first message says what session it is
			sent = &pb.InteractRequest{Turn: l.turn, Messages: request.Messages, Tools: request.Tools, Sampling: request.Sampling}
			l.turn = nil
		}
		if err := l.stream.Send(sent); err != nil && err != io.EOF { // Recv tells why the stream has ended
			yield(nil, l.breakOff(AsError(err)))
			return
		}
		for {
			response, err := l.stream.Recv()
			if err != nil {
				failed := AsError(err)
				if err == io.EOF {
					failed = &Error{Code: codes.Unavailable, Reason: "UNAVAILABLE", Address: l.address,
						Method: "EnvironmentService/Interact", Message: "the server ended the live session"}
				}
				yield(nil, l.breakOff(failed))
				return
			}
			last := response.GetTurn() != nil
			if !yield(response, nil) {
				if !last {
					l.breakOff(&Error{Code: codes.Canceled, Reason: "CANCELLED", Address: l.address,
						Method: "EnvironmentService/Interact", Message: "the answer before was left in its middle; open another live session"})
				}
				return
			}
			if last {
				return
			}
		}
	}
}

func (l *Live) breakOff(err *Error) *Error {
	l.broken = err
	l.cancel()
	return err
}

// Close ends the live session; the session itself goes on, see Environment.EndSession.
func (l *Live) Close() error {
	if l.broken == nil {
		_ = l.stream.CloseSend()
		l.breakOff(&Error{Code: codes.Canceled, Reason: "CANCELLED", Address: l.address,
			Method: "EnvironmentService/Interact", Message: "the live session was closed"})
	}
	return nil
}
