package e2e

import (
	"database/sql"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// TestAuditCopy moves the log of a stopped audit to another folder by `durward audit copy`: proofs stand, the old place says where the log
// is, and a damaged record is named when audit starts, and keeps a copy from going on.
func TestAuditCopy(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{})
	h.StartAll()
	mutate(t, h, h.Connect(h.AddClient("agent")), "start_service")
	h.Durward("audit", "verify")
	config := h.ReadFile("config/audit.yaml")
	second := strings.ReplaceAll(config, "state/audit", "state/audit-new")
	if second == config {
		t.Fatalf("audit's state_dir is not in its configuration:\n%s", config)
	}
	h.WriteFile("config/audit-new.yaml", second)
	to := h.Path("config", "audit-new.yaml")
	if out := h.Run("", "audit", "copy", to); out.Code == 0 || !strings.Contains(out.Stderr, "audit") {
		t.Errorf("a running audit's log is copied: %+v", out)
	}
	h.Process(harness.Audit).Stop()

	// A bit of the disk flips.
	path := h.Path("state", "audit", "audit.db")
	db, err := sql.Open("sqlite", path)
	must(t, err)
	shift := func(by int) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), `UPDATE entries SET sequence = sequence + ? WHERE idx = 3`, by); err != nil {
			t.Fatal(err)
		}
	}
	shift(1 << 20)
	if code := h.Launch(harness.Audit).AwaitEnd(); code == 0 {
		t.Error("audit starts on a damaged log")
	}
	if said := h.Process(harness.Audit).Log(); !strings.Contains(said, "record 3 (spiffe://") || !strings.Contains(said, "its header is not what was committed to") {
		t.Errorf("audit does not name the record:\n%s", said)
	}
	if out := h.Run("", "audit", "copy", to); out.Code == 0 || !strings.Contains(out.Stderr, "record 3 of the log to be copied") {
		t.Errorf("a damaged log is copied: %+v", out)
	}

	shift(-1 << 20)
	must(t, db.Close())
	out := h.Run("", "audit", "copy", to) // goes on with what broke off
	if out.Code != 0 || !strings.Contains(out.Stdout, "records are there") {
		t.Fatalf("%+v", out)
	}
	if again := h.Run("", "audit", "copy", to); again.Code != 0 || !strings.Contains(again.Stdout, "Put "+to+" in the place of") {
		t.Errorf("once more: %+v", again)
	}
	h.WriteFile("config/audit-third.yaml", strings.ReplaceAll(config, "state/audit", "state/audit-third"))
	moved := "all of its log was moved to " + h.Path("state", "audit-new", "audit.db")
	if third := h.Run("", "audit", "copy", h.Path("config", "audit-third.yaml")); third.Code == 0 || !strings.Contains(third.Stderr, moved) {
		t.Errorf("a second copy: %+v", third)
	}
	if code := h.Launch(harness.Audit).AwaitEnd(); code == 0 {
		t.Error("audit starts on a log that was moved")
	}
	if said := h.Process(harness.Audit).Log(); !strings.Contains(said, moved) {
		t.Errorf("the old place does not say where the log is:\n%s", said)
	}
	h.WriteFile("config/audit.yaml", second)
	if same := h.Run("", "audit", "copy", to); same.Code == 0 || !strings.Contains(same.Stderr, "there is nothing to copy") {
		t.Errorf("to where the log is: %+v", same)
	}
	h.StartProcess(harness.Audit)
	h.Durward("audit", "verify")
	if out := h.Run("", "audit", "verify", "--complete"); out.Code != 0 {
		t.Errorf("the copy: %+v", out)
	}
}
