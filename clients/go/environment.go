package openclaw

import (
	"context"
	"iter"

	"google.golang.org/grpc"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// Environment is a client of the environment server: sessions, live sessions, sandboxes, episodes.
type Environment struct {
	*Component
	// Raw is the generated stub.
	Raw pb.EnvironmentServiceClient
}

// DialEnvironment makes a client of an environment server; it connects with the first call.
func DialEnvironment(opts ...Option) (*Environment, error) {
	c, err := dial(RoleEnvironment, local(EnvironmentPort), opts)
	if err != nil {
		return nil, err
	}
	return &Environment{c, pb.NewEnvironmentServiceClient(c.conn)}, nil
}

// Session tells a session and its turns.
func (e *Environment) Session(ctx context.Context, session string) (*pb.GetSessionResponse, error) {
	return e.Raw.GetSession(ctx, &pb.GetSessionRequest{SessionId: session})
}

// EndSession ends a session; it returns how many turns got their next state by it.
func (e *Environment) EndSession(ctx context.Context, session string) (closed int32, err error) {
	response, err := e.Raw.EndSession(ctx, &pb.EndSessionRequest{SessionId: session})
	return response.GetClosedTurns(), err
}

// Turns lists turns, the newest first, a page at a time as the loop needs them. A nil request means all.
func (e *Environment) Turns(ctx context.Context, request *pb.ListTurnsRequest) iter.Seq2[*pb.TurnSummary, error] {
	return func(yield func(*pb.TurnSummary, error) bool) {
		next := &pb.ListTurnsRequest{SessionId: request.GetSessionId(), PageSize: request.GetPageSize(),
			PageToken: request.GetPageToken(), IncludeSuperseded: request.GetIncludeSuperseded(),
			TurnIds: request.GetTurnIds(), TurnClasses: request.GetTurnClasses(), Text: request.GetText()}
		if request != nil {
			next.PolicyVersion = request.PolicyVersion
		}
		for {
			page, err := e.Raw.ListTurns(ctx, next)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, turn := range page.Turns {
				if !yield(turn, nil) {
					return
				}
			}
			if next.PageToken = page.NextPageToken; next.PageToken == "" {
				return
			}
		}
	}
}

// RunEpisodes lets the policy act in sandboxes, and tells each episode's progress.
func (e *Environment) RunEpisodes(ctx context.Context, request *pb.RunEpisodesRequest) iter.Seq2[*pb.RunEpisodesResponse, error] {
	return once(ctx, func(ctx context.Context) (grpc.ServerStreamingClient[pb.RunEpisodesResponse], error) {
		return e.Raw.RunEpisodes(ctx, request)
	})
}
