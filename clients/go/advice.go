package openclaw

import (
	"strings"

	"google.golang.org/grpc/codes"
)

// What gRPC, TLS and HTTP/2 say when two sides don't match, and what that means. The first one that fits counts.
var advices = []struct {
	code  codes.Code
	marks []string // all of them are in the text
	say   string
}{
	{codes.Unavailable, []string{"looked like an HTTP/1.1 header"}, speaksHTTP1},
	{codes.Unavailable, []string{"certificate required"}, wantsCertificate},
	{codes.Unavailable, []string{"first record does not look like a TLS handshake"},
		"It speaks plain text and this side TLS: leave the certificates out, or set security.tls: on there"},
	{codes.Unavailable, []string{"authentication handshake failed", "EOF"},
		"It closed the connection during the TLS handshake: it probably speaks plain text; leave the certificates out, or set security.tls: on there"},
	{codes.Unavailable, []string{"authentication handshake failed", "context deadline exceeded"},
		"It does not answer the TLS handshake: it probably speaks plain text; leave the certificates out, or set security.tls: on there"},
	{codes.Unavailable, []string{"certificate is valid for"},
		"Its certificate is that of another component or host: check the address, or WithServerName"},
	{codes.Unavailable, []string{"failed to verify certificate"},
		"Its certificate is not of the CA that this side trusts, or out of date: compare `openclaw-rl certs show` on both sides"},
	{codes.Unavailable, []string{"remote error: tls"},
		"It does not take this side's certificate: compare `openclaw-rl certs show` on both sides"},
	{codes.Unavailable, []string{"connection refused"},
		"Nothing listens there: start the component (`openclaw-rl local-start`), or correct the address (`openclaw-rl status` shows it)"},
	{codes.Unavailable, []string{"no such host"},
		"There is no host of this name: correct the address (HOST:PORT)"},
	{codes.Unavailable, []string{"produced zero addresses"},
		"There is no host of this name: correct the address (HOST:PORT)"},
	{codes.Unavailable, []string{"error reading server preface"}, closedAtOnce},
	{codes.Unavailable, []string{"broken pipe"}, broke},
	{codes.Unavailable, []string{"reset by peer"}, broke},
	{codes.Unavailable, []string{"error reading from server"}, broke},
	{codes.Unavailable, []string{"connection error"},
		"It can't be connected to: check the address and that the component runs (`openclaw-rl status`)"},
	{codes.Unimplemented, []string{"unknown service"}, otherService},
	{codes.Unimplemented, []string{"Method not found"}, otherService},
	{codes.Unimplemented, []string{"unknown method"}, otherService},
	{codes.ResourceExhausted, []string{"larger than max"},
		"A message has at most 16 MB in either direction: send less at once, or ask for less"},
	{codes.Internal, []string{"content-type"},
		"It does not answer as gRPC does: use the component's gRPC port, not its HTTP door"},
	{codes.Unknown, []string{"content-type"},
		"It does not answer as gRPC does: use the component's gRPC port, not its HTTP door"},
	{codes.DeadlineExceeded, nil,
		"It took longer than the deadline: give the context more time (or WithTimeout), or see what the component is busy with (`openclaw-rl status`)"},
}

const (
	speaksHTTP1 = "The address speaks HTTP/1 and not gRPC: use the component's gRPC port (`openclaw-rl status` shows it), not its HTTP door"
	speaksTLS   = "The address speaks TLS and this side plain text: use WithCertificates, or WithKey and WithCA on its keys_port"
	broke       = "The connection broke: the component is stopping or starting; or it uses TLS and this side does not (WithCertificates, or WithKey and WithCA on its keys_port)"

	closedAtOnce     = "It closed the connection at once: if it uses TLS, this side has to use WithCertificates, or WithKey and WithCA on its keys_port; else it does not speak gRPC"
	wantsCertificate = "It wants a certificate of this side: use WithCertificates, or its keys_port with WithKey and WithCA"
)

const otherService = "The component at this address does not serve this call: it is another component (Check tells which), or of an older release"

func advice(e *Error) string {
	if e.Reason != codeName(e.Code) { // a component of ours has said it itself
		return ""
	}
	for _, a := range advices {
		if a.code == e.Code && containsAll(e.Message, a.marks) {
			return a.say
		}
	}
	return ""
}

func containsAll(text string, marks []string) bool {
	for _, mark := range marks {
		if !strings.Contains(text, mark) {
			return false
		}
	}
	return true
}
