package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	openclaw "github.com/openclaw-rl/openclaw-rl/clients/go"
)

// remembered is how long a foreign neighbour is an alarm, and a foreign caller told of; both try again every few seconds.
const remembered = time.Minute

// membership is the mesh that we belong to, and the refusal of those of another one.
type membership struct {
	id string // "" when it was given none

	lock sync.Mutex
	met  string // that the next component is of another mesh, and when that was seen
	at   time.Time

	refused  int    // calls of other meshes
	caller   string // the last of them, and when
	calledAt time.Time
	loggedAt time.Time
}

// admit refuses a caller of another mesh, and a ring stream that names none where no certificate does.
func (m *membership) admit(ctx context.Context, method string, certified bool) error {
	if strings.HasPrefix(method, "/grpc.") {
		return nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	mesh, caller := openclaw.MeshOf(md)
	ring := strings.HasSuffix(method, "/JudgeTransitions")
	refuse := func(message string) error {
		return &openclaw.Error{Code: codes.FailedPrecondition, Reason: openclaw.ReasonWrongMesh, Message: message,
			Metadata: map[string]string{"expected": m.id, "found": mesh}}
	}
	switch {
	case m.id == "" && ring && !certified:
		return refuse("this judge was given no mesh, so it takes no transitions: start it with --mesh or the variable OPENCLAW_RL_MESH (`openclaw-rl mesh id` prints the id)")
	case m.id != "" && mesh != "" && mesh != m.id:
		if caller == "" {
			caller = "a client"
		}
		m.refuse(fmt.Sprintf("%s of the mesh %s calls here and is refused: correct the address of prm_judge in its configuration, or stop it", caller, mesh))
		return refuse(fmt.Sprintf("%s of the mesh %s calls prm_judge of the mesh %s: correct its address of prm_judge; `openclaw-rl status` tells the addresses of a mesh. Nothing was taken", caller, mesh, m.id))
	case m.id != "" && mesh == "" && ring && !certified:
		return refuse(fmt.Sprintf("JudgeTransitions is for components of the mesh %s, and the caller names none: send the metadata %s: %[1]s (grpcurl -H), or set OPENCLAW_RL_MESH", m.id, openclaw.MeshKey))
	case ring && caller != "" && caller != openclaw.RoleEnvironment:
		return &openclaw.Error{Code: codes.PermissionDenied, Reason: "WRONG_ROLE", Metadata: map[string]string{"role": caller},
			Message: fmt.Sprintf("JudgeTransitions is for %s; the caller says it is %s", openclaw.RoleEnvironment, caller)}
	}
	return nil
}

// headers tell who answers.
func (m *membership) headers() metadata.MD {
	if m.id == "" {
		return nil
	}
	return openclaw.Identity(m.id, openclaw.RoleJudge)
}

// note takes in what ended a stream of ours.
func (m *membership) note(err *openclaw.Error) {
	if err.Reason == openclaw.ReasonWrongMesh {
		m.meet(err.Error())
	}
}

func (m *membership) refuse(what string) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.refused++
	m.caller, m.calledAt = what, time.Now()
	if time.Since(m.loggedAt) >= remembered {
		m.loggedAt = m.calledAt
		slog.Warn(what, "refused", m.refused)
	}
}

// refusals are how many calls of other meshes were refused, and a remark about those of the last minute. It is no alarm:
// nothing is wrong here.
func (m *membership) refusals() (int, string) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if time.Since(m.calledAt) > remembered {
		return m.refused, ""
	}
	return m.refused, m.caller
}

func (m *membership) meet(what string) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.met, m.at = what, time.Now()
}

// trouble is the alarm, "" when there is none.
func (m *membership) trouble() string {
	m.lock.Lock()
	defer m.lock.Unlock()
	if time.Since(m.at) > remembered {
		return ""
	}
	return m.met
}
