package main

import (
	"context"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	openclaw "github.com/openclaw-rl/openclaw-rl/clients/go"
	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// waitingAlarm is how long a message may wait before somebody should look.
const waitingAlarm = 2 * time.Minute

// component is ComponentService: how the judge is, and its end.
type component struct {
	pb.UnimplementedComponentServiceServer
	service *service
	*membership
	sender  *openclaw.Sender[*pb.Sample]
	address string
	started time.Time
	load    func() (*x509.Certificate, error) // our certificate as it is now; nil without TLS
	drain   chan time.Duration
	stopped <-chan struct{} // closed when the server begins to stop

	mutex sync.Mutex
	since map[string]*timestamppb.Timestamp // of the alarms that hold
}

func (c *component) status() *pb.ComponentStatus {
	host, _ := os.Hostname()
	status := &pb.ComponentStatus{Name: openclaw.RoleJudge, State: pb.ComponentState_COMPONENT_STATE_RUNNING,
		Detail: "judge_go: " + c.service.panel.description(), Pid: int64(os.Getpid()), Address: c.address, PackageVersion: version,
		StartedAt: timestamppb.New(c.started), Counters: map[string]int64{}, Host: host, ContractVersion: openclaw.ContractVersion,
		MeshId: c.membership.id}
	if c.load != nil {
		status.Secure = true
		if certificate, err := c.load(); err == nil {
			status.CertificateExpiresAt = timestamppb.New(certificate.NotAfter)
		}
	}
	for _, name := range []string{"transitions", "judgements", "votes", "votes_failed", "judgements_failed", "positive", "negative", "neutral"} {
		status.Counters[name] = 0
	}
	outbox := c.sender.Stats()
	var oldest, oldestQueued time.Time
	err := c.service.store.view(func(tx *txn) error {
		tx.bucket(counters).each(func(name, value []byte) { status.Counters[string(name)] = int64(binary.BigEndian.Uint64(value)) })
		if _, first := tx.bucket(samples).Cursor().First(); first != nil {
			oldest = stamp(first)
		}
		if _, first := tx.bucket(queue).Cursor().First(); first != nil {
			oldestQueued = stamp(first)
		}
		return nil
	})
	waiting := &c.service.store.waiting
	waiting.Lock()
	trouble := waiting.trouble
	outbox.Pending, outbox.PendingBytes = waiting.samples, waiting.bytes
	refused, remark := c.membership.refusals()
	status.Gauges = map[string]float64{"queue": float64(waiting.queue), "foreign_calls_refused": float64(refused)}
	waiting.Unlock()
	if remark != "" {
		status.Detail += "; " + remark
	}
	if !oldest.IsZero() {
		outbox.OldestAge = durationpb.New(time.Since(oldest))
	}
	status.Outboxes = []*pb.OutboxStats{outbox}
	raised := map[string]string{"wrong_mesh": c.membership.trouble()}
	if err != nil {
		raised["state_damaged"] = "state.db can't be read: " + err.Error()
	}
	if trouble != nil {
		raised["state_failing"] = "state.db can't be written: " + trouble.Error() + "; nothing is taken until it can, and what senders have waits there"
	}
	if age := outbox.OldestAge.AsDuration(); age > waitingAlarm {
		raised["samples_waiting"] = fmt.Sprintf("%d samples wait on disk for the trainer, the oldest for %s: %s; nothing is lost, start or repair the trainer and they go on by themselves",
			outbox.Pending, age.Round(time.Second), outbox.LastError)
	}
	if outbox.Rejected > 0 {
		raised["samples_refused"] = fmt.Sprintf("the trainer has refused %d samples since the start; `judge_go --show-refused` lists them with the reasons", outbox.Rejected)
	}
	c.service.mutex.Lock()
	if why := c.service.outage; why != "" {
		raised["judge_failing"] = fmt.Sprintf("judge %s does not work: %s; %g turns wait, each for at most %s", c.service.panel.judge.name(), why, status.Gauges["queue"], hold)
	} else if !oldestQueued.IsZero() && time.Since(oldestQueued) > 5*time.Minute {
		raised["transitions_waiting"] = fmt.Sprintf("%g turns wait to be judged: more --workers, fewer --votes or a faster model", status.Gauges["queue"])
	}
	c.service.mutex.Unlock()
	c.alarm(status, raised)
	select {
	case <-c.stopped:
		status.State = pb.ComponentState_COMPONENT_STATE_DRAINING
	default:
	}
	return status
}

// alarm tells in the status what is wrong, each with the moment from which it holds.
func (c *component) alarm(status *pb.ComponentStatus, raised map[string]string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for name := range c.since {
		if raised[name] == "" {
			delete(c.since, name)
		}
	}
	for name, message := range raised {
		if message == "" {
			continue
		}
		if c.since[name] == nil {
			c.since[name] = timestamppb.Now()
		}
		status.Alarms = append(status.Alarms, &pb.Alarm{Name: name, Message: message, Since: c.since[name]})
		status.State = pb.ComponentState_COMPONENT_STATE_DEGRADED
		status.Detail = message + "; " + status.Detail
	}
}

func (c *component) GetStatus(context.Context, *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	return &pb.GetStatusResponse{Status: c.status()}, nil
}

func (c *component) WatchStats(request *pb.WatchStatsRequest, stream grpc.ServerStreamingServer[pb.WatchStatsResponse]) error {
	interval := time.Second
	if request.Interval != nil {
		interval = request.Interval.AsDuration()
	}
	if interval < 100*time.Millisecond || interval > time.Hour {
		return invalid("interval", fmt.Sprintf("%s is not allowed: must be from 0.1 s to 1 h", interval))
	}
	for {
		if err := stream.Send(&pb.WatchStatsResponse{Status: c.status(), At: timestamppb.Now()}); err != nil {
			return err
		}
		select {
		case <-time.After(interval):
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (c *component) Drain(_ context.Context, request *pb.DrainRequest) (*pb.DrainResponse, error) {
	grace := 30 * time.Second
	if request.Grace != nil {
		grace = request.Grace.AsDuration()
	}
	if grace < 0 || grace > time.Hour {
		return nil, invalid("grace", fmt.Sprintf("%s is not allowed: must be from 0 s to 1 h", grace))
	}
	select {
	case c.drain <- grace:
	default: // it is stopping already
	}
	return &pb.DrainResponse{}, nil
}

func (c *component) ReadLogs(*pb.ReadLogsRequest, grpc.ServerStreamingServer[pb.ReadLogsResponse]) error {
	return failure(codes.Unimplemented, "UNIMPLEMENTED", "judge_go keeps no log: it writes to stderr", 0)
}

func (c *component) ListSpans(*pb.ListSpansRequest, grpc.ServerStreamingServer[pb.ListSpansResponse]) error {
	return failure(codes.Unimplemented, "UNIMPLEMENTED", "judge_go keeps no spans", 0)
}

func (c *component) Forget(_ context.Context, request *pb.ForgetRequest) (*pb.ForgetResponse, error) {
	if request.SessionId == "" {
		return nil, invalid("session_id", "must be set")
	}
	before := time.Now()
	if request.Before != nil {
		before = request.Before.AsTime()
	}
	return c.service.forget(request.SessionId, before, request.TurnIds)
}
