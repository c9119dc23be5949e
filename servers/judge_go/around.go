package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	openclaw "github.com/openclaw-rl/openclaw-rl/clients/go"
)

// asStreams makes the calls of a service with one request ones of streams, which are the same on the wire: so that one
// interceptor sees all, lets nobody in before a message is read, and gives each error its details.
func asStreams(desc grpc.ServiceDesc) *grpc.ServiceDesc {
	desc.Streams = slices.Clone(desc.Streams)
	for _, method := range desc.Methods {
		desc.Streams = append(desc.Streams, grpc.StreamDesc{StreamName: method.MethodName,
			ClientStreams: true, // else gRPC leaves the interceptor out
			Handler: func(servicer any, stream grpc.ServerStream) error {
				response, err := method.Handler(servicer, stream.Context(), stream.RecvMsg, nil)
				if err != nil {
					return err
				}
				return stream.SendMsg(response)
			}})
	}
	desc.Methods = nil
	return &desc
}

// guard is what happens around each call.
type guard struct {
	mesh   string // of our own certificate
	secure bool
	ending <-chan struct{} // closed when streams have to end
	membership
}

func (g *guard) around(servicer any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if g.secure {
		if err := g.letIn(stream.Context(), info.FullMethod); err != nil {
			return err
		}
	}
	if err := g.admit(stream.Context(), info.FullMethod, g.secure); err != nil {
		return err
	}
	// At once: some clients wait for them before they send.
	if err := stream.SendHeader(g.headers()); err != nil {
		return err
	}
	if !info.IsServerStream { // one of asStreams: it is finished also while the server stops
		return asStatus(recovered(func() error { return handler(servicer, stream) }), info.FullMethod)
	}
	ended := make(chan error, 1)
	go func() { ended <- recovered(func() error { return handler(servicer, stream) }) }()
	select {
	case err := <-ended:
		return asStatus(err, info.FullMethod)
	case <-g.ending:
		return stopping
	}
}

func recovered(call func() error) (err error) {
	defer func() {
		if broken := recover(); broken != nil {
			err = fmt.Errorf("panic: %v", broken)
		}
	}()
	return call()
}

// roles may call what; anybody with a certificate of the mesh may call what is not here. It is the judge's part of the
// table in openclaw_rl/rpc/auth/SECURITY.md.
var roles = map[string][]string{
	"/openclaw_rl.v1.JudgeService/JudgeTransitions": {openclaw.RoleEnvironment},
	"/openclaw_rl.v1.JudgeService/Judge":            {openclaw.RoleEnvironment, openclaw.RoleTrainer, openclaw.RoleOperator},
	"/openclaw_rl.v1.JudgeService/WatchJudgements":  {openclaw.RoleTrainer, openclaw.RoleOperator},
	"/openclaw_rl.v1.JudgeService/ListJudgements":   {openclaw.RoleTrainer, openclaw.RoleOperator},
	"/openclaw_rl.v1.ComponentService/Drain":        {openclaw.RoleOperator},
	"/openclaw_rl.v1.ComponentService/Forget":       {openclaw.RoleOperator},
	"/openclaw_rl.v1.ComponentService/ReadLogs":     {openclaw.RoleOperator},
	"/openclaw_rl.v1.ComponentService/ListSpans":    {openclaw.RoleOperator},
}

// letIn refuses a caller whose certificate is not for this call.
func (g *guard) letIn(ctx context.Context, method string) error {
	from, _ := peer.FromContext(ctx)
	info, is := from.AuthInfo.(credentials.TLSInfo)
	if !is || len(info.State.VerifiedChains) == 0 {
		return failure(codes.Unauthenticated, "NO_CREDENTIALS", "a certificate of the mesh is needed", 0)
	}
	mesh, role := identity(info.State.PeerCertificates[0])
	if role == "" || mesh != g.mesh {
		return &openclaw.Error{Code: codes.PermissionDenied, Reason: "FOREIGN_MESH",
			Message: fmt.Sprintf("the certificate is of %q in the mesh %q, and this is the mesh %q", role, mesh, g.mesh)}
	}
	allowed, limited := roles[method]
	if limited && !slices.Contains(allowed, role) {
		return &openclaw.Error{Code: codes.PermissionDenied, Reason: "WRONG_ROLE", Metadata: map[string]string{"role": role},
			Message: fmt.Sprintf("%s is for %s; the certificate says %s", method[strings.LastIndex(method, "/")+1:], strings.Join(allowed, ", "), role)}
	}
	return nil
}

// identity reads who a certificate is for: spiffe://MESH/ROLE, or the common name alone.
func identity(certificate *x509.Certificate) (mesh, role string) {
	for _, uri := range certificate.URIs {
		if uri.Scheme == "spiffe" {
			return uri.Host, strings.TrimPrefix(uri.Path, "/")
		}
	}
	return "", certificate.Subject.CommonName
}
