package main

import (
	"crypto/tls"
	"encoding/pem"
	"net"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/audit/internal/forward"
	"durward.internal/services/platform/platformtest/syslogtest"
	"durward.internal/services/platform/platformtest/testfile"
)

// TestCollectorOverTLS: a collector that proves the name which the file gives, by the authority that it gives, is sent records. Of any other
// the error, which status and doctor show, says what is wrong; a collector that was away is found again.
func TestCollectorOverTLS(t *testing.T) {
	known := httptest.NewTLSServer(nil) // which has a certificate for 127.0.0.1
	defer known.Close()
	authority := filepath.Join(t.TempDir(), "ca.pem")
	testfile.Write(t, authority, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: known.Certificate().Raw})))
	answer := error(nil)
	serve := func(address string) (*grpc.Server, string) {
		t.Helper()
		lis, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: known.TLS.Certificates, MinVersion: tls.VersionTLS12})), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			if err := stream.RecvMsg(&emptypb.Empty{}); err != nil {
				return err
			}
			if answer != nil {
				return answer
			}
			return stream.SendMsg(&emptypb.Empty{})
		}))
		go func() { _ = server.Serve(lis) }()
		t.Cleanup(server.Stop)
		return server, lis.Addr().String()
	}
	server, address := serve("127.0.0.1:0")
	send := func(d forwarding) error {
		t.Helper()
		d.Name = "lake"
		if err := d.validate(); err != nil {
			t.Fatal(err)
		}
		out, err := (&settings{Forward: []forwarding{d}}).dialer(nil)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := collector(d.OTLP, d.tls, out)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return forward.NewOTLP(conn, "durward.local/audit/main").Send(t.Context(), []*auditv1.ForwardedRecord{{}})
	}
	good := forwarding{OTLP: address, Authorities: authority}
	if err := send(good); err != nil {
		t.Errorf("the collector: %v", err)
	}
	for want, d := range map[string]forwarding{
		"signed by unknown authority":                {OTLP: address, Authorities: syslogtest.New(t).CA},
		"not siem.example.org":                       {OTLP: address, Authorities: authority, ServerName: "siem.example.org"},
		"the collector does not answer as it should": {OTLP: address}, // in clear
	} {
		if err := send(d); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", d, err, want)
		}
	}
	answer = status.Error(codes.Unavailable, "a stranger's words")
	if err := send(good); err == nil || err.Error() != "the collector does not answer as it should: Unavailable" {
		t.Errorf("one that says no: %v", err)
	}
	answer = nil
	server.Stop()
	if err := send(good); err == nil || !strings.Contains(err.Error(), "the collector cannot be reached: ") || !strings.Contains(err.Error(), "refused") {
		t.Errorf("one that is away: %v", err)
	}
	serve(address)
	if err := send(good); err != nil {
		t.Errorf("one that came back: %v", err)
	}
}

// TestAuthoritiesAreReadAgain: a file that is put right, or renewed, counts for the next connection, without a restart of the relay.
func TestAuthoritiesAreReadAgain(t *testing.T) {
	receiver, stranger := syslogtest.New(t), syslogtest.New(t)
	authorities := filepath.Join(t.TempDir(), "ca.pem")
	testfile.Write(t, authorities, string(testfile.Read(t, stranger.CA)))
	d := forwarding{Name: "siem", Syslog: receiver.Address, Authorities: authorities}
	if err := d.validate(); err != nil {
		t.Fatal(err)
	}
	to := forward.NewSyslog(forward.SyslogConfig{
		Dial: (&net.Dialer{}).DialContext, Address: d.Syslog, TLS: d.tls, Origin: "durward.local/audit/main", Host: "h", MaxMessage: forward.LeastMessage,
	})
	if err := to.Send(t.Context(), []*auditv1.ForwardedRecord{{}}); err == nil || !strings.Contains(err.Error(), "signed by unknown authority") {
		t.Errorf("by a stranger's authority: %v", err)
	}
	testfile.Write(t, authorities, string(testfile.Read(t, receiver.CA)))
	if err := to.Send(t.Context(), []*auditv1.ForwardedRecord{{}}); err != nil {
		t.Errorf("once the file is right: %v", err)
	}
}
