// Lease a terminal, do something in it, give it back.
//
//	go run ./examples/lease "echo hello"
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"strings"
	"time"

	openclaw "github.com/openclaw-rl/openclaw-rl/clients/go"
)

func main() {
	log.SetFlags(0)
	address := flag.String("environment", "127.0.0.1:50052", "address of the environment server, HOST:PORT")
	flag.Parse()
	if err := run(context.Background(), *address, strings.Join(flag.Args(), " ")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address, command string) error {
	environment, err := openclaw.DialEnvironment(openclaw.WithAddress(address))
	if err != nil {
		return err
	}
	defer environment.Close()
	lease, err := environment.Acquire(ctx, "terminal", openclaw.LeaseOptions{Wait: 10 * time.Second, Holder: "go example"})
	if err != nil {
		return err
	}
	defer lease.Close() // until then it renews itself

	if _, err := lease.Reset(ctx, "", nil); err != nil {
		return err
	}
	step, err := lease.Step(ctx, "run", map[string]string{"command": command})
	if err != nil {
		return err
	}
	fmt.Println(step.Observation.GetJson(), step.Error)
	return nil
}
