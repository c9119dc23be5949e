// Chat with the policy of a running mesh, and tell it how good its answer was.
//
//	go run ./examples/chat -session trip "Three sights in Kyoto?"
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"

	openclaw "github.com/openclaw-rl/openclaw-rl/clients/go"
	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

func main() {
	log.SetFlags(0)
	address := flag.String("policy", "127.0.0.1:50051", "address of the policy server, HOST:PORT")
	session := flag.String("session", "go-example", "conversation that the turn belongs to")
	flag.Parse()
	if err := chat(*address, *session, strings.Join(flag.Args(), " ")); err != nil {
		log.Fatal(err)
	}
}

func chat(address, session, question string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt) // Ctrl-C ends the generation, too
	defer stop()
	policy, err := openclaw.DialPolicy(openclaw.WithAddress(address))
	if err != nil {
		return err
	}
	defer policy.Close()

	var turnID string
	for event, err := range policy.Chat(ctx, &pb.ChatRequest{
		Messages: []*pb.ChatMessage{openclaw.User(question)},
		Turn:     openclaw.InSession(session),
	}) {
		if err != nil {
			return err
		}
		if start := event.GetStart(); start != nil {
			turnID = start.TurnId
			fmt.Printf("version %d: ", start.PolicyVersion)
		}
		fmt.Print(event.GetDelta().GetContent())
	}
	fmt.Println()
	_, err = policy.Rate(ctx, turnID, 1, "just what I wanted")
	return err
}
