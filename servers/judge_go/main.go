// Command judge_go is a judge of an OpenClaw-RL mesh: it takes turns with what came after them, votes, and hands samples
// to the trainer. See README.md.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	openclaw "github.com/openclaw-rl/openclaw-rl/clients/go"
)

const version = "0.1.0"

type options struct {
	listen, data, trainer, certs string
	mesh                         string
	model, baseURL               string
	votes, workers               int
	voteTimeout                  time.Duration
	showRefused                  bool
	key                          string
	log                          *slog.Logger
}

const usage = `judge_go: a judge of an OpenClaw-RL mesh

    judge_go --listen 127.0.0.1:50053 --data ~/judge --trainer 127.0.0.1:50054 --mesh $(openclaw-rl mesh id)

It judges by rules; with --model, by any OpenAI-compatible model, whose key is in the variable OPENAI_API_KEY, with the
rules beside it where they are certain. The mesh takes it by ` + "`components: {prm_judge: {address: 127.0.0.1:50053}}`" + `.

`

// parse reads the command line. flag.ErrHelp after --help.
func parse(args []string, environ func(string) string, out io.Writer) (*options, error) {
	o := &options{key: environ("OPENAI_API_KEY"), log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	flags := flag.NewFlagSet("judge_go", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.listen, "listen", "127.0.0.1:50053", "where to serve, `HOST:PORT`; port 0 means any free one")
	flags.StringVar(&o.data, "data", "", "`folder` for what it has to remember (required)")
	flags.StringVar(&o.trainer, "trainer", "", "`HOST:PORT` of the trainer (required)")
	flags.StringVar(&o.certs, "certs", "", "`folder` with ca.crt, prm_judge.crt and prm_judge.key: mutual TLS on both sides")
	flags.StringVar(&o.mesh, "mesh", environ(openclaw.MeshVariable), "`id` of the mesh (openclaw-rl mesh id), by which components of another one are refused; default: the variable OPENCLAW_RL_MESH, else the certificate's")
	flags.StringVar(&o.model, "model", "", "`name` of the model that judges; without it the rules do")
	flags.StringVar(&o.baseURL, "base-url", "https://api.openai.com/v1", "`address` of the model's API")
	flags.IntVar(&o.votes, "votes", 3, "votes of the model on each turn, 1 to 15")
	flags.DurationVar(&o.voteTimeout, "vote-timeout", 30*time.Second, "longest time for a vote with all its tries")
	flags.IntVar(&o.workers, "workers", 4, "turns that the model judges at the same time, 1 to 256")
	flags.BoolVar(&o.showRefused, "show-refused", false, "list the messages that were refused, with the reasons, and end (the judge must not run)")
	flags.Usage = func() {}
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		flags.SetOutput(out)
		fmt.Fprint(out, usage)
		flags.PrintDefaults()
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("%w; see --help", err)
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("%q is no option; see --help", flags.Arg(0))
	}
	if o.data == "" {
		return nil, errors.New("--data: must be a folder for what the judge has to remember")
	}
	if o.showRefused {
		return o, nil
	}
	for _, address := range []struct {
		name, value string
		from        uint64 // of the port
	}{{"listen", o.listen, 0}, {"trainer", o.trainer, 1}} {
		_, port, err := net.SplitHostPort(address.value)
		if number, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || number < address.from {
			return nil, fmt.Errorf("--%s: %q is not allowed: must be HOST:PORT", address.name, address.value)
		}
	}
	if host, _, _ := net.SplitHostPort(o.listen); o.certs == "" && host != "localhost" && !net.ParseIP(host).IsLoopback() {
		return nil, fmt.Errorf("--listen: %s without --certs is not allowed: anybody on the network could read and change everything; give --certs, or listen on 127.0.0.1", o.listen)
	}
	for _, number := range []struct {
		name      string
		value, to int
	}{{"votes", o.votes, 15}, {"workers", o.workers, 256}} {
		if number.value < 1 || number.value > number.to {
			return nil, fmt.Errorf("--%s: %d is not allowed: must be from 1 to %d", number.name, number.value, number.to)
		}
	}
	if o.voteTimeout <= 0 {
		return nil, fmt.Errorf("--vote-timeout: %s is not allowed: must be more than 0, such as 30s", o.voteTimeout)
	}
	if api, err := url.Parse(o.baseURL); err != nil || api.Host == "" || api.Scheme != "http" && api.Scheme != "https" {
		return nil, fmt.Errorf("--base-url: %q is not allowed: must be an address such as http://127.0.0.1:8000/v1", o.baseURL)
	}
	if o.model != "" && o.key == "" && o.baseURL == "https://api.openai.com/v1" {
		return nil, errors.New("OPENAI_API_KEY: must be set to the key of the model's API; or leave --model out")
	}
	return o, nil
}

func (o *options) panel() *panel {
	if o.model == "" {
		return &panel{judge: rules{}, votes: 1, timeout: o.voteTimeout}
	}
	return &panel{judge: newLLM(o.baseURL, o.model, o.key, o.votes), votes: o.votes, timeout: o.voteTimeout, guard: rules{}}
}

func main() {
	o, err := parse(os.Args[1:], os.Getenv, os.Stdout)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "judge_go:", err)
		os.Exit(2)
	}
	if o.showRefused {
		err = showRefused(o.data, os.Stdout)
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		err = serve(ctx, o, func(address string) { fmt.Printf("%s serves gRPC on %s\n", openclaw.RoleJudge, address) })
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "judge_go:", err)
		os.Exit(1)
	}
}

// showRefused lists what was not taken, by this judge or by the trainer.
func showRefused(data string, out io.Writer) error {
	if _, err := os.Stat(filepath.Join(data, "state.db")); err != nil {
		return err
	}
	store, err := openStore(data)
	if err != nil {
		return err
	}
	defer store.close()
	return store.view(func(tx *txn) error {
		tx.bucket(refused).each(func(_, value []byte) {
			reason, message, _ := bytes.Cut(value, []byte("\x00"))
			fmt.Fprintf(out, "%s (%d bytes)\n", reason, len(message))
		})
		return nil
	})
}
