package e2e

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/services/platform/database"
)

// TestWhatTheLogSaidCannotBeTakenAway: whoever may write audit's files takes the words of records away and leaves the tree as it is.
// Online, offline and for one record the operator is told which records lack their body, and the exit code is not 0.
func TestWhatTheLogSaidCannotBeTakenAway(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	h.Connect(h.AddClient("bearer")).Call("list_services", nil)
	whole := filepath.Join(h.Dir, "whole.jsonl")
	for _, args := range [][]string{{"audit", "verify"}, {"audit", "export", whole}, {"audit", "verify", "--offline", whole}} {
		if out := h.Run("", args...); out.Code != 0 {
			t.Fatalf("durward %s: exit status %d\n%s%s", strings.Join(args, " "), out.Code, out.Stdout, out.Stderr)
		}
	}

	h.Process(harness.Audit).Stop()
	db, err := sql.Open("sqlite", h.Path("state", harness.Audit, "audit.db"))
	must(t, err)
	if _, err := db.ExecContext(t.Context(), `DELETE FROM bodies WHERE idx IN (0, 2)`); err != nil {
		t.Fatal(err)
	}
	must(t, db.Close())
	h.StartProcess(harness.Audit)
	h.AwaitHealthy(harness.Audit)

	stripped := filepath.Join(h.Dir, "stripped.jsonl")
	h.Run("", "audit", "export", stripped) // what it says of it is the next lines' business
	for _, c := range []struct {
		args []string
		says []string
	}{
		{[]string{"audit", "verify"}, []string{"✗ record 0 of ", "✗ record 2 of ", "2 of them lack their body"}},
		{[]string{"audit", "verify", "--json"}, []string{`"missing_bodies": 2`, `"index": 2`}},
		{[]string{"audit", "verify", "--offline", stripped}, []string{"✗ record 2 of ", "lack their body"}},
		{[]string{"audit", "show", "2"}, []string{"THE BODY OF THIS RECORD IS MISSING", "without its body"}},
	} {
		out := h.Run("", c.args...)
		said := out.Stdout + out.Stderr
		if out.Code != 1 {
			t.Errorf("durward %s: exit status %d, want 1\n%s", strings.Join(c.args, " "), out.Code, said)
		}
		for _, want := range c.says {
			if !strings.Contains(said, want) {
				t.Errorf("durward %s: no %q in\n%s", strings.Join(c.args, " "), want, said)
			}
		}
	}
}

// TestALogThatWasPutBackIsTold: an earlier audit.db in the place of the newest one serves and proves itself, and vault and executor
// have seen more of it. A program that kept nothing of the log hears it from them, in one sentence with both sizes.
func TestALogThatWasPutBackIsTold(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	path := h.Path("state", harness.Audit, "audit.db")
	h.Process(harness.Audit).Stop()
	earlier, err := os.ReadFile(path)
	must(t, err)
	h.StartProcess(harness.Audit)
	h.AwaitHealthy(harness.Audit)
	h.Connect(h.AddClient("bearer")).Call("list_services", nil)
	if out := h.Run("", "audit", "verify"); out.Code != 0 {
		t.Fatalf("before: exit status %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
	h.Process(harness.Audit).Stop()
	must(t, errors.Join(os.WriteFile(path, earlier, 0o600), os.Remove(h.Path("state", "operator", "checkpoint"))))
	h.StartProcess(harness.Audit)
	h.AwaitHealthy(harness.Audit)
	told := regexp.MustCompile(`the log was put back: it has \d+ records, and the (vault|executor) has seen \d+`)
	for _, c := range []struct {
		command []string
		code    int
	}{{[]string{"status"}, 3}, {[]string{"status", "--json"}, 3}, {[]string{"audit", "verify"}, 1}, {[]string{"doctor", "--json"}, 1}} {
		if out := h.Run("", c.command...); out.Code != c.code || !told.MatchString(out.Stdout+out.Stderr) || strings.Contains(out.Stdout, "✓") {
			t.Errorf("durward %s: exit status %d\n%s%s", strings.Join(c.command, " "), out.Code, out.Stdout, out.Stderr)
		}
	}
	// One that hangs keeps nobody from hearing it from the other.
	h.Process(harness.Executor).Hang()
	for _, command := range []string{"status", "doctor"} {
		if out := h.Run("", command); !told.MatchString(out.Stdout+out.Stderr) || strings.Contains(out.Stdout, "audit did not answer") {
			t.Errorf("durward %s: exit status %d\n%s%s", command, out.Code, out.Stdout, out.Stderr)
		}
	}
	h.Process(harness.Executor).Continue()
}

// TestStateThatLostItsMemoryStartsHalted: with their databases gone, vault and executor would know no halt, no spent key and no used
// statement. They learn from the log that they had some, start halted and say why, until a human resumes.
func TestStateThatLostItsMemoryStartsHalted(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	agent := h.Connect(h.AddClient("bearer"))
	start := func() harness.Envelope {
		return agent.Ask("start_service", map[string]any{"service_id": harness.DemoService})
	}
	asked := start()
	h.Approve(asked.OperationID)
	if e := agent.Ask("wait_operation", asked.Next.Arguments); e.Status != "ok" {
		t.Fatalf("before: %s", e.Raw)
	}
	for role, c := range map[string]struct{ file, missing string }{
		harness.Vault:    {"vault.db", "the log has an approval of "},
		harness.Executor: {"executor.db", "the log has a change of "},
	} {
		h.Process(role).Stop()
		// Without their key, as after a restore of nothing; what else knows that there was a state is the log.
		for _, file := range []string{c.file, database.KeyFile} {
			must(t, os.Remove(h.Path("state", role, file)))
		}
		p := h.StartProcess(role)
		h.AwaitHealthy(role)
		if said := p.Log(); !strings.Contains(said, "HALTED: THE STATE WAS LOST") || !strings.Contains(said, c.missing) {
			t.Errorf("%s says\n%s", role, said)
		}
		if out := h.Run("", "status"); !strings.Contains(out.Stdout, "HALTED") {
			t.Errorf("%s without its state:\n%s", role, out.Stdout)
		}
	}
	if out := h.Durward("audit", "search", "--kind", "halted"); !strings.Contains(out, "executor") || !strings.Contains(out, "vault") {
		t.Errorf("the log says of it\n%s", out)
	}
	h.Durward("resume", "--yes")
	for _, role := range []string{harness.Vault, harness.Executor} {
		h.Process(role).Stop()
		h.StartProcess(role)
		h.AwaitHealthy(role)
	}
	if out := h.Run("", "status"); strings.Contains(out.Stdout, "HALTED") {
		t.Errorf("after a human resumed:\n%s", out.Stdout)
	}
	h.Process(harness.Executor).Stop()
	must(t, os.Remove(h.Path("state", harness.Executor, "executor.db")))
	h.StartProcess(harness.Executor)
	h.AwaitHealthy(harness.Executor)
	if out := h.Run("", "status"); !strings.Contains(out.Stdout, "halted by itself: the state is damaged: the database: it was never sealed") {
		t.Errorf("the database alone is gone:\n%s", out.Stdout)
	}
}
