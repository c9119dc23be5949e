package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	openclaw "github.com/openclaw-rl/openclaw-rl/clients/go"
)

// problem is what a delivery of one transition meets first; nil when it is taken.
func problem(t *testing.T, judge *running, options ...openclaw.Option) *openclaw.Error {
	t.Helper()
	client, err := openclaw.DialJudge(append(options, openclaw.WithAddress(judge.Address()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	met := make(chan *openclaw.Error, 1)
	delivery := openclaw.Deliver(client.TransitionsRing(), openclaw.SenderOptions{
		OnAck: func(string) { met <- nil },
		OnError: func(err *openclaw.Error) {
			select {
			case met <- err:
			default:
			}
		}})
	defer delivery.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := delivery.Send(ctx, turn(fmt.Sprintf("t-%d", time.Now().UnixNano()), "s", "thanks")); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-met:
		return err
	case <-ctx.Done():
		t.Fatal("no answer")
		return nil
	}
}

func alarm(t *testing.T, judge *running) string {
	t.Helper()
	status, err := judge.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if status.MeshId != ours {
		t.Error("mesh_id", status.MeshId)
	}
	for _, alarm := range status.Alarms {
		if alarm.Name == "wrong_mesh" {
			return alarm.Message
		}
	}
	return ""
}

func TestTransitionsOfAnotherMeshAreRefused(t *testing.T) {
	_, address := startTrainer(t)
	judge := start(t, &options{data: t.TempDir(), trainer: address})
	for _, c := range []struct {
		mesh, component, reason, says string
	}{
		{ours, openclaw.RoleEnvironment, "", ""},
		{ours, "", "", ""},
		{ours, openclaw.RoleTrainer, "WRONG_ROLE", "the caller says it is trainer"},
		{"", "", openclaw.ReasonWrongMesh, "openclaw-mesh: " + ours},
		{"mesh-b", openclaw.RoleEnvironment, openclaw.ReasonWrongMesh, "env_server of the mesh mesh-b calls prm_judge of the mesh " + ours},
	} {
		err := problem(t, judge, openclaw.WithMesh(c.mesh, c.component))
		if c.reason == "" && err != nil || c.reason != "" && (err == nil || err.Reason != c.reason || !strings.Contains(err.Message, c.says)) {
			t.Errorf("%s of %q: %v", c.component, c.mesh, err)
		}
	}
	status, err := judge.Status(t.Context())
	if err != nil || len(status.Alarms) > 0 || status.Gauges["foreign_calls_refused"] == 0 ||
		!strings.Contains(status.Detail, "env_server of the mesh mesh-b calls here") {
		t.Error(status, err)
	}
}

func TestWithoutAMeshNothingIsTaken(t *testing.T) {
	m := &membership{}
	err, _ := m.admit(t.Context(), "/openclaw_rl.v1.JudgeService/JudgeTransitions", false).(*openclaw.Error)
	if err == nil || err.Code != codes.FailedPrecondition || !strings.Contains(err.Message, "--mesh") {
		t.Error(err)
	}
	for _, method := range []string{"/openclaw_rl.v1.JudgeService/Judge", "/grpc.health.v1.Health/Check"} {
		if err := m.admit(t.Context(), method, false); err != nil {
			t.Error(method, err)
		}
	}
}

func TestATrainerOfAnotherMeshGetsNothing(t *testing.T) {
	fake, address := startTrainer(t)
	fake.mesh = "mesh-b"
	judge := start(t, &options{data: t.TempDir(), trainer: address})
	if err := problem(t, judge, openclaw.WithMesh(ours, openclaw.RoleEnvironment)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "an alarm", func() bool { return strings.Contains(alarm(t, judge), "mesh-b") })
	fake.mutex.Lock()
	if len(fake.got) > 0 || fake.caller != ours+" "+openclaw.RoleJudge {
		t.Error(fake.got, fake.caller)
	}
	fake.mesh = ours // the right one is there again
	fake.mutex.Unlock()
	fake.ids(t, 1)
}
