package openclaw

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// answering is a policy server whose GetPolicy and Score do what the test says.
type answering struct {
	pb.UnimplementedPolicyServiceServer
	get   func(context.Context) (*pb.GetPolicyResponse, error)
	score func(*pb.ScoreRequest) *pb.ScoreResponse
}

func (a *answering) GetPolicy(ctx context.Context, _ *pb.GetPolicyRequest) (*pb.GetPolicyResponse, error) {
	return a.get(ctx)
}

func (a *answering) Score(_ context.Context, request *pb.ScoreRequest) (*pb.ScoreResponse, error) {
	return a.score(request), nil
}

func (a *answering) register(server *grpc.Server) { pb.RegisterPolicyServiceServer(server, a) }

func TestDetailsOfAnErrorArrive(t *testing.T) {
	sent, _ := status.New(codes.InvalidArgument, "sampling.temperature: -1 is not allowed").WithDetails(
		&errdetails.ErrorInfo{Reason: "CONTEXT_TOO_LONG", Domain: Domain, Metadata: map[string]string{"id": "7"}},
		&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: "sampling.temperature", Description: "-1 is not allowed"}, {Field: "tools", Description: "too many"}}},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(1500 * time.Millisecond)})
	fake := &answering{get: func(context.Context) (*pb.GetPolicyResponse, error) { return nil, sent.Err() }}
	policy := policyAt(t, serve(t, fake.register))

	_, err := policy.Get(within(t))

	e := failure(t, err, codes.InvalidArgument, "CONTEXT_TOO_LONG")
	if len(e.Violations) != 2 || e.Violations[1] != (Violation{"tools", "too many"}) || e.Metadata["id"] != "7" ||
		e.RetryAfter != 1500*time.Millisecond || !e.Retryable() {
		t.Fatalf("%+v", e)
	}
	for _, part := range []string{"PolicyService/GetPolicy", policy.Address(), "CONTEXT_TOO_LONG", "sampling.temperature: -1", "tools: too many", "1.5s"} {
		if !strings.Contains(e.Error(), part) {
			t.Errorf("%q is not in %q", part, e)
		}
	}
	if s, ok := status.FromError(fmt.Errorf("wrapped: %w", err)); !ok || s.Code() != codes.InvalidArgument || len(s.Details()) != 3 {
		t.Errorf("status.FromError: %v, %v", s, ok)
	}
}

func TestCodesHaveTheContractsNames(t *testing.T) {
	for code, name := range map[codes.Code]string{codes.Canceled: "CANCELLED", codes.DeadlineExceeded: "DEADLINE_EXCEEDED",
		codes.Unavailable: "UNAVAILABLE", codes.OutOfRange: "OUT_OF_RANGE", codes.DataLoss: "DATA_LOSS"} {
		if codeName(code) != name {
			t.Errorf("%v: %s", code, codeName(code))
		}
	}
}

