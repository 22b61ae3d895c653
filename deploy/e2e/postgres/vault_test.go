//go:build real

package postgres

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"durward.internal/deploy/e2e/harness"
	server "durward.internal/services/platform/platformtest/postgres"
)

var demo = map[string]any{"service_id": harness.DemoService}

// vaults is two vaults on one server, and what follows them.
type vaults struct {
	t     *testing.T
	h     *harness.Host
	pg    *server.Server
	agent *harness.Client
	// spent is how many approvals were used up.
	spent int
	// started: the service runs.
	started bool
}

func startVaults(t *testing.T) *vaults {
	t.Helper()
	v := &vaults{t: t, h: harness.New(t, harness.Options{}), pg: server.Start(t)}
	h := v.h
	settings := h.ReadFile("config/vault.yaml") + fmt.Sprintf("\ndatabase:\n  engine: postgres\n  addresses: [%q]\n  name: durward_vault\n  user: durward_vault\n  password_file: %s\n",
		v.pg.Socket(), v.pg.PasswordFile)
	h.WriteFile("config/vault.yaml", settings)
	h.WriteFile("config/second.yaml", strings.NewReplacer(h.Address(harness.Vault), h.Address(harness.SecondVault),
		h.HealthAddress(harness.Vault), h.HealthAddress(harness.SecondVault), "state/vault", "state/second").Replace(settings))
	for _, name := range []string{"gateway", "executor", "operator"} {
		path := filepath.Join("config", name+".yaml")
		identity := "identity: " + h.Identity(harness.Vault).String() + "\n"
		was := h.ReadFile(path)
		now := strings.Replace(was, identity, identity+"  standbys: ["+h.Address(harness.SecondVault)+"]\n", 1)
		if was == now {
			t.Fatalf("%s names no vault:\n%s", path, was)
		}
		h.WriteFile(path, now)
	}
	h.StartProcess(harness.Audit)
	h.StartProcess(harness.Vault)
	v.says(harness.Vault, "this vault leads", 1)
	// One key for all vaults of a database, as the guide says.
	if err := os.MkdirAll(h.Path("state", "second"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.WriteFile("state/second/seal.key", h.ReadFile("state/vault/seal.key"))
	h.StartProcess(harness.SecondVault)
	v.says(harness.SecondVault, "another vault leads", 1)
	h.StartProcess(harness.Executor)
	h.StartProcess(harness.Gateway)
	v.measures(harness.Vault, "durward_vault_leads 1")
	v.measures(harness.SecondVault, "durward_vault_leads 0")
	v.agent = h.Connect(h.AddClient("agent"))
	return v
}

// says waits until a vault has said so, so many times.
func (v *vaults) says(role, words string, times int) {
	v.t.Helper()
	harness.Eventually(v.t, role+" says "+words, func() error {
		if log := v.h.Process(role).Log(); strings.Count(log, words) < times {
			return errors.New(log)
		}
		return nil
	})
}

// measures waits until a vault measures that, which one that stands by does too.
func (v *vaults) measures(role, metric string) {
	v.t.Helper()
	harness.Eventually(v.t, role+" measures "+metric, func() error {
		request, err := http.NewRequestWithContext(v.t.Context(), http.MethodGet, "http://"+v.h.HealthAddress(role)+"/metrics", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err == nil && !strings.Contains(string(text), "\n"+metric+"\n") {
			err = errors.New("it does not")
		}
		return err
	})
}

// ask asks for the service to be started, or stopped, which nobody has approved yet.
func (v *vaults) ask() harness.Envelope {
	v.t.Helper()
	tool := map[bool]string{false: "start_service", true: "stop_service"}[v.started]
	var asked harness.Envelope
	harness.Eventually(v.t, "the vault that leads is asked", func() error {
		if asked = v.agent.Call(tool, demo); asked.Status != "pending_approval" {
			return fmt.Errorf("%s", asked.Raw)
		}
		return nil
	})
	return asked
}

// done waits until what was approved is carried out: once.
func (v *vaults) done(asked harness.Envelope, what string, began time.Time) {
	v.t.Helper()
	var last harness.Envelope
	harness.Eventually(v.t, "what was approved is carried out after "+what, func() error {
		if last = v.agent.Call("wait_operation", asked.Next.Arguments); last.Status == "error" && last.Error.Retryable || last.Status == "pending_approval" {
			return fmt.Errorf("%s", last.Raw)
		}
		return nil
	})
	if last.Status != "ok" {
		v.t.Fatalf("after %s: %s", what, last.Raw)
	}
	v.t.Logf("after %s it is carried out in %v", what, time.Since(began).Round(time.Millisecond))
	v.spent++
	v.started = !v.started
	if want := (v.spent + 1) / 2; v.h.Starts(harness.DemoService) != want {
		v.t.Errorf("after %s the service was started %d times, want %d", what, v.h.Starts(harness.DemoService), want)
	}
	if n := v.pg.SQL(v.t, "durward_vault", "SELECT count(*) FROM spent WHERE operation_id IN (SELECT operation_id FROM operations WHERE authority = 'approve')"); n != strconv.Itoa(v.spent) {
		v.t.Errorf("after %s %s approvals are spent, want %d", what, n, v.spent)
	}
}

// leads waits until a vault answers operators, and tells how long that took.
func (v *vaults) leads(what string, began time.Time) {
	v.t.Helper()
	harness.Eventually(v.t, "a vault answers after "+what, func() error {
		if out := v.h.Run("", "approvals"); out.Code != 0 {
			return errors.New(out.Stdout + out.Stderr)
		}
		return nil
	})
	took := time.Since(began)
	if took > follows {
		v.t.Errorf("after %s it took %v until a vault answered", what, took)
	}
	v.t.Logf("after %s a vault answers in %v", what, took.Round(time.Millisecond))
}

// TestVaultFailover: the vault that leads is killed, then the next one is stopped past its lock and goes on, then PostgreSQL is killed,
// each time between a question and its approval, and between an approval and its use. Nothing that was approved is lost or spent twice,
// the gateway's session goes on, and nothing is halted.
func TestVaultFailover(t *testing.T) {
	v := startVaults(t)
	h := v.h
	asked := v.ask()
	h.Approve(asked.OperationID)
	v.done(asked, "the start", time.Now())

	asked = v.ask()
	waiting := make(chan harness.Envelope, 1)
	go func() {
		e, err := v.agent.TryCall(t.Context(), "wait_operation", asked.Next.Arguments)
		if err != nil {
			t.Error(err)
		}
		waiting <- e
	}()
	v.measures(harness.Vault, "durward_vault_waits_held 1")
	began := time.Now()
	h.Process(harness.Vault).Kill()
	// The gateway asks the vault that took over, or says that it can be tried again.
	if e := <-waiting; e.Status != "pending_approval" && (e.Error == nil || !e.Error.Retryable) || e.TellUser == "" {
		t.Errorf("a call that waited when the vault was killed: %s", e.Raw)
	}
	v.leads("kill -9 of the vault that leads", began)
	h.Approve(asked.OperationID)
	v.done(asked, "kill -9 of the vault that leads", began)
	h.StartProcess(harness.Vault)
	v.says(harness.Vault, "another vault leads", 1)

	asked = v.ask()
	h.Approve(asked.OperationID)
	leader := h.Process(harness.SecondVault)
	began = time.Now()
	leader.Hang()
	v.leads("SIGSTOP of the vault that leads", began)
	v.done(asked, "SIGSTOP of the vault that leads", began)
	leader.Continue()
	v.says(harness.SecondVault, "leads no more", 1)
	v.says(harness.SecondVault, "another vault leads", 2)
	v.measures(harness.SecondVault, "durward_vault_leads 0")
	v.measures(harness.Vault, "durward_vault_leads 1")

	asked = v.ask()
	h.Approve(asked.OperationID)
	v.pg.Kill(t)
	if e := v.agent.Call("start_service", demo); e.Status != "error" || !e.Error.Retryable || e.TellUser == "" {
		t.Errorf("while PostgreSQL is down: %s", e.Raw)
	}
	told(t, h, "it stands by: its database cannot be used")
	began = time.Now()
	v.pg.Run(t)
	v.leads("kill -9 of PostgreSQL", began)
	v.done(asked, "kill -9 of PostgreSQL", began)

	asked = v.ask()
	h.Approve(asked.OperationID)
	v.done(asked, "all of it", time.Now())
	if out := h.Durward("status"); strings.Contains(out, "HALTED") {
		t.Errorf("it is halted:\n%s", out)
	}
	h.Durward("audit", "verify", "--complete")
}
