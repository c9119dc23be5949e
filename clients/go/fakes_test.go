package openclaw

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// fast are options for servers that break on purpose.
var fast = WithBackoff(Backoff{First: 5 * time.Millisecond, Max: 20 * time.Millisecond})

// within is a context for a test that should be over long before.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// serve starts a server on a free port and gives its address.
func serve(t *testing.T, register func(*grpc.Server), options ...grpc.ServerOption) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(append(options, grpc.MaxRecvMsgSize(MaxMessage), grpc.MaxSendMsgSize(64<<20))...)
	register(server)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// failure gives the *Error that a call has to end with.
func failure(t *testing.T, err error, code codes.Code, reason string) *Error {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("%v (%T) is no *Error", err, err)
	}
	if e.Code != code || e.Reason != reason {
		t.Fatalf("%v: %v, reason %s; expected %v, %s", e, e.Code, e.Reason, code, reason)
	}
	return e
}

func policyAt(t *testing.T, address string, options ...Option) *Policy {
	t.Helper()
	policy := must(DialPolicy(append(options, WithAddress(address))...))(t)
	t.Cleanup(func() { _ = policy.Close() })
	return policy
}

func environmentAt(t *testing.T, address string, options ...Option) *Environment {
	t.Helper()
	environment := must(DialEnvironment(append(options, WithAddress(address))...))(t)
	t.Cleanup(func() { _ = environment.Close() })
	return environment
}

// turnEvent is the smallest message of the turns' ring.
func turnEvent(id string) *pb.PolicyEvent {
	return &pb.PolicyEvent{Event: &pb.PolicyEvent_Turn{Turn: &pb.Turn{TurnId: id}}}
}

// recorder is an environment server whose RecordTurns does what the test says with each request.
type recorder struct {
	pb.UnimplementedEnvironmentServiceServer
	each func(ids []string, send func(status pb.AckStatus, ids ...string)) error

	mutex sync.Mutex
	seen  []string // in the order of arrival
}

func (r *recorder) RecordTurns(stream grpc.BidiStreamingServer[pb.RecordTurnsRequest, pb.RecordTurnsResponse]) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return nil
		}
		var ids []string
		for _, event := range request.Events {
			ids = append(ids, eventID(event))
		}
		r.mutex.Lock()
		r.seen = append(r.seen, ids...)
		r.mutex.Unlock()
		if err := r.each(ids, func(status pb.AckStatus, ids ...string) {
			response := &pb.RecordTurnsResponse{}
			for _, id := range ids {
				response.Acks = append(response.Acks, &pb.Ack{Id: id, Status: status, Reason: map[bool]string{true: "bad"}[status == pb.AckStatus_ACK_STATUS_REJECTED]})
			}
			_ = stream.Send(response)
		}); err != nil {
			return err
		}
	}
}

// certificates makes a CA and a certificate of a role in a new folder, as a mesh's certs/ has them.
func certificates(t *testing.T, roles ...string) string {
	t.Helper()
	folder := t.TempDir()
	caKey, ca := certify(t, folder, "ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "a mesh's CA"}}, nil, nil)
	for _, role := range roles {
		certify(t, folder, role, &x509.Certificate{Subject: pkix.Name{CommonName: role},
			DNSNames: []string{ServerName(role), ServerName("")}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, ca, caKey)
	}
	return folder
}

func certify(t *testing.T, folder, name string, template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if parent == nil {
		parent, signer = template, key
	}
	der := must(x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer))(t)
	for file, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der},
		".key": {Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(key))(t)}} {
		if err := os.WriteFile(filepath.Join(folder, name+file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return key, must(x509.ParseCertificate(der))(t)
}

// secured makes a server ask for certificates of the folder's CA.
func secured(t *testing.T, folder, role string, clients tls.ClientAuthType) grpc.ServerOption {
	t.Helper()
	pair := must(tls.LoadX509KeyPair(filepath.Join(folder, role+".crt"), filepath.Join(folder, role+".key")))(t)
	return grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: clients,
		ClientCAs: must(readCA(filepath.Join(folder, "ca.crt")))(t)}))
}
