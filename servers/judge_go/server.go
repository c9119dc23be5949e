package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/protobuf/types/known/timestamppb"

	openclaw "github.com/openclaw-rl/openclaw-rl/clients/go"
	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// serve runs the judge until the context ends or somebody drains it. ready is told the address.
func serve(ctx context.Context, o *options, ready func(address string)) error {
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("--listen %s: %w; stop what uses the port, or take another one (0 means any free one)", o.listen, err)
	}
	defer listener.Close()
	store, err := openStore(o.data)
	if err != nil {
		return fmt.Errorf("--data %s: %w", o.data, err)
	}
	defer store.close()
	service := newService(store, o.panel(), o.log)

	toTrainer := []openclaw.Option{openclaw.WithAddress(o.trainer), openclaw.WithLogger(o.log)}
	ending, stopped := make(chan struct{}), make(chan struct{})
	guard := &guard{ending: ending, membership: membership{id: o.mesh}}
	component := &component{service: service, membership: &guard.membership, address: listener.Addr().String(), started: time.Now(),
		drain: make(chan time.Duration, 1), stopped: stopped, since: map[string]*timestamppb.Timestamp{}}
	serverOptions := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(openclaw.MaxMessage), grpc.MaxSendMsgSize(openclaw.MaxMessage), grpc.MaxConcurrentStreams(1024),
		grpc.ConnectionTimeout(20 * time.Second), grpc.ChainStreamInterceptor(guard.around),
		// The mesh's senders look every 20 s whether we are still there; gRPC would take that for an attack.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
			return failure(codes.Unimplemented, "UNIMPLEMENTED", "a judge of the contract "+openclaw.ContractVersion+" does not serve this call", 0)
		}),
	}
	if o.certs != "" {
		config, load, err := serverTLS(o.certs)
		if err != nil {
			return fmt.Errorf("--certs %s: %w", o.certs, err)
		}
		certificate, err := load()
		if err != nil {
			return fmt.Errorf("--certs %s: %w", o.certs, err)
		}
		mesh, role := identity(certificate)
		if role != openclaw.RoleJudge {
			return fmt.Errorf("--certs %s: the certificate in %s.crt is for %q: `openclaw-rl certs add --role %[2]s --out FOLDER` makes the right one", o.certs, openclaw.RoleJudge, role)
		}
		guard.secure, guard.mesh, component.load = true, mesh, load
		if o.mesh == "" {
			guard.membership.id = mesh
		}
		serverOptions = append(serverOptions, grpc.Creds(credentials.NewTLS(config)))
		toTrainer = append(toTrainer, openclaw.WithCertificates(o.certs, openclaw.RoleJudge))
	}
	toTrainer = append(toTrainer, openclaw.WithMesh(guard.membership.id, openclaw.RoleJudge))
	trainer, err := openclaw.DialTrainer(toTrainer...)
	if err != nil {
		return fmt.Errorf("--trainer %s: %w", o.trainer, err)
	}
	defer trainer.Close()
	component.sender = openclaw.NewSender(trainer.SamplesRing(), sampleOutbox{store}, openclaw.SenderOptions{Logger: o.log, OnError: guard.membership.note})

	server, healthy := grpc.NewServer(serverOptions...), health.NewServer()
	server.RegisterService(asStreams(pb.JudgeService_ServiceDesc), &servicer{service: service})
	server.RegisterService(asStreams(pb.ComponentService_ServiceDesc), component)
	healthpb.RegisterHealthServer(server, healthy)
	reflection.Register(server)
	for _, name := range services {
		healthy.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
	}

	background, cancel := context.WithCancel(context.Background())
	voting, stopVoting := context.WithCancel(context.Background())
	var running, working sync.WaitGroup
	running.Go(func() { _ = component.sender.Run(background) })
	running.Go(func() { tellAlarms(background, component, healthy) })
	for range o.workers {
		working.Go(func() { service.work(background, voting) })
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	ready(component.address)

	grace := 8 * time.Second
	select {
	case <-ctx.Done():
	case grace = <-component.drain:
	case err = <-failed:
	}
	o.log.Info("stopping")
	close(stopped)
	healthy.Shutdown()
	cancel()
	time.AfterFunc(grace, stopVoting)
	working.Wait() // votes that are under way
	stopVoting()
	close(ending)
	time.AfterFunc(2*time.Second, server.Stop)
	server.GracefulStop()
	running.Wait()
	return err
}

// services are those whose health is told.
var services = []string{"", pb.JudgeService_ServiceDesc.ServiceName, pb.ComponentService_ServiceDesc.ServiceName}

// tellAlarms says NOT_SERVING for "SERVICE/alarms" while something is wrong; the services themselves stay as they are.
func tellAlarms(ctx context.Context, component *component, healthy *health.Server) {
	for {
		state := healthpb.HealthCheckResponse_SERVING
		if len(component.status().Alarms) > 0 {
			state = healthpb.HealthCheckResponse_NOT_SERVING
		}
		for _, name := range services {
			if name != "" {
				name += "/"
			}
			healthy.SetServingStatus(name+"alarms", state)
		}
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
			return
		}
	}
}

// serverTLS asks for certificates of the mesh's CA. Our own is read again for each connection, so that a renewed one is
// used without a restart; load tells it.
func serverTLS(folder string) (config *tls.Config, load func() (*x509.Certificate, error), err error) {
	client, err := openclaw.MutualTLS(folder, openclaw.RoleJudge)
	if err != nil {
		return nil, nil, err
	}
	load = func() (*x509.Certificate, error) {
		pair, err := client.GetClientCertificate(nil)
		if err != nil {
			return nil, err
		}
		return x509.ParseCertificate(pair.Certificate[0])
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: client.RootCAs,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return client.GetClientCertificate(nil) }}, load, nil
}
