package openclaw

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// ContractVersion is the version of the contract (protos/VERSION) that this package was made with.
const ContractVersion = "1.1"

// Component is what the clients of all four components have in common. Use it alone to ask any component how it is.
type Component struct {
	// RawComponent is the generated stub of ComponentService.
	RawComponent pb.ComponentServiceClient

	conn    *grpc.ClientConn
	options *options
}

// DialComponent makes a client of whatever component is at an address.
func DialComponent(address string, opts ...Option) (*Component, error) {
	return dial("", address, opts)
}

func dial(role, address string, opts []Option) (*Component, error) {
	o := gather(role, address, opts)
	conn, err := connect(o)
	if err != nil {
		return nil, err
	}
	return &Component{RawComponent: pb.NewComponentServiceClient(conn), conn: conn, options: o}, nil
}

func local(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// Conn is the connection, for stubs of your own.
func (c *Component) Conn() *grpc.ClientConn { return c.conn }

// Address is where the component is expected, HOST:PORT.
func (c *Component) Address() string { return c.options.address }

// Close ends the connection and all calls on it.
func (c *Component) Close() error { return c.conn.Close() }

// Status tells the component's state and figures.
func (c *Component) Status(ctx context.Context) (*pb.ComponentStatus, error) {
	response, err := c.RawComponent.GetStatus(ctx, &pb.GetStatusRequest{})
	return response.GetStatus(), err
}

// Report is what Check found.
type Report struct {
	// Status is the component's.
	Status *pb.ComponentStatus
	// Warnings are for a person; the component can be used in spite of them.
	Warnings []string
}

// Check asks the component who it is. An error has the reason CONTRACT_MISMATCH when it speaks another major version of
// the contract, and WRONG_COMPONENT when it is another one than this client is for.
func (c *Component) Check(ctx context.Context) (*Report, error) {
	status, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	if status == nil { // a server that answers with nothing
		status = &pb.ComponentStatus{}
	}
	problem := func(reason, message string) (*Report, error) {
		return nil, &Error{Code: codes.FailedPrecondition, Reason: reason, Message: message, Address: c.options.address}
	}
	if want := c.options.role; want != "" && status.Name != want {
		return problem(ReasonWrongComponent, fmt.Sprintf("%s answers there, not %s: correct the address (`openclaw-rl status` shows all)",
			orUnknown(status.Name), want))
	}
	theirs := status.ContractVersion
	if theirs == "" {
		theirs = "1.0"
	}
	major, minor, err := splitVersion(theirs)
	if err != nil {
		return problem(ReasonContractMismatch, fmt.Sprintf("it says contract %q, this client has %s; a version is MAJOR.MINOR",
			theirs, ContractVersion))
	}
	ourMajor, ourMinor, _ := splitVersion(ContractVersion)
	if major != ourMajor {
		return problem(ReasonContractMismatch, fmt.Sprintf("it speaks contract %s (package %s), this client %s: use a client of its major version",
			theirs, orUnknown(status.PackageVersion), ContractVersion))
	}
	report := &Report{Status: status}
	if minor < ourMinor {
		report.Warnings = append(report.Warnings, fmt.Sprintf("it speaks contract %s, this client %s: what was added since is missing there",
			theirs, ContractVersion))
	}
	if status.State == pb.ComponentState_COMPONENT_STATE_DEGRADED {
		report.Warnings = append(report.Warnings, "it is degraded: "+status.Detail)
	}
	return report, nil
}

func orUnknown(text string) string {
	if text == "" {
		return "(unknown)"
	}
	return text
}

func splitVersion(version string) (major, minor int, err error) {
	a, b, _ := strings.Cut(version, ".")
	if major, err = strconv.Atoi(a); err != nil {
		return
	}
	minor, err = strconv.Atoi(b)
	return
}

// WatchStats tells the component's status again and again; interval is 100 ms to 1 h, 0 means 1 s.
func (c *Component) WatchStats(ctx context.Context, interval time.Duration) iter.Seq2[*pb.WatchStatsResponse, error] {
	request := &pb.WatchStatsRequest{}
	if interval != 0 {
		request.Interval = durationpb.New(interval)
	}
	return watch(ctx, c.options, "ComponentService/WatchStats",
		func(ctx context.Context) (grpc.ServerStreamingClient[pb.WatchStatsResponse], error) {
			return c.RawComponent.WatchStats(ctx, request)
		})
}

// Drain lets the component end its running work, for at most grace (0 means 30 s), and stop.
func (c *Component) Drain(ctx context.Context, grace time.Duration) error {
	request := &pb.DrainRequest{}
	if grace != 0 {
		request.Grace = durationpb.New(grace)
	}
	_, err := c.RawComponent.Drain(ctx, request)
	return err
}

// Forget removes a session from everything that this component keeps; `openclaw-rl forget` does so at all of them, in
// the right order. A zero before means now.
func (c *Component) Forget(ctx context.Context, session string, before time.Time, turnIDs ...string) (*pb.ForgetResponse, error) {
	request := &pb.ForgetRequest{SessionId: session, TurnIds: turnIDs}
	if !before.IsZero() {
		request.Before = timestamppb.New(before)
	}
	return c.RawComponent.Forget(ctx, request)
}
