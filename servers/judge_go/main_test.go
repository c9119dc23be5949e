package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

func TestOptions(t *testing.T) {
	for line, says := range map[string]string{
		"":                           "--data",
		"--data d":                   "--trainer",
		"--data d --trainer nowhere": "--trainer",
		"--data d --trainer h:1 --listen 0.0.0.0:1":   "--listen",
		"--data d --trainer h:1 --listen [::1]:70000": "--listen",
		"--data d --trainer h:grpc":                   "--trainer",
		"--data d --trainer h:0":                      "--trainer",
		"--data d --trainer h:1 --base-url model:8":   "--base-url",
		"--data d --trainer h:1 --votes 0":            "--votes",
		"--data d --trainer h:1 --workers 1000":       "--workers",
		"--data d --trainer h:1 --vote-timeout 0s":    "--vote-timeout",
		"--data d --trainer h:1 --model gpt":          "OPENAI_API_KEY",
		"--data d --trainer h:1 extra":                "extra",
		"--data d --trainer h:1 --port 7":             "-port",
	} {
		_, err := parse(strings.Fields(line), func(string) string { return "" }, io.Discard)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", line, err)
		}
	}
	o, err := parse(strings.Fields("--data d --trainer h:1 --model m --listen [::1]:0"), func(string) string { return "key" }, io.Discard)
	if err != nil || o.panel().description() != "3 x llm:m, guarded by rules" {
		t.Error(o, err)
	}
	var help bytes.Buffer
	if _, err := parse([]string{"--help"}, os.Getenv, &help); err == nil || !strings.Contains(help.String(), "judge_go --listen") {
		t.Error(err, help.String())
	}
	if err := serve(t.Context(), &options{listen: "127.0.0.1:0", data: t.TempDir(), trainer: "h:1", certs: t.TempDir()}, nil); err == nil || !strings.HasPrefix(err.Error(), "--certs") || !strings.Contains(err.Error(), "ca.crt") {
		t.Error(err)
	}
	if err := showRefused(t.TempDir(), io.Discard); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
