package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// servicer is JudgeService: translate, call, translate back.
type servicer struct {
	pb.UnimplementedJudgeServiceServer
	service *service
}

const (
	// batchMessages closes a batch, unless a single request has more.
	batchMessages = 256
	// readAhead are requests, each of up to 16 MB; the others wait at the sender, held back by flow control.
	readAhead = 4
)

// JudgeTransitions takes what has arrived in one transaction, and answers with one message for each.
func (s *servicer) JudgeTransitions(stream grpc.BidiStreamingServer[pb.JudgeTransitionsRequest, pb.JudgeTransitionsResponse]) error {
	ctx := stream.Context()
	requests, ended := make(chan []*pb.Transition, readAhead), make(chan error, 1)
	go func() { // reads ahead while a transaction runs; ends with the call
		defer close(requests)
		for {
			request, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case requests <- request.Transitions:
			case <-ctx.Done():
				ended <- ctx.Err()
				return
			}
		}
	}()
	for batch := range requests {
		for more := true; more && len(batch) < batchMessages; {
			select {
			case next, open := <-requests:
				batch, more = append(batch, next...), open
			default:
				more = false
			}
		}
		if len(batch) == 0 {
			continue
		}
		acks, err := s.service.accept(ctx, batch)
		if err != nil {
			return err // nothing of it was taken; the sender comes again
		}
		if err := stream.Send(&pb.JudgeTransitionsResponse{Acks: acks}); err != nil {
			return err
		}
	}
	if err := <-ended; !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// Judge judges now and keeps nothing.
func (s *servicer) Judge(ctx context.Context, request *pb.JudgeRequest) (*pb.JudgeResponse, error) {
	transition := request.Transition
	var missing []string
	for _, part := range []struct {
		field string
		there bool
	}{{"transition.turn.messages", len(transition.GetTurn().GetMessages()) > 0},
		{"transition.turn.response", transition.GetTurn().GetResponse() != nil},
		{"transition.next_state", transition.GetNextState() != nil}} {
		if !part.there {
			missing = append(missing, part.field, "must be set")
		}
	}
	if missing != nil {
		return nil, invalid(missing...)
	}
	judgement, _ := s.service.panel.decide(ctx, transition)
	return &pb.JudgeResponse{Judgement: judgement}, ctx.Err()
}

// WatchJudgements tells each judgement as it is made.
func (s *servicer) WatchJudgements(request *pb.WatchJudgementsRequest, stream grpc.ServerStreamingServer[pb.WatchJudgementsResponse]) error {
	watcher, stop := s.service.watch(request.SessionId)
	defer stop()
	for {
		select {
		case judgement := <-watcher.told:
			if err := stream.Send(judgement); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// ListJudgements tells those of given turns.
func (s *servicer) ListJudgements(_ context.Context, request *pb.ListJudgementsRequest) (*pb.ListJudgementsResponse, error) {
	if n := len(request.TurnIds); n > 1000 {
		return nil, invalid("turn_ids", fmt.Sprintf("%d turns are not allowed: must be at most 1000 turns", n))
	}
	kept, err := s.service.kept(request.TurnIds)
	return &pb.ListJudgementsResponse{Judgements: kept}, err
}
