// Package openclaw is the Go client of an OpenClaw-RL mesh: an agent that learns from being used.
//
// Each component has a client: [Policy] answers, [Environment] keeps sessions and leases sandboxes, [Judge] scores
// turns, [Trainer] tells versions. Each is made by its Dial function, embeds what all components have in common
// ([Component]), and is safe for concurrent use.
//
//	policy, err := openclaw.DialPolicy(openclaw.WithAddress("127.0.0.1:50051"))
//	if err != nil { ... }
//	defer policy.Close()
//	for event, err := range policy.Chat(ctx, &pb.ChatRequest{Messages: []*pb.ChatMessage{openclaw.User("Hello")}}) {
//		if err != nil { ... }
//		fmt.Print(event.GetDelta().GetContent())
//	}
//
// # Streams
//
// Streams are iterators ([iter.Seq2]) that end after the first error. Leaving the loop, or ending the context, cancels
// the call at the server. The watches (WatchPolicy, WatchStats, WatchJudgements, WatchTraining) connect again by
// themselves, after growing pauses, until the loop is left, the context ends or the server refuses for good; see
// [WithReconnect]. A [Delivery] sends the messages of the ring (turns, transitions, samples) and sends again what is
// not acknowledged.
//
// # Errors
//
// What a call returns is an [*Error], with the code, reason, violations and pause that the server told:
//
//	if e, ok := errors.AsType[*openclaw.Error](err); ok && e.Retryable() { time.Sleep(e.RetryAfter) }
//
// errors.Is(err, context.DeadlineExceeded) and errors.Is(err, context.Canceled) hold for these ends of a call, and
// google.golang.org/grpc/status reads an *Error as it reads any error of gRPC.
//
// # What the layer does not wrap
//
// Each client's Raw field is the generated stub, with the same connection, errors and deadlines.
package openclaw
