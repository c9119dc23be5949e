package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	openclaw "github.com/openclaw-rl/openclaw-rl/clients/go"
	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// ours is the mesh of the tests.
const ours = "mesh-a"

var discard = slog.New(slog.DiscardHandler)

// trainer takes samples, and refuses those of a turn named "refused".
type trainer struct {
	pb.UnimplementedTrainerServiceServer
	mutex sync.Mutex
	got   []*pb.Sample
	known map[string]bool
	twice int

	mesh, caller string // which it says to be of; who calls
}

func (f *trainer) SubmitSamples(stream grpc.BidiStreamingServer[pb.SubmitSamplesRequest, pb.SubmitSamplesResponse]) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	mesh, component := openclaw.MeshOf(md)
	f.mutex.Lock()
	f.caller = mesh + " " + component
	of := f.mesh
	f.mutex.Unlock()
	_ = stream.SendHeader(openclaw.Identity(of, openclaw.RoleTrainer))
	for {
		request, err := stream.Recv()
		if err != nil {
			return nil
		}
		response := &pb.SubmitSamplesResponse{}
		f.mutex.Lock()
		for _, sample := range request.Samples {
			ack := &pb.Ack{Id: sample.Transition.Turn.TurnId, Status: pb.AckStatus_ACK_STATUS_ACCEPTED}
			switch {
			case ack.Id == "refused":
				ack.Status, ack.Reason = pb.AckStatus_ACK_STATUS_REJECTED, "of another model"
			case f.known[ack.Id]:
				f.twice++
				ack.Status = pb.AckStatus_ACK_STATUS_DUPLICATE
			default:
				f.known[ack.Id] = true
				f.got = append(f.got, sample)
			}
			response.Acks = append(response.Acks, ack)
		}
		f.mutex.Unlock()
		_ = stream.Send(response)
	}
}

// ids are those that it has, once there are so many.
func (f *trainer) ids(t *testing.T, n int) (ids []string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d samples at the trainer", n), func() bool {
		f.mutex.Lock()
		defer f.mutex.Unlock()
		ids = nil
		for _, sample := range f.got {
			ids = append(ids, sample.Transition.Turn.TurnId)
		}
		return len(ids) >= n
	})
	return ids
}

func startTrainer(t *testing.T) (*trainer, string) {
	t.Helper()
	fake, server := &trainer{known: map[string]bool{}}, grpc.NewServer()
	pb.RegisterTrainerServiceServer(server, fake)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return fake, listener.Addr().String()
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

// running is a judge that serves; stop it to start another one on the same data.
type running struct {
	*openclaw.Judge
	stop  func() error
	ended chan error
}

func start(t *testing.T, o *options, dial ...openclaw.Option) *running {
	t.Helper()
	o.listen, o.log = "127.0.0.1:0", discard
	if o.mesh == "" && o.certs == "" {
		o.mesh = ours
	}
	dial = append([]openclaw.Option{openclaw.WithMesh(o.mesh, openclaw.RoleEnvironment)}, dial...)
	o.votes, o.workers = max(o.votes, 1), max(o.workers, 1)
	ctx, cancel := context.WithCancel(context.Background())
	address, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- serve(ctx, o, func(at string) { address <- at }) }()
	select {
	case at := <-address:
		client, err := openclaw.DialJudge(append(dial, openclaw.WithAddress(at))...)
		if err != nil {
			t.Fatal(err)
		}
		stop := sync.OnceValue(func() error {
			cancel()
			_ = client.Close()
			return <-ended
		})
		t.Cleanup(func() { _ = stop() })
		return &running{client, stop, ended}
	case err := <-ended:
		t.Fatal(err)
		panic("not reached")
	}
}

