package e2e

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
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
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `DELETE FROM bodies WHERE idx IN (0, 2)`); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
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
