// go ADDRESS SECONDS CALLERS STREAMS: see ../../clients.py.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	openclaw "github.com/openclaw-rl/openclaw-rl/clients/go"
	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// during runs work in so many goroutines until the time is over, and tells how much of it was done and how long it took.
func during(seconds float64, workers int, work func() (int64, error)) (int64, float64) {
	var done atomic.Int64
	var group sync.WaitGroup
	began := time.Now()
	for range workers {
		group.Go(func() {
			for time.Since(began).Seconds() < seconds {
				n, err := work()
				if err != nil {
					log.Fatal(err)
				}
				done.Add(n)
			}
		})
	}
	group.Wait()
	return done.Load(), time.Since(began).Seconds()
}

func main() {
	seconds, _ := strconv.ParseFloat(os.Args[2], 64)
	callers, _ := strconv.Atoi(os.Args[3])
	streams, _ := strconv.Atoi(os.Args[4])
	policy, err := openclaw.DialPolicy(openclaw.WithAddress(os.Args[1]))
	if err != nil {
		log.Fatal(err)
	}
	defer policy.Close()
	ctx, ids := context.Background(), make([]int32, 16)
	call := func() (int64, error) {
		_, _, err := policy.Score(ctx, ids, nil)
		return 1, err
	}
	chat := func() (deltas int64, err error) {
		for event, err := range policy.Chat(ctx, &pb.ChatRequest{Messages: []*pb.ChatMessage{openclaw.User("hi")}}) {
			if err != nil {
				return deltas, err
			}
			if event.GetDelta() != nil {
				deltas++
			}
		}
		return deltas, nil
	}
	during(1, callers, call)
	during(1, streams, chat)
	calls, callSeconds := during(seconds, callers, call)
	deltas, deltaSeconds := during(seconds, streams, chat)
	fmt.Printf("{\"calls\": %d, \"call_seconds\": %g, \"deltas\": %d, \"delta_seconds\": %g}\n",
		calls, callSeconds, deltas, deltaSeconds)
}
