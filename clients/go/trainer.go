package openclaw

import (
	"context"
	"iter"
	"slices"

	"google.golang.org/grpc"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// Trainer is a client of the trainer: versions, samples' fates, and its work.
type Trainer struct {
	*Component
	// Raw is the generated stub.
	Raw pb.TrainerServiceClient
}

// DialTrainer makes a client of a trainer; it connects with the first call.
func DialTrainer(opts ...Option) (*Trainer, error) {
	c, err := dial(RoleTrainer, local(TrainerPort), opts)
	if err != nil {
		return nil, err
	}
	return &Trainer{c, pb.NewTrainerServiceClient(c.conn)}, nil
}

// Versions tells all versions, the newest first, a page at a time as the loop needs them.
func (t *Trainer) Versions(ctx context.Context) iter.Seq2[*pb.PolicyVersion, error] {
	return func(yield func(*pb.PolicyVersion, error) bool) {
		for request := (&pb.ListVersionsRequest{}); ; {
			page, err := t.Raw.ListVersions(ctx, request)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, version := range slices.Backward(page.Versions) {
				if !yield(version, nil) {
					return
				}
			}
			if !page.More || len(page.Versions) == 0 {
				return
			}
			request = &pb.ListVersionsRequest{Before: new(page.Versions[0].GetManifest().GetVersion())}
		}
	}
}

// Version tells one version.
func (t *Trainer) Version(ctx context.Context, version int64) (*pb.PolicyVersion, error) {
	response, err := t.Raw.GetVersion(ctx, &pb.GetVersionRequest{Version: version})
	return response.GetVersion(), err
}

// Fates tells what became of turns' samples, at most 1000; without any, all that are pending.
func (t *Trainer) Fates(ctx context.Context, turnIDs ...string) ([]*pb.SampleStatus, error) {
	response, err := t.Raw.ListSamples(ctx, &pb.ListSamplesRequest{TurnIds: turnIDs})
	return response.GetSamples(), err
}

// WatchTraining tells each training step, publication and skip as it happens.
func (t *Trainer) WatchTraining(ctx context.Context) iter.Seq2[*pb.WatchTrainingResponse, error] {
	return watch(ctx, t.options, "TrainerService/WatchTraining",
		func(ctx context.Context) (grpc.ServerStreamingClient[pb.WatchTrainingResponse], error) {
			return t.Raw.WatchTraining(ctx, &pb.WatchTrainingRequest{})
		})
}

// TrainNow starts a step with what there is.
func (t *Trainer) TrainNow(ctx context.Context) (*pb.TrainNowResponse, error) {
	return t.Raw.TrainNow(ctx, &pb.TrainNowRequest{})
}

// Pause starts no further step until Resume.
func (t *Trainer) Pause(ctx context.Context, reason string) error {
	_, err := t.Raw.Pause(ctx, &pb.PauseRequest{Reason: reason})
	return err
}

// Resume ends a pause.
func (t *Trainer) Resume(ctx context.Context) error {
	_, err := t.Raw.Resume(ctx, &pb.ResumeRequest{})
	return err
}