func turn(id, session, next string) *pb.Transition {
	transition := asked("Capital of Australia?", "Sydney.", user(next))
	transition.Turn.TurnId, transition.Turn.SessionId, transition.Turn.RequestedAt = id, session, timestamppb.Now()
	transition.Turn.Trace = &pb.TraceContext{Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	return transition
}

// deliver sends transitions and waits for their acks; it gives the refusals.
func deliver(t *testing.T, judge *running, transitions ...*pb.Transition) map[string]string {
	t.Helper()
	refusals := map[string]string{}
	delivery := openclaw.Deliver(judge.TransitionsRing(), openclaw.SenderOptions{OnReject: func(id, reason string) { refusals[id] = reason }})
	defer delivery.Close()
	if err := delivery.Send(t.Context(), transitions...); err != nil {
		t.Fatal(err)
	}
	if err := delivery.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	return refusals
}

func counts(t *testing.T, judge *running) (*pb.ComponentStatus, map[string]int64) {
	t.Helper()
	report, err := judge.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return report.Status, report.Status.Counters
}

func TestTransitionsBecomeSamples(t *testing.T) {
	fake, address := startTrainer(t)
	judge := start(t, &options{data: t.TempDir(), trainer: address})
	watched := make(chan *pb.WatchJudgementsResponse, 1)
	go func() {
		for told, err := range judge.WatchJudgements(t.Context(), "b") {
			if err == nil {
				watched <- told
			}
			return
		}
	}()
	eventually(t, "somebody watches", func() bool { // until then nothing would be told
		deliver(t, judge, turn(fmt.Sprint("turn_", time.Now().UnixNano()), "b", "Thanks"))
		select {
		case told := <-watched:
			return told.SessionId == "b" && told.Judgement.Score == 1
		case <-time.After(20 * time.Millisecond):
			return false
		}
	})
	_, count := counts(t, judge)
	before := int(count["transitions"])
	fake.ids(t, before)
	side := turn("side", "a", "Thanks")
	side.Turn.TurnClass = pb.TurnClass_TURN_CLASS_SIDE
	bad := turn("turn_1", "a", "No, it is Canberra.")
	if refusals := deliver(t, judge, bad, side, turn("turn_2", "a", "谢谢"), turn("refused", "a", "hm")); len(refusals) != 1 || !strings.Contains(refusals["side"], "TURN_CLASS_SIDE") {
		t.Error(refusals)
	}
	other := proto.CloneOf(bad)
	other.NextState.Messages[0].Content = "forged"
	if refusals := deliver(t, judge, other); !strings.Contains(refusals["turn_1"], "used before") {
		t.Error(refusals)
	}
	deliver(t, judge, bad) // a duplicate
	ids := fake.ids(t, before+2)[before:]
	if !slices.Equal(ids, []string{"turn_1", "turn_2"}) {
		t.Error(ids)
	}
	fake.mutex.Lock()
	sample := fake.got[before]
	fake.mutex.Unlock()
	if !proto.Equal(sample.Transition, bad) || sample.Judgement.Score != -1 || sample.Judgement.Hint != "It is Canberra." || sample.Judgement.Panel != "rules" {
		t.Error(sample)
	}
	if kept, err := judge.Judgements(t.Context(), "turn_2", "nobody", "turn_1", "turn_2"); err != nil || len(kept) != 2 || kept[0].TurnId != "turn_2" || kept[1].Score != -1 {
		t.Error(kept, err)
	}
	eventually(t, "the refused sample is told", func() bool {
		status, count := counts(t, judge)
		outbox := status.Outboxes[0]
		return count["transitions"] == int64(before)+3 && count["judgements"] == count["transitions"] && count["negative"] == 1 && outbox.Pending == 0 &&
			outbox.PendingBytes == 0 && outbox.Rejected == 1 && outbox.Connected && status.State == pb.ComponentState_COMPONENT_STATE_DEGRADED && status.Alarms[0].Name == "samples_refused"
	})
}

func TestNothingIsLostOverARestart(t *testing.T) {
	data, away := t.TempDir(), "127.0.0.1:1"
	judge := start(t, &options{data: data, trainer: away})
	var given []*pb.Transition
	for i := range 300 {
		given = append(given, turn(fmt.Sprintf("turn_%03d", i), "s", "Thanks"))
	}
	deliver(t, judge, given...)
	if status, count := counts(t, judge); status.Outboxes[0].Pending != 300 || count["positive"] != 300 {
		t.Error(status)
	}
	if _, err := openStore(data); err == nil || !strings.Contains(err.Error(), "another judge") {
		t.Error("a second judge on the same data:", err)
	}
	if err := judge.stop(); err != nil {
		t.Fatal(err)
	}
	fake, address := startTrainer(t)
	judge = start(t, &options{data: data, trainer: address})
	if ids := fake.ids(t, 300); !slices.IsSorted(ids) || len(ids) != 300 || fake.twice > 0 {
		t.Error(len(ids), fake.twice)
	}
	deliver(t, judge, given[7])
	if _, count := counts(t, judge); count["transitions"] != 300 {
		t.Error(count)
	}
}

func TestAModelsVotesAreWaitedForOnDisk(t *testing.T) {
	var away atomic.Bool
	var asked atomic.Int32
	away.Store(true)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		if away.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"choices": [{"message": {"content": "{\"score\": 1}"}}]}`)
	}))
	defer api.Close()
	fake, address := startTrainer(t)
	o := &options{data: t.TempDir(), trainer: address, model: "m", baseURL: api.URL, votes: 3, workers: 2, voteTimeout: time.Second}
	judge := start(t, o)
	deliver(t, judge, turn("turn_1", "s", "hm"), turn("turn_2", "s", "hm"))
	eventually(t, "the outage is told", func() bool {
		status, _ := counts(t, judge)
		return len(status.Alarms) == 1 && status.Alarms[0].Name == "judge_failing" && strings.Contains(status.Detail, "401") && status.Gauges["queue"] == 2
	})
	if err := judge.stop(); err != nil { // they stay in the queue
		t.Fatal(err)
	}
	away.Store(false)
	judge = start(t, o)
	ids := fake.ids(t, 2)
	slices.Sort(ids)
	if !slices.Equal(ids, []string{"turn_1", "turn_2"}) || len(fake.got[0].Judgement.Votes) != 3 || fake.got[0].Judgement.Score != 1 || fake.got[0].Judgement.Panel != "3 x llm:m, guarded by rules" {
		t.Error(ids, fake.got[0].Judgement)
	}
	if status, count := counts(t, judge); len(status.Alarms) != 0 || status.Gauges["queue"] != 0 || count["votes"] != 6 || count["votes_failed"] != 0 {
		t.Error(status)
	}
}

func TestDrainEndsStreamsAndTheServer(t *testing.T) {
	judge := start(t, &options{data: t.TempDir(), trainer: "127.0.0.1:1"})
	stream, err := judge.RawComponent.WatchStats(t.Context(), &pb.WatchStatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil { // it is there before the server ends
		t.Fatal(err)
	}
	stats := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			_, err = stream.Recv()
		}
		stats <- err
	}()
	health, err := healthpb.NewHealthClient(judge.Conn()).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "openclaw_rl.v1.JudgeService"})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := health.Recv(); err != nil || first.Status != healthpb.HealthCheckResponse_SERVING {
		t.Fatal(first, err)
	}
	if err := judge.Drain(t.Context(), 100*time.Hour); openclaw.AsError(err).Violations[0].Field != "grace" {
		t.Error(err)
	}
	if err := judge.Drain(t.Context(), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if last, err := health.Recv(); err == nil && last.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Error(last)
	}
	if e := openclaw.AsError(<-stats); e == nil || e.Code != codes.Unavailable || e.RetryAfter == 0 {
		t.Error(e)
	}
	select {
	case err := <-judge.ended:
		judge.ended <- err
		if err != nil {
			t.Error(err)
		}
	case <-time.After(15 * time.Second):
		t.Error("it does not end")
	}
}

func TestErrorsHaveTheirDetails(t *testing.T) {
	judge := start(t, &options{data: t.TempDir(), trainer: "127.0.0.1:1"})
	_, err := judge.Judge.Judge(t.Context(), &pb.Transition{Turn: &pb.Turn{Response: &pb.ChatMessage{}}})
	if e := openclaw.AsError(err); e == nil || len(e.Violations) != 2 || e.Violations[0].Field != "transition.turn.messages" {
		t.Error(err)
	}
	_, err = judge.Judgements(t.Context(), make([]string, 1001)...)
	if e := openclaw.AsError(err); e == nil || e.Reason != "INVALID_ARGUMENT" || e.Violations[0].Field != "turn_ids" {
		t.Error(err)
	}
	large := turn("turn_1", "s", strings.Repeat("x", openclaw.MaxMessage+1))
	_, err = judge.Raw.Judge(t.Context(), &pb.JudgeRequest{Transition: large}, grpc.MaxCallSendMsgSize(64<<20))
	if e := openclaw.AsError(err); e == nil || e.Code != codes.ResourceExhausted || e.Metadata == nil && e.GRPCStatus().Details() == nil {
		t.Error(err)
	}
	for _, method := range []string{"/openclaw_rl.v1.ComponentService/ListSpans", "/openclaw_rl.v1.PolicyService/Chat"} {
		err = judge.Conn().Invoke(t.Context(), method, &pb.GetStatusRequest{}, &pb.GetStatusResponse{})
		if e := openclaw.AsError(err); e == nil || e.Code != codes.Unimplemented || len(e.GRPCStatus().Details()) == 0 {
			t.Error(method, err)
		}
	}
}
