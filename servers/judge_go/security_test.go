package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	openclaw "github.com/openclaw-rl/openclaw-rl/clients/go"
	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

func TestCertificatesSayWhoMayCallWhat(t *testing.T) {
	certs := t.TempDir()
	ca, caKey := sign(t, certs, "ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "CA"}}, nil, nil)
	for name, uri := range map[string]string{openclaw.RoleJudge: "mesh1/prm_judge", openclaw.RoleOperator: "mesh1/operator",
		openclaw.RoleEnvironment: "mesh1/env_server", openclaw.RolePolicy: "mesh1/policy_server", "stranger": "mesh2/operator", "nobody": ""} {
		template := &x509.Certificate{DNSNames: []string{openclaw.ServerName(name)}}
		if uri != "" {
			template.URIs = []*url.URL{{Scheme: "spiffe", Host: uri[:5], Path: uri[5:]}}
		}
		sign(t, certs, name, template, ca, caKey)
	}
	o := &options{data: t.TempDir(), trainer: "127.0.0.1:1", certs: certs}
	judge := start(t, o, openclaw.WithCertificates(certs, openclaw.RoleOperator))
	before, _ := counts(t, judge)
	sign(t, certs, openclaw.RoleJudge, &x509.Certificate{DNSNames: []string{openclaw.ServerName(openclaw.RoleJudge)},
		URIs: []*url.URL{{Scheme: "spiffe", Host: "mesh1", Path: "/prm_judge"}}, NotAfter: time.Now().Add(48 * time.Hour)}, ca, caKey)
	renewed, _ := counts(t, judge)
	if !before.Secure || renewed.CertificateExpiresAt.AsTime().Sub(before.CertificateExpiresAt.AsTime()) < 24*time.Hour {
		t.Error(before, renewed)
	}
	as := func(role string) *openclaw.Judge {
		client, err := openclaw.DialJudge(openclaw.WithAddress(judge.Address()), openclaw.WithCertificates(certs, role))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	for role, reason := range map[string]string{openclaw.RoleOperator: "", openclaw.RoleEnvironment: "", openclaw.RolePolicy: "WRONG_ROLE",
		"stranger": "FOREIGN_MESH", "nobody": "FOREIGN_MESH"} {
		_, err := as(role).Judge(t.Context(), turn("turn_1", "s", "Thanks"))
		if e := openclaw.AsError(err); (reason == "") != (err == nil) || e != nil && (e.Reason != reason || e.Code != codes.PermissionDenied) {
			t.Errorf("%s: %v", role, err)
		}
	}
	if _, err := as(openclaw.RolePolicy).Status(t.Context()); err != nil {
		t.Error("all may ask how it is:", err)
	}
	for role, code := range map[string]codes.Code{openclaw.RoleEnvironment: codes.OK, openclaw.RoleOperator: codes.PermissionDenied} {
		stream, err := as(role).Raw.JudgeTransitions(t.Context())
		if err == nil {
			_ = stream.Send(&pb.JudgeTransitionsRequest{Transitions: []*pb.Transition{turn("turn_"+role, "s", "Thanks")}})
			_, err = stream.Recv()
		}
		if e := openclaw.AsError(err); (e == nil) != (code == codes.OK) || e != nil && (e.Code != code || e.Reason != "WRONG_ROLE") {
			t.Errorf("the ring for %s: %v", role, err)
		}
	}
}

func TestACertificateOfAnotherRoleIsRefused(t *testing.T) {
	certs := t.TempDir()
	ca, caKey := sign(t, certs, "ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "CA"}}, nil, nil)
	sign(t, certs, openclaw.RoleJudge, &x509.Certificate{URIs: []*url.URL{{Scheme: "spiffe", Host: "mesh1", Path: "/trainer"}}}, ca, caKey)
	err := serve(t.Context(), &options{listen: "127.0.0.1:0", data: t.TempDir(), trainer: "127.0.0.1:1", certs: certs, log: discard}, nil)
	if err == nil || !strings.Contains(err.Error(), `is for "trainer"`) {
		t.Error(err)
	}
}

func sign(t *testing.T, folder, name string, template, ca *x509.Certificate, caKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	fail := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fail(err)
	template.SerialNumber, template.NotBefore = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	if ca == nil {
		ca, caKey = template, own
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, &own.PublicKey, caKey)
	fail(err)
	private, err := x509.MarshalPKCS8PrivateKey(own)
	fail(err)
	fail(os.WriteFile(filepath.Join(folder, name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	fail(os.WriteFile(filepath.Join(folder, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	certificate, err := x509.ParseCertificate(der)
	fail(err)
	return certificate, own
}
