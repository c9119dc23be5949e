// Watch a mesh learn: each new policy version, and each judgement.
//
//	go run ./examples/watch
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"sync"

	openclaw "github.com/openclaw-rl/openclaw-rl/clients/go"
)

func main() {
	policyAt := flag.String("policy", "127.0.0.1:50051", "address of the policy server, HOST:PORT")
	judgeAt := flag.String("judge", "127.0.0.1:50053", "address of the judge, HOST:PORT")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	logger := openclaw.WithLogger(slog.Default()) // tells of broken and renewed streams
	policy, err := openclaw.DialPolicy(openclaw.WithAddress(*policyAt), logger)
	if err != nil {
		log.Fatal(err)
	}
	defer policy.Close()
	judge, err := openclaw.DialJudge(openclaw.WithAddress(*judgeAt), logger)
	if err != nil {
		log.Fatal(err)
	}
	defer judge.Close()

	var both sync.WaitGroup
	both.Go(func() {
		for state, err := range policy.WatchPolicy(ctx) {
			if err != nil {
				fmt.Println("versions:", err)
				return
			}
			fmt.Printf("version %d answers, kept are %v\n", state.ActiveVersion, state.KeptVersions)
		}
	})
	both.Go(func() {
		for told, err := range judge.WatchJudgements(ctx, "") {
			if err != nil {
				fmt.Println("judgements:", err)
				return
			}
			fmt.Printf("%s in %s: %+d %s\n", told.Judgement.TurnId, told.SessionId, told.Judgement.Score, told.Judgement.Hint)
		}
	})
	both.Wait()
}