func TestPeersThatDoNotFit(t *testing.T) {
	certs := certificates(t, RolePolicy, RoleJudge, RoleOperator)
	foreign := certificates(t, RoleOperator)
	fake := &answering{get: func(context.Context) (*pb.GetPolicyResponse, error) { return &pb.GetPolicyResponse{}, nil }}
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	plain := serve(t, fake.register)
	mutual := serve(t, fake.register, secured(t, certs, RolePolicy, tls.RequireAndVerifyClientCert))
	otherRole := serve(t, fake.register, secured(t, certs, RoleJudge, tls.RequireAndVerifyClientCert))
	otherService := serve(t, func(server *grpc.Server) {
		pb.RegisterJudgeServiceServer(server, pb.UnimplementedJudgeServiceServer{})
	})
	own := WithCertificates(certs, RoleOperator)
	for _, c := range []struct {
		name, address string
		options       []Option
		code          codes.Code
		says          string
	}{
		{"nothing listens", "127.0.0.1:1", nil, codes.Unavailable, "Nothing listens there"},
		{"HTTP/1", strings.TrimPrefix(web.URL, "http://"), nil, codes.Unavailable, "HTTP/1"},
		{"TLS, we speak plain text", mutual, nil, codes.Unavailable, "uses TLS"},
		{"plain text, we speak TLS", plain, []Option{own}, codes.Unavailable, "plain text"},
		{"it wants a certificate", mutual, []Option{WithCA(certs + "/ca.crt")}, codes.Unavailable, "certificate of this side"},
		{"another component's certificate", otherRole, []Option{own}, codes.Unavailable, "another component"},
		{"its CA is not ours", mutual, []Option{WithCA(foreign + "/ca.crt")}, codes.Unavailable, "not of the CA"},
		{"another service", otherService, nil, codes.Unimplemented, "does not serve this call"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := policyAt(t, c.address, c.options...).Get(within(t))
			if e := failure(t, err, c.code, codeName(c.code)); !strings.Contains(e.Advice, c.says) {
				t.Errorf("%q does not say %q", e, c.says)
			}
		})
	}
	if _, err := policyAt(t, mutual, own).Get(within(t)); err != nil {
		t.Errorf("with its certificate: %v", err)
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	for name, c := range map[string]struct {
		option Option
		says   string
	}{
		"no address":          {WithAddress(""), "HOST:PORT"},
		"no port":             {WithAddress("somewhere"), `"somewhere" is no address`},
		"a URL":               {WithAddress("http://127.0.0.1:50051"), "HOST:PORT"},
		"a URL without port":  {WithAddress("http://somewhere"), "HOST:PORT"},
		"no number":           {WithAddress("127.0.0.1:grpc-port"), "HOST:PORT"},
		"too large a number":  {WithAddress("127.0.0.1:70000"), "HOST:PORT"},
		"port 0":              {WithAddress("127.0.0.1:0"), "HOST:PORT"},
		"a key with its line": {WithKey("ocl_secret\n"), "WithKey"},
		"a key with letters":  {WithKey("ocl_sécret"), "WithKey"},
		"no CA":               {WithCA("nowhere/ca.crt"), "nowhere/ca.crt"},
	} {
		_, err := DialPolicy(c.option)
		if e := failure(t, err, codes.InvalidArgument, "INVALID_ARGUMENT"); !strings.Contains(e.Message, c.says) || strings.Contains(e.Error(), "cret") {
			t.Errorf("%s: %v", name, e)
		}
	}
	if _, err := DialPolicy(WithAddress("[::1]:50051")); err != nil {
		t.Error(err)
	}
}

func TestAnErrorOfOnesOwnHasItsDetails(t *testing.T) {
	fake := &answering{get: func(context.Context) (*pb.GetPolicyResponse, error) {
		return nil, &Error{Code: codes.InvalidArgument, Reason: "CONTEXT_TOO_LONG", Message: "no", RetryAfter: time.Second,
			Violations: []Violation{{"tools", "too many"}}, Metadata: map[string]string{"id": "7"}}
	}}
	_, err := policyAt(t, serve(t, fake.register)).Get(within(t))
	e := failure(t, err, codes.InvalidArgument, "CONTEXT_TOO_LONG")
	if len(e.Violations) != 1 || e.Violations[0].Field != "tools" || e.RetryAfter != time.Second || e.Metadata["id"] != "7" {
		t.Errorf("%+v", e)
	}
}

func TestABearerKeyIsSentAndNeverToAStrangerInPlainText(t *testing.T) {
	certs := certificates(t, RolePolicy)
	var shown []string
	fake := &answering{get: func(ctx context.Context) (*pb.GetPolicyResponse, error) {
		got, _ := metadata.FromIncomingContext(ctx)
		shown = got.Get("authorization")
		return &pb.GetPolicyResponse{}, nil
	}}
	address := serve(t, fake.register, secured(t, certs, RolePolicy, tls.NoClientCert))
	if _, err := policyAt(t, address, WithKey("ocl_1"), WithCA(certs+"/ca.crt")).Get(within(t)); err != nil {
		t.Fatal(err)
	}
	if len(shown) != 1 || shown[0] != "Bearer ocl_1" {
		t.Errorf("authorization: %q", shown)
	}
	_, err := DialPolicy(WithAddress("example.org:50151"), WithKey("ocl_secret"))
	if e := failure(t, err, codes.InvalidArgument, "INVALID_ARGUMENT"); strings.Contains(e.Error(), "ocl_secret") || !strings.Contains(e.Error(), "WithCA") {
		t.Error(e)
	}
}

