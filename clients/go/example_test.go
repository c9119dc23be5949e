package openclaw_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	openclaw "github.com/openclaw-rl/openclaw-rl/clients/go"
	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

func ExamplePolicy_Chat() {
	policy, err := openclaw.DialPolicy()
	if err != nil {
		log.Fatal(err)
	}
	defer policy.Close()
	for event, err := range policy.Chat(context.Background(), &pb.ChatRequest{
		Messages: []*pb.ChatMessage{openclaw.User("Name three birds.")},
		Turn:     &pb.TurnOptions{SessionId: "birds", MinVersion: new(int64(1))},
		Sampling: &pb.SamplingParams{MaxTokens: new(int32(40))},
	}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(event.GetDelta().GetContent())
	}
}

func ExampleError() {
	policy, err := openclaw.DialPolicy()
	if err != nil {
		log.Fatal(err)
	}
	_, err = policy.RollBack(context.Background(), 7, "7 was better")
	if e, ok := errors.AsType[*openclaw.Error](err); ok {
		switch {
		case e.Reason == "VERSION_UNKNOWN":
			fmt.Println("version 7 is not kept any more")
		case e.Retryable():
			time.Sleep(e.RetryAfter)
		default:
			log.Fatal(e)
		}
	}
}

func ExampleDeliver() {
	judge, err := openclaw.DialJudge()
	if err != nil {
		log.Fatal(err)
	}
	delivery := openclaw.Deliver(judge.TransitionsRing(), openclaw.SenderOptions{
		OnReject: func(id, reason string) { log.Printf("%s was refused: %s", id, reason) },
	})
	defer delivery.Close()
	ctx := context.Background()
	err = delivery.Send(ctx, &pb.Transition{Turn: &pb.Turn{TurnId: "turn_1"}, NextState: &pb.NextState{}})
	if err == nil {
		err = delivery.Flush(ctx)
	}
	fmt.Println(err)
}
