// Ask a judge what it thinks of an answer, given what the user said next.
//
//	go run ./examples/judge "Capital of Australia?" "Sydney." "No, it is Canberra."
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"

	openclaw "github.com/openclaw-rl/openclaw-rl/clients/go"
	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

func main() {
	log.SetFlags(0)
	address := flag.String("judge", "127.0.0.1:50053", "address of the judge, HOST:PORT")
	certs := flag.String("certs", "", "folder with ca.crt, operator.crt and operator.key, for a mesh with TLS")
	flag.Parse()
	if flag.NArg() != 3 {
		log.Fatal("three texts are needed: the question, the answer, what the user said next")
	}
	options := []openclaw.Option{openclaw.WithAddress(*address)}
	if *certs != "" {
		options = append(options, openclaw.WithCertificates(*certs, openclaw.RoleOperator))
	}
	judge, err := openclaw.DialJudge(options...)
	if err != nil {
		log.Fatal(err)
	}
	defer judge.Close()
	judgement, err := judge.Judge(context.Background(), &pb.Transition{
		Turn: &pb.Turn{Messages: []*pb.ChatMessage{openclaw.User(flag.Arg(0))},
			Response: &pb.ChatMessage{Role: "assistant", Content: flag.Arg(1)}},
		NextState: &pb.NextState{Kind: pb.NextStateKind_NEXT_STATE_KIND_CONTINUED,
			Messages: []*pb.ChatMessage{openclaw.User(flag.Arg(2))}}})
	if e, ok := errors.AsType[*openclaw.Error](err); ok {
		for _, violation := range e.Violations {
			log.Printf("%s: %s", violation.Field, violation.Description)
		}
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%+d (%s) %s\n", judgement.Score, judgement.Panel, judgement.Hint)
}
