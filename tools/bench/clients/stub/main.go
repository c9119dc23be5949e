// A policy server that does no work: what is measured at it is the client.
package main

import (
	"context"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

const deltas = 256 // of each chat

type stub struct {
	pb.UnimplementedPolicyServiceServer
}

func (stub) Score(_ context.Context, request *pb.ScoreRequest) (*pb.ScoreResponse, error) {
	return &pb.ScoreResponse{Logprobs: make([]float32, len(request.TokenIds)-1)}, nil
}

func (stub) Chat(_ *pb.ChatRequest, stream grpc.ServerStreamingServer[pb.ChatResponse]) error {
	start := &pb.ChatStart{TurnId: "turn", SessionId: "session", Model: "stub"}
	if err := stream.Send(&pb.ChatResponse{Event: &pb.ChatResponse_Start{Start: start}}); err != nil {
		return err
	}
	delta := &pb.ChatResponse{Event: &pb.ChatResponse_Delta{Delta: &pb.ChatDelta{
		Content: "word", Tokens: []*pb.TokenChunk{{Id: 7, Logprob: -0.5, ModelLogprob: -0.5}}}}}
	for range deltas {
		if err := stream.Send(delta); err != nil {
			return err
		}
	}
	end := &pb.ChatEnd{Generation: &pb.GenerationEnd{CompletionTokens: deltas}, Message: &pb.ChatMessage{Role: "assistant"}}
	return stream.Send(&pb.ChatResponse{Event: &pb.ChatResponse_End{End: end}})
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterPolicyServiceServer(server, stub{})
	fmt.Println(listener.Addr())
	log.Fatal(server.Serve(listener))
}
