package openclaw

import (
	"context"
	"iter"

	"google.golang.org/grpc"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// Judge is a client of the judge.
type Judge struct {
	*Component
	// Raw is the generated stub.
	Raw pb.JudgeServiceClient
}

// DialJudge makes a client of a judge; it connects with the first call.
func DialJudge(opts ...Option) (*Judge, error) {
	c, err := dial(RoleJudge, local(JudgePort), opts)
	if err != nil {
		return nil, err
	}
	return &Judge{c, pb.NewJudgeServiceClient(c.conn)}, nil
}

// Judge judges a transition now, without keeping it. Its turn needs messages and a response.
func (j *Judge) Judge(ctx context.Context, transition *pb.Transition) (*pb.Judgement, error) {
	response, err := j.Raw.Judge(ctx, &pb.JudgeRequest{Transition: transition})
	return response.GetJudgement(), err
}

// Judgements tells those of given turns (at most 1000) that there are.
func (j *Judge) Judgements(ctx context.Context, turnIDs ...string) ([]*pb.Judgement, error) {
	response, err := j.Raw.ListJudgements(ctx, &pb.ListJudgementsRequest{TurnIds: turnIDs})
	return response.GetJudgements(), err
}

// WatchJudgements tells each judgement as it is made, of one session or ("") of all.
func (j *Judge) WatchJudgements(ctx context.Context, session string) iter.Seq2[*pb.WatchJudgementsResponse, error] {
	return watch(ctx, j.options, "JudgeService/WatchJudgements",
		func(ctx context.Context) (grpc.ServerStreamingClient[pb.WatchJudgementsResponse], error) {
			return j.Raw.WatchJudgements(ctx, &pb.WatchJudgementsRequest{SessionId: session})
		})
}
