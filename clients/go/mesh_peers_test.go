package openclaw

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

func TestMeshCertificatesAndKeys(t *testing.T) {
	address, certs := peer(t, "SECURE_JUDGE"), peer(t, "CERTS")
	ca := WithCA(filepath.Join(certs, "ca.crt"))
	if _, err := judgeAt(t, address, WithCertificates(certs, RoleOperator)).Judge(meshed(t), thumbsDown()); err != nil {
		t.Error(err)
	}
	_, err := judgeAt(t, address, WithCertificates(certs, RolePolicy)).Judge(meshed(t), thumbsDown())
	failure(t, err, codes.PermissionDenied, "WRONG_ROLE")
	_, err = judgeAt(t, address).Judge(meshed(t), thumbsDown())
	if e := failure(t, err, codes.Unavailable, "UNAVAILABLE"); !strings.Contains(e.Advice, "TLS") {
		t.Error(e)
	}
	_, err = judgeAt(t, address, ca).Judge(meshed(t), thumbsDown())
	if e := failure(t, err, codes.Unavailable, "UNAVAILABLE"); e.Advice == "" {
		t.Error(e)
	}
	_, err = policyAt(t, address, WithCertificates(certs, RoleOperator)).Get(meshed(t))
	if e := failure(t, err, codes.Unavailable, "UNAVAILABLE"); !strings.Contains(e.Advice, "another component") {
		t.Error(e)
	}
	_, err = judgeAt(t, peer(t, "JUDGE"), WithCertificates(certs, RoleOperator)).Judge(meshed(t), thumbsDown())
	if e := failure(t, err, codes.Unavailable, "UNAVAILABLE"); !strings.Contains(e.Advice, "plain text") {
		t.Error(e)
	}
	keys := peer(t, "SECURE_KEYS")
	if _, err := judgeAt(t, keys, ca, WithKey(peer(t, "KEY_CHAT"))).Judge(meshed(t), thumbsDown()); err != nil {
		t.Error(err)
	}
	_, err = judgeAt(t, keys, ca, WithKey(peer(t, "KEY_READ"))).Judge(meshed(t), thumbsDown())
	if e := failure(t, err, codes.PermissionDenied, "WRONG_SCOPE"); e.Metadata["scope"] != "chat" {
		t.Error(e)
	}
	_, err = judgeAt(t, keys, ca).Judge(meshed(t), thumbsDown())
	failure(t, err, codes.Unauthenticated, "NO_CREDENTIALS")
	_, err = judgeAt(t, keys, ca, WithKey("ocl_nobodys-key-000000000000")).Judge(meshed(t), thumbsDown())
	failure(t, err, codes.Unauthenticated, "UNKNOWN_KEY")
}

func TestMeshBadPeers(t *testing.T) {
	_, err := policyAt(t, peer(t, "HTTP1")).Get(meshed(t))
	if e := failure(t, err, codes.Unavailable, "UNAVAILABLE"); !strings.Contains(e.Advice, "HTTP/1") {
		t.Error(e)
	}
	_, err = policyAt(t, peer(t, "NEXT_MAJOR")).Check(meshed(t))
	if e := failure(t, err, codes.FailedPrecondition, ReasonContractMismatch); !strings.Contains(e.Message, "2.0") || !strings.Contains(e.Message, ContractVersion) {
		t.Error(e)
	}
	for name, reason := range map[string]string{"NEVER_ACKS": ReasonNoAck, "ACKS_OTHERS": ReasonForeignAck} {
		told := make(chan *Error, 100)
		delivery := Deliver(environmentAt(t, peer(t, name)).TurnsRing(), SenderOptions{Backoff: soon, AckTimeout: 300 * time.Millisecond, OnError: func(e *Error) { told <- e }})
		give(t, delivery, 3)
		if e := <-told; e.Reason != reason {
			t.Errorf("%s: %v", name, e)
		}
		_ = delivery.Close()
	}
	delivery := Deliver(environmentAt(t, peer(t, "CUTS")).TurnsRing(), SenderOptions{Backoff: soon})
	defer delivery.Close()
	give(t, delivery, 20)
	if err := delivery.Flush(meshed(t)); err != nil {
		t.Error(err)
	}
}
