package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// TestACredentialThatAServicePrints: no agent reads it in the service's log, in no session, also after a restart of the vault, whatever
// it looks like: until the vault is unsealed it is not read at all. The operator's own look shows what the log holds.
func TestACredentialThatAServicePrints(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{Catalog: func(h *harness.Host) string {
		program, demo := filepath.Join(h.Dir, "chatty.sh"), filepath.Join(h.Dir, "durward-demo") // where the end of the test looks for what runs
		h.WriteFile("chatty.sh", "#!/bin/sh\necho \"trying $SECOND, which is it\"\nexec \"$1\" -port \"$2\"\n")
		if err := errors.Join(os.Chmod(program, 0o755), os.Symlink(filepath.Join(h.Bin, "durward-demo"), demo)); err != nil {
			panic(err)
		}
		return fmt.Sprintf("version: 1\nservices:\n  - {id: chatty, name: chatty, driver: process, argv: [%q, %q, \"%d\"], credentials: [second], port: %d, health: {path: /health}}\n",
			program, demo, h.Port(0), h.Port(0))
	}})
	h.WriteFile("config/vault.yaml", h.ReadFile("config/vault.yaml")+"\ncredentials: {key: passphrase}\n")
	h.StartAll()
	unseal := func() {
		t.Helper()
		if out := h.Run("a passphrase", "vault", "unseal", "--stdin"); out.Code != 0 {
			t.Fatalf("unseal: %+v", out)
		}
	}
	unseal()
	const value = "correct-horse-battery"
	if out := h.Run(value, "credential", "add", "second", "--variable", "SECOND", "--stdin", "--yes"); out.Code != 0 {
		t.Fatalf("add: %+v", out)
	}
	h.Durward("credential", "grant", "second", "chatty", "--yes")
	agent := h.Connect(h.AddClient("agent"))
	if started := start(t, h, agent, "chatty"); started.Status != "ok" {
		t.Fatalf("start: %s", started.Raw)
	}
	read := func(agent *harness.Client) {
		t.Helper()
		harness.Eventually(t, "the log has the line", func() error {
			e := agent.Ask("service_logs", map[string]any{"service_id": "chatty"})
			switch {
			case strings.Contains(string(e.Raw), value):
				t.Fatalf("an agent reads it: %s", e.Raw)
			case !strings.Contains(string(e.Raw), "trying [[SECRET:CREDENTIAL:"):
				return errors.New(string(e.Raw))
			}
			return nil
		})
	}
	read(agent)
	h.Process(harness.Vault).Stop()
	h.StartProcess(harness.Vault)
	again := h.Connect(h.AddClient("again"))
	if e := again.Ask("service_logs", map[string]any{"service_id": "chatty"}); e.Status != "error" || e.Error.Code != "SEALED" {
		t.Errorf("while the vault does not know the value: %s", e.Raw)
	}
	unseal()
	read(again)
	if out := h.Durward("logs", "chatty"); !strings.Contains(out, value) {
		t.Errorf("the operator's look:\n%s", out)
	}
}
