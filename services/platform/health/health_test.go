package health_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"durward.internal/services/platform/health"
	"durward.internal/services/platform/rpc"
)

func TestHealthyWantsThatVeryProcess(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	answer := `{"status":"ok","service":"vault"}`
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(answer)) }), ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	address := listener.Addr().String()
	for _, c := range []struct {
		answer string
		want   bool
	}{
		{`{"status":"ok","service":"audit"}`, false},
		{`{"status":"unavailable","service":"vault"}`, false},
		{`hello`, false},
		{``, false},
		{`{"status":"ok","service":"vault","version":"1"}`, true},
	} {
		answer = c.answer
		if got, _ := health.Healthy(context.Background(), http.DefaultClient, address, "vault"); got != c.want {
			t.Errorf("%s: %v", c.answer, got)
		}
	}
}

// TestHealthyOverUnixSocket asks a process that has a user of its own, as `durward install` lays it out.
func TestHealthyOverUnixSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "up") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	address := "unix:" + filepath.Join(dir, "health.sock")
	listener, err := rpc.Listen(address, false)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" || r.Host != "localhost" {
			t.Errorf("is asked for %s of %s", r.URL.Path, r.Host)
		}
		_, _ = fmt.Fprint(w, `{"status": "ok", "service": "vault"}`)
	})}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	client := &http.Client{Timeout: 5 * time.Second}
	for at, want := range map[string]bool{
		address: false, fmt.Sprintf("%s,user=%d", address, os.Getuid()): true, address + ",user=64001": false, address + ".not": false, "unix:": false,
	} {
		if ok, _ := health.Healthy(t.Context(), client, at, "vault"); ok != want {
			t.Errorf("%s: healthy is %v", at, ok)
		}
	}
	if ok, h := health.Healthy(t.Context(), client, fmt.Sprintf("%s,user=%d", address, os.Getuid()), "audit"); ok || h.Service != "vault" {
		t.Errorf("another process is taken for audit: %+v", h)
	}
}
