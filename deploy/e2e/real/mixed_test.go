//go:build real

package real

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite"

	"durward.internal/deploy/e2e/harness"
)

// TestMixedVersions upgrades an installation that an earlier commit's programs made, process by process in the order of
// deploy/docs/production.md, and takes each process back and forth again. Between two steps an agent reads, asks for a change, which a human approves, and
// the log verifies. A process whose state the later one has migrated refuses to go back, and says so; it alone may.
func TestMixedVersions(t *testing.T) {
	older := os.Getenv("OLDER")
	if older == "" {
		t.Fatal("run make real, which has scripts/older.sh build the programs of an earlier commit")
	}
	newer := harness.Binaries(t, harness.Build{})
	h := harness.Start(t, harness.Options{Bin: older})
	agent := h.Connect(h.AddClient("agent"))
	demo := map[string]any{"service_id": harness.DemoService}
	walk := func(when string) {
		t.Helper()
		harness.Eventually(t, "a read "+when, func() error {
			if e := agent.Ask("service_info", demo); e.Status != "ok" {
				return fmt.Errorf("%s", e.Raw)
			}
			return nil
		})
		for _, tool := range []string{"start_service", "stop_service"} {
			asked := agent.Ask(tool, demo)
			if asked.Status != "pending_approval" {
				t.Fatalf("%s %s: %s", tool, when, asked.Raw)
			}
			h.Approve(asked.OperationID)
			if did := agent.Ask("wait_operation", map[string]any{"operation_id": asked.OperationID}); did.Status != "ok" {
				t.Fatalf("%s %s: %s", tool, when, did.Raw)
			}
		}
		h.Durward("audit", "verify")
	}
	// put has a process run from a folder, and reports whether it does.
	put := func(role, bin string) bool {
		t.Helper()
		if !h.Replace(role, bin) {
			return false
		}
		if is, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", h.Process(role).PID())); err != nil || is != filepath.Join(bin, role) {
			t.Fatalf("%s runs %s, %v", role, is, err)
		}
		return true
	}
	order := []string{harness.Audit, harness.Vault, harness.Executor, harness.Gateway}
	walk("before the upgrade")
	for _, role := range order {
		if !put(role, newer) {
			t.Fatalf("%s does not take up the state of the earlier commit:\n%s", role, h.Process(role).Log())
		}
		h.Bin = older // the operator's program comes last
		walk("with " + role + " and those before it upgraded")
	}
	h.Bin = newer
	walk("with all upgraded")
	for _, role := range order {
		if put(role, older) {
			h.Bin = newer
			walk("with " + role + " alone taken back")
		} else if said := h.Process(role).Log(); !strings.Contains(said, "newer") {
			t.Errorf("%s does not go back, and does not say why:\n%s", role, said)
		} else {
			t.Logf("%s does not go back: its state is a newer one", role)
		}
		if h.Process(role).Running() {
			put(role, newer)
		} else {
			h.Bin = newer
			h.StartProcess(role)
		}
	}
	walk("with all upgraded again")

	// The control of the way back: a later program has migrated the log.
	h.Process(harness.Audit).Stop()
	db, err := sql.Open("sqlite", h.Path("state", harness.Audit, "audit.db"))
	if err == nil {
		_, err = db.ExecContext(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, 1)`)
		err = errors.Join(err, db.Close())
	}
	must(t, err)
	h.Bin = older
	if p := h.Launch(harness.Audit); p.AwaitEnd() == 0 || !strings.Contains(p.Log(), "newer") {
		t.Errorf("a log of a later format is opened:\n%s", p.Log())
	}
}
