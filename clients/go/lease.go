package openclaw

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// LeaseOptions say how a sandbox is leased; all fields may be left out.
type LeaseOptions struct {
	// ID of the lease: repeating it gives the same lease. Empty makes one.
	ID string
	// Wait is the longest wait for a free sandbox; 0 does not wait.
	Wait time.Duration
	// TTL is the time after which the server takes the lease back when nobody renews it; 0 means a minute. The lease
	// renews itself three times in it.
	TTL time.Duration
	// Holder says who asks, for operators.
	Holder string
}

// Lease is a sandbox of one's own. It renews itself until Close gives it back. For one action at a time.
type Lease struct {
	// Info is what the server told of it: its id, the schemas of actions and observations.
	Info *pb.AcquireResponse

	env   *Environment
	ctx   context.Context
	end   context.CancelCauseFunc
	wait  sync.WaitGroup // for the renewing
	mutex sync.Mutex
	step  int64
	close func() error
}

// Acquire leases a sandbox of an environment. ctx bounds the call alone; Close gives the sandbox back.
func (e *Environment) Acquire(ctx context.Context, environment string, options LeaseOptions) (*Lease, error) {
	request := &pb.AcquireRequest{LeaseId: options.ID, Type: environment, Holder: options.Holder}
	if request.LeaseId == "" {
		request.LeaseId = "lease_" + strings.ToLower(rand.Text())
	}
	if options.Wait > 0 {
		request.Wait = durationpb.New(options.Wait)
		if _, has := ctx.Deadline(); !has && e.options.timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, e.options.timeout+options.Wait)
			defer cancel()
		}
	}
	if options.TTL == 0 {
		options.TTL = time.Minute
	}
	request.Ttl = durationpb.New(options.TTL)
	response, err := e.Raw.Acquire(ctx, request)
	if err != nil {
		switch AsError(err).Code {
		case codes.DeadlineExceeded, codes.Canceled, codes.Unavailable: // the server may have given it nevertheless
			go e.release(context.WithoutCancel(ctx), request.LeaseId)
		}
		return nil, err
	}
	lease := &Lease{Info: response, env: e}
	lease.ctx, lease.end = context.WithCancelCause(context.WithoutCancel(ctx))
	lease.close = sync.OnceValue(func() error {
		lease.end(&Error{Code: codes.FailedPrecondition, Reason: ReasonLeaseClosed, Address: e.options.address,
			Message: "the lease " + response.LeaseId + " was given back; acquire another one"})
		lease.wait.Wait()
		return e.release(context.WithoutCancel(ctx), response.LeaseId)
	})
	lease.wait.Go(func() { lease.renew(options.TTL) })
	return lease, nil
}

func (e *Environment) release(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := e.Raw.Release(ctx, &pb.ReleaseRequest{LeaseId: id})
	return err
}

// Context ends when the lease does: given back, taken back by the server, or not renewed in time. context.Cause tells
// why.
func (l *Lease) Context() context.Context { return l.ctx }

// Reset puts the sandbox into the initial state of a task ("" for none); a nil seed is the server's choice.
func (l *Lease) Reset(ctx context.Context, taskID string, seed *int64) (*pb.ResetResponse, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return use(l, ctx, func(ctx context.Context) (*pb.ResetResponse, error) {
		response, err := l.env.Raw.Reset(ctx, &pb.ResetRequest{LeaseId: l.Info.LeaseId, TaskId: taskID, Seed: seed})
		if err == nil {
			l.step = 0
		}
		return response, err
	})
}

// Step does one action; arguments is anything that encoding/json makes an object of, nil means none. After an error
// that is worth repeating call it again with the same action: the server does it once.
func (l *Lease) Step(ctx context.Context, name string, arguments any) (*pb.StepResponse, error) {
	if arguments == nil {
		arguments = struct{}{}
	}
	action, err := json.Marshal(map[string]any{"name": name, "arguments": arguments})
	if err != nil {
		return nil, &Error{Code: codes.InvalidArgument, Reason: "INVALID_ARGUMENT", Message: "arguments: " + err.Error(), cause: err}
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return use(l, ctx, func(ctx context.Context) (*pb.StepResponse, error) {
		response, err := l.env.Raw.Step(ctx, &pb.StepRequest{LeaseId: l.Info.LeaseId, Step: l.step + 1, ActionJson: string(action)})
		if err == nil {
			l.step++
		}
		return response, err
	})
}

// Evaluate runs the task's check: an outcome from 0 (failed) to 1 (done).
func (l *Lease) Evaluate(ctx context.Context) (*pb.EvaluateResponse, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return use(l, ctx, func(ctx context.Context) (*pb.EvaluateResponse, error) {
		return l.env.Raw.Evaluate(ctx, &pb.EvaluateRequest{LeaseId: l.Info.LeaseId})
	})
}

// Close gives the sandbox back. Any number of times.
func (l *Lease) Close() error { return l.close() }

// use makes a call on the lease, which ends with the lease.
func use[T any](l *Lease, ctx context.Context, call func(context.Context) (*T, error)) (*T, error) {
	if l.ctx.Err() != nil {
		return nil, context.Cause(l.ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	response, err := call(ctx)
	if err != nil && l.ctx.Err() != nil {
		return nil, context.Cause(l.ctx)
	}
	return response, err
}

// renew keeps the lease until it ends, or until the server has lost it. It counts by this machine's clock, which may
// differ from the server's.
func (l *Lease) renew(ttl time.Duration) {
	renewed := time.Now()
	for pause := ttl / 3; sleep(l.ctx, pause); {
		asked := time.Now()
		_, err := l.env.Raw.Renew(l.ctx, &pb.RenewRequest{LeaseId: l.Info.LeaseId})
		switch {
		case err == nil:
			renewed, pause = asked, ttl/3
		case lasting(AsError(err)) || time.Since(renewed) > ttl:
			l.end(AsError(err))
			return
		default: // the server may be away for a moment
			pause = ttl / 10
			l.env.options.logger.Warn("the lease could not be renewed; trying again", "lease", l.Info.LeaseId, "error", err)
		}
	}
}
