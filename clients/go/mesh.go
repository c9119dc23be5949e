package openclaw

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// Metadata of calls and of response headers: the id of the mesh, and the component's name.
const (
	MeshKey      = "openclaw-mesh"
	ComponentKey = "openclaw-component"
)

// MeshOf reads the mesh and the component that metadata names; "" where it names none.
func MeshOf(md metadata.MD) (mesh, component string) {
	first := func(key string) string {
		if values := md.Get(key); len(values) > 0 {
			return values[0][:min(len(values[0]), 80)]
		}
		return ""
	}
	return first(MeshKey), first(ComponentKey)
}

// Identity is metadata that names a mesh and a component; "" leaves one out.
func Identity(mesh, component string) metadata.MD {
	md := metadata.MD{}
	if mesh != "" {
		md.Set(MeshKey, mesh)
	}
	if component != "" {
		md.Set(ComponentKey, component)
	}
	return md
}

// identified adds to a call who makes it.
func (o *options) identified(ctx context.Context) context.Context {
	for key, values := range Identity(o.mesh, o.component) {
		ctx = metadata.AppendToOutgoingContext(ctx, key, values[0])
	}
	return ctx
}

// confirm refuses what another mesh answers. A component of contract 1.0 names none, and passes.
func (o *options) confirm(headers metadata.MD, method string) error {
	mesh, component := MeshOf(headers)
	if o.mesh == "" || mesh == "" || mesh == o.mesh {
		return nil
	}
	return &Error{Code: codes.FailedPrecondition, Reason: ReasonWrongMesh, Address: o.address, Method: method,
		Message:  fmt.Sprintf("%s there is of the mesh %s, and %s is expected", orUnknown(component), mesh, o.mesh),
		Advice:   "Correct the address, or WithMesh; `openclaw-rl mesh id` prints the id of a mesh",
		Metadata: map[string]string{"expected": o.mesh, "found": mesh}}
}
