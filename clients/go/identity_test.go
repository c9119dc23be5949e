package openclaw

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// ofMesh answers each call as a component of the mesh that it has, and keeps what the callers say of themselves.
type ofMesh struct {
	pb.UnimplementedComponentServiceServer
	mesh   atomic.Value
	caller atomic.Value
}

func (m *ofMesh) GetStatus(ctx context.Context, _ *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	m.caller.Store(slices.Concat(md.Get(MeshKey), md.Get(ComponentKey)))
	return &pb.GetStatusResponse{Status: &pb.ComponentStatus{Name: RoleEnvironment}}, grpc.SetHeader(ctx, m.headers())
}

func (m *ofMesh) WatchStats(_ *pb.WatchStatsRequest, stream grpc.ServerStreamingServer[pb.WatchStatsResponse]) error {
	_ = stream.SendHeader(m.headers())
	return stream.Send(&pb.WatchStatsResponse{Status: &pb.ComponentStatus{}})
}

func (m *ofMesh) headers() metadata.MD { return Identity(m.mesh.Load().(string), RoleEnvironment) }

func (m *ofMesh) first(servicer any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if info.IsClientStream {
		_ = stream.SendHeader(m.headers())
	}
	return handler(servicer, stream)
}

func strangers(t *testing.T, mesh string) (*ofMesh, *recorder, string) {
	of := &ofMesh{}
	of.mesh.Store(mesh)
	fake := &recorder{each: func(ids []string, send func(pb.AckStatus, ...string)) error {
		send(accepted, ids...)
		return nil
	}}
	return of, fake, serve(t, func(server *grpc.Server) {
		fake.register(server)
		pb.RegisterComponentServiceServer(server, of)
	}, grpc.StreamInterceptor(of.first))
}

func TestAnotherMeshIsNotAnswered(t *testing.T) {
	of, _, address := strangers(t, "mesh-b")
	ours := environmentAt(t, address, WithMesh("mesh-a", RoleJudge), WithReconnect(false))
	_, err := ours.Status(within(t))
	if e := failure(t, err, codes.FailedPrecondition, ReasonWrongMesh); e.Metadata["found"] != "mesh-b" || e.Retryable() {
		t.Error(e)
	}
	if caller := of.caller.Load().([]string); !slices.Equal(caller, []string{"mesh-a", RoleJudge}) {
		t.Error(caller)
	}
	for _, err := range ours.WatchStats(within(t), 0) {
		failure(t, err, codes.FailedPrecondition, ReasonWrongMesh)
	}
	for _, mesh := range []string{"", "mesh-b"} { // any, and its own
		if _, err := environmentAt(t, address, WithMesh(mesh, "")).Status(within(t)); err != nil {
			t.Errorf("%q: %v", mesh, err)
		}
	}
	of.mesh.Store("") // of contract 1.0
	if _, err := ours.Status(within(t)); err != nil {
		t.Error(err)
	}
}

func TestTheVariableNamesTheMesh(t *testing.T) {
	_, _, address := strangers(t, "mesh-b")
	t.Setenv(MeshVariable, "mesh-a")
	_, err := environmentAt(t, address).Status(within(t))
	failure(t, err, codes.FailedPrecondition, ReasonWrongMesh)
}

func TestNothingIsSentToAnotherMesh(t *testing.T) {
	of, fake, address := strangers(t, "mesh-b")
	refused := make(chan *Error, 1)
	delivery := Deliver(environmentAt(t, address, WithMesh("mesh-a", RolePolicy), fast).TurnsRing(), SenderOptions{OnError: func(err *Error) {
		select {
		case refused <- err:
		default:
		}
	}})
	t.Cleanup(func() { _ = delivery.Close() })
	if err := delivery.Send(within(t), turnEvent("a")); err != nil {
		t.Fatal(err)
	}
	failure(t, <-refused, codes.FailedPrecondition, ReasonWrongMesh)
	fake.mutex.Lock()
	if len(fake.seen) > 0 || delivery.Stats().Pending != 1 {
		t.Error(fake.seen, delivery.Stats())
	}
	fake.mutex.Unlock()
	of.mesh.Store("mesh-a") // the right one is back
	if err := delivery.Flush(within(t)); err != nil {
		t.Error(err)
	}
}
