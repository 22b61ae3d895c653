package command

import (
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/home"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/telemetry"
)

// healthy answers for a process's health listener: err is why it is not well.
func (w *world) healthy(role string, err error) {
	w.t.Helper()
	cfg, loadErr := w.home.Load()
	if loadErr != nil {
		w.t.Fatal(loadErr)
	}
	lis, listenErr := rpc.Listen(cfg.Health.Of(role), false)
	if listenErr != nil {
		w.t.Fatal(listenErr)
	}
	server := httptest.NewUnstartedServer(telemetry.HealthHandler(role, "test", func() error { return err }, nil))
	_ = server.Listener.Close() // its own place is not needed
	server.Listener = lis
	server.Start()
	w.t.Cleanup(server.Close)
}

// TestStatusOfABrokenFile: a vault that refuses a file runs with the last good one: status names the file and what is wrong with it,
// and sends nobody to start what runs.
func TestStatusOfABrokenFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withClients(t)
	for _, role := range home.Roles() {
		if role == "vault" {
			w.healthy(role, errors.New("policy/no.cedar: broken"))
		} else if role != "audit" {
			w.healthy(role, nil)
		}
	}
	w.stands(statement.KindDangerous, boundSession)
	// Nothing says why.
	got := w.run("status")
	if got.code != exitUnreachable || !strings.Contains(got.out, "it runs, and says that it is not well") {
		t.Errorf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
	cfg, err := w.home.Load()
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(cfg.SecurityDir, "policy")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "no.cedar"), []byte("forbid (principal, action\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got = w.run("status")
	for _, want := range []string{"policy/no.cedar: ", "the last good one is in force"} {
		if !strings.Contains(got.out, want) {
			t.Errorf("%q is not in\n%s", want, got.out)
		}
	}
	if got.code != exitUnreachable || !strings.Contains(got.err, "Correct the file") || !strings.Contains(got.err, "durward config show") {
		t.Errorf("exit code %d\n%s", got.code, got.err)
	}
	if strings.Contains(got.err, "Start it") || strings.Count(got.err, "DANGEROUS MODE") != 1 {
		t.Errorf("it runs, and status says\n%s", got.err)
	}
	if got := w.run("status", "--json"); !strings.Contains(got.out, "the last good one is in force") {
		t.Errorf("--json: %s", got.out)
	}
}

// TestWhyNotWell: what does not run is to be started, what runs is not.
func TestWhyNotWell(t *testing.T) {
	w := newWorld(t)
	a, _, _ := printing(false)
	a.home = w.home
	if got := a.whyNot(processStatus{Role: "vault"}); !strings.HasPrefix(got, "Start it: durward up. Why it stopped: ") {
		t.Errorf("%q", got)
	}
	if got := a.whyNot(processStatus{Role: "gateway", answers: true}); strings.Contains(got, "Start it") || !strings.HasPrefix(got, "It runs. Why it is not well: ") {
		t.Errorf("%q", got)
	}
}
