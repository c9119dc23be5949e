package openclaw

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// sandboxes is an environment server with one sandbox.
type sandboxes struct {
	pb.UnimplementedEnvironmentServiceServer
	mutex    sync.Mutex
	steps    []string
	released atomic.Int32
	renewals atomic.Int32
	renew    func(n int32) error
}

func (s *sandboxes) register(server *grpc.Server) { pb.RegisterEnvironmentServiceServer(server, s) }

func (s *sandboxes) Acquire(_ context.Context, request *pb.AcquireRequest) (*pb.AcquireResponse, error) {
	return &pb.AcquireResponse{LeaseId: request.LeaseId}, nil
}

func (s *sandboxes) Renew(context.Context, *pb.RenewRequest) (*pb.RenewResponse, error) {
	return &pb.RenewResponse{}, s.renew(s.renewals.Add(1))
}

func (s *sandboxes) Release(context.Context, *pb.ReleaseRequest) (*pb.ReleaseResponse, error) {
	s.released.Add(1)
	return &pb.ReleaseResponse{}, nil
}

func (s *sandboxes) Reset(context.Context, *pb.ResetRequest) (*pb.ResetResponse, error) {
	return &pb.ResetResponse{Goal: "win"}, nil
}

func (s *sandboxes) Step(_ context.Context, request *pb.StepRequest) (*pb.StepResponse, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.steps = append(s.steps, request.ActionJson)
	if len(s.steps) == 2 {
		return nil, status.Error(codes.Unavailable, "for a moment")
	}
	return &pb.StepResponse{Reward: new(float64(request.Step))}, nil
}

func TestALeaseCountsItsStepsAndIsGivenBackOnce(t *testing.T) {
	fake := &sandboxes{renew: func(int32) error { return nil }}
	environment := environmentAt(t, serve(t, fake.register))
	lease := must(environment.Acquire(within(t), "terminal", LeaseOptions{}))(t)
	if _, err := lease.Reset(within(t), "", nil); err != nil {
		t.Fatal(err)
	}
	if first, err := lease.Step(within(t), "run", map[string]string{"command": "ls"}); err != nil || first.GetReward() != 1 {
		t.Fatal(first, err)
	}
	_, err := lease.Step(within(t), "run", nil)
	failure(t, err, codes.Unavailable, "UNAVAILABLE")
	if again, err := lease.Step(within(t), "run", nil); err != nil || again.GetReward() != 2 { // the same number again
		t.Fatal(again, err)
	}
	if fake.steps[0] != `{"arguments":{"command":"ls"},"name":"run"}` || fake.steps[2] != `{"arguments":{},"name":"run"}` {
		t.Error(fake.steps)
	}
	for range 2 {
		if err := lease.Close(); err != nil {
			t.Error(err)
		}
	}
	if fake.released.Load() != 1 || lease.Context().Err() == nil {
		t.Error(fake.released.Load())
	}
	_, err = lease.Evaluate(within(t))
	failure(t, err, codes.FailedPrecondition, ReasonLeaseClosed)
}

func TestALeaseIsRenewedUntilTheServerHasLostIt(t *testing.T) {
	fake := &sandboxes{renew: func(n int32) error {
		switch n {
		case 2:
			return status.Error(codes.Unavailable, "for a moment")
		case 4:
			return status.Error(codes.NotFound, "no such lease")
		}
		return nil
	}}
	environment := environmentAt(t, serve(t, fake.register))
	lease := must(environment.Acquire(within(t), "terminal", LeaseOptions{TTL: 100 * time.Millisecond}))(t)
	defer lease.Close()
	select {
	case <-lease.Context().Done():
	case <-within(t).Done():
		t.Fatal("nobody told that it is lost")
	}
	failure(t, context.Cause(lease.Context()), codes.NotFound, "NOT_FOUND")
	if _, err := lease.Step(within(t), "run", nil); AsError(err).Code != codes.NotFound || fake.renewals.Load() != 4 {
		t.Error(err, fake.renewals.Load())
	}
}