func TestMessagesHaveALimit(t *testing.T) {
	fake := &answering{score: func(request *pb.ScoreRequest) *pb.ScoreResponse {
		return &pb.ScoreResponse{Logprobs: make([]float32, request.TokenIds[0])}
	}}
	policy := policyAt(t, serve(t, fake.register))
	if logprobs, _, err := policy.Score(within(t), []int32{3 << 20}, nil); err != nil || len(logprobs) != 3<<20 { // 12 MB
		t.Fatalf("%d, %v", len(logprobs), err)
	}
	_, _, err := policy.Score(within(t), []int32{5 << 20}, nil)
	if e := failure(t, err, codes.ResourceExhausted, "RESOURCE_EXHAUSTED"); !strings.Contains(e.Advice, "16 MB") || e.Retryable() {
		t.Error(e)
	}
	long := make([]int32, 6<<20)
	for i := range long {
		long[i] = 1 << 28 // five bytes each
	}
	_, _, err = policy.Score(within(t), long, nil)
	if e := failure(t, err, codes.ResourceExhausted, "RESOURCE_EXHAUSTED"); !strings.Contains(e.Advice, "16 MB") {
		t.Error(e)
	}
}

func TestDeadlineAndCancellation(t *testing.T) {
	ended := make(chan error, 2)
	fake := &answering{get: func(ctx context.Context) (*pb.GetPolicyResponse, error) {
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}}
	address := serve(t, fake.register)

	_, err := policyAt(t, address, WithTimeout(50*time.Millisecond)).Get(t.Context())
	failure(t, err, codes.DeadlineExceeded, "DEADLINE_EXCEEDED")
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		t.Error("errors.Is")
	}
	<-ended

	ctx, cancel := context.WithCancel(within(t))
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err = policyAt(t, address).Get(ctx)
	failure(t, err, codes.Canceled, "CANCELLED")
	if !errors.Is(err, context.Canceled) {
		t.Error("errors.Is")
	}
	select {
	case <-ended:
	case <-within(t).Done():
		t.Error("the server was not told")
	}
}

// component is one that says what the test wants of itself.
type component struct {
	pb.UnimplementedComponentServiceServer
	status *pb.ComponentStatus
}

func (c *component) GetStatus(context.Context, *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	return &pb.GetStatusResponse{Status: c.status}, nil
}

func TestCheckComparesContractAndComponent(t *testing.T) {
	for _, c := range []struct {
		name, component, version, reason string
		warnings                         int
	}{
		{"the same", RolePolicy, ContractVersion, "", 0},
		{"an old one without a version", RolePolicy, "", "", 1},
		{"a newer minor", RolePolicy, "1.999", "", 0},
		{"another major", RolePolicy, "2.0", ReasonContractMismatch, 0},
		{"nonsense", RolePolicy, "new", ReasonContractMismatch, 0},
		{"another component", RoleJudge, ContractVersion, ReasonWrongComponent, 0},
		{"none", "", ContractVersion, ReasonWrongComponent, 0},
		{"no status at all", "", "-", ReasonWrongComponent, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			fake := &component{status: &pb.ComponentStatus{Name: c.component, ContractVersion: c.version}}
			if c.version == "-" {
				fake.status = nil
			}
			address := serve(t, func(server *grpc.Server) { pb.RegisterComponentServiceServer(server, fake) })
			report, err := policyAt(t, address).Check(within(t))
			if c.reason != "" {
				e := failure(t, err, codes.FailedPrecondition, c.reason)
				if c.reason == ReasonContractMismatch && (!strings.Contains(e.Message, c.version) || !strings.Contains(e.Message, ContractVersion)) {
					t.Errorf("%v does not name both versions", e)
				}
				return
			}
			if err != nil || len(report.Warnings) != c.warnings {
				t.Errorf("%v, %v", report, err)
			}
		})
	}
}
