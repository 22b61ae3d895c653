package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver/process"
	"durward.internal/services/executor/internal/engine"
	"durward.internal/services/executor/internal/health"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest/testfile"
)

// named is the program's name: under it, the test's own binary is the program.
const named = "durward-demo"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == process.KeepLog {
		os.Exit(process.KeepLogMain(os.Args[2:]))
	}
	if filepath.Base(os.Args[0]) == named {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestTheDemoService starts, kills, restarts and stops the real demo program through the real driver and health check.
func TestTheDemoService(t *testing.T) {
	dir := t.TempDir()
	binary, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, named), binary, 0o700)
	}
	must(t, err)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	starts := filepath.Join(dir, "starts")
	c, err := catalog.Parse("c.yaml", fmt.Appendf(nil,
		"version: 1\nservices: [{id: demo, driver: process, argv: [durward-demo, -port, %q, -touch, %q], port: %d, stop_timeout_s: 5}]\n",
		fmt.Sprint(port), starts, port), catalog.Options{ProgramsDir: dir, Development: true})
	must(t, err)
	d, err := process.New(process.Config{Dir: dir, Log: slog.New(slog.DiscardHandler), Development: true})
	must(t, err)
	defer d.Close()
	m := service.New(service.Config{
		Catalog: func() *catalog.Catalog { return c }, Drivers: map[string]func() service.Driver{"process": service.Is(d)}, Health: health.New(), Engine: engine.New(),
		Confirm: func(_ context.Context, begin func()) error { begin(); return nil },
		Logger:  slog.New(slog.DiscardHandler),
	})
	s, _ := c.Lookup("demo")
	// The test stops it itself; this is for one that fails before.
	defer func() { _, _ = m.Stop(t.Context(), s) }()

	// A stranger on the port: nothing is started.
	if _, err := m.Start(t.Context(), s); !fault.Is(err, callv1.Code_CODE_CONFLICT) {
		t.Errorf("with a stranger on the port: %v", err)
	}
	if _, err := os.Stat(starts); err == nil {
		t.Error("the program was started all the same")
	}
	must(t, l.Close())

	if changed, err := m.Start(t.Context(), s); !changed || err != nil {
		t.Fatalf("start: %v, %v", changed, err)
	}
	res, err := http.Get(s.BaseURL + "/models")
	must(t, err)
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || !strings.Contains(string(body), "demo-1b") {
		t.Errorf("it answers %q, %v", body, err)
	}

	raw := testfile.Read(t, starts)
	var pid int
	if _, err := fmt.Sscanf(string(raw), "started %d", &pid); err != nil {
		t.Fatal(err)
	}
	program, err := os.FindProcess(pid)
	if err == nil {
		err = program.Kill()
	}
	must(t, err)
	for deadline := time.Now().Add(10 * time.Second); m.Status(s).State != executorv1.ServiceState_SERVICE_STATE_FAILED; time.Sleep(5 * time.Millisecond) { // no event: another process has ended
		if time.Now().After(deadline) {
			t.Fatalf("killed, and yet %v", m.Status(s))
		}
	}
	if changed, err := m.Start(t.Context(), s); !changed || err != nil {
		t.Errorf("start again: %v, %v", changed, err)
	}
	if changed, err := m.Stop(t.Context(), s); !changed || err != nil {
		t.Errorf("stop: %v, %v", changed, err)
	}
	if _, err := http.Get(s.BaseURL + "/models"); err == nil {
		t.Error("stopped, and yet it answers")
	}
	if raw, err := os.ReadFile(starts); err != nil || strings.Count(string(raw), "started") != 2 {
		t.Errorf("starts: %q, %v", raw, err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
