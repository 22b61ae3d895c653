package telemetry_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"durward.internal/services/platform/telemetry"
)

// TestSystemdIsTold: a unit with Type=notify is started once its process listens, and what that starts cannot say so again.
func TestSystemdIsTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(t, err)
	defer systemd.Close()
	must(t, systemd.SetReadDeadline(time.Now().Add(10*time.Second)))
	t.Setenv("NOTIFY_SOCKET", path)
	tel, err := telemetry.Open(telemetry.Config{Service: "vault", Version: "v1", Lifetime: func() (from, until time.Time) { return from, until }})
	must(t, err)
	defer tel.Close()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- tel.Serve(ctx, lis, nil) }()
	told := make([]byte, 64)
	n, err := systemd.Read(told)
	if string(told[:n]) != "READY=1" || err != nil {
		t.Errorf("systemd was told %q (%v)", told[:n], err)
	}
	if _, set := os.LookupEnv("NOTIFY_SOCKET"); set {
		t.Error("programs that this one starts could tell it again")
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestSystemdCannotBeTold: a unit that would wait for ever fails instead.
func TestSystemdCannotBeTold(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "nobody"))
	tel, err := telemetry.Open(telemetry.Config{Service: "vault", Version: "v1", Lifetime: func() (from, until time.Time) { return from, until }})
	must(t, err)
	defer tel.Close()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := tel.Serve(ctx, lis, nil); err == nil {
		t.Error("it serves, and systemd waits for it")
	}
}
