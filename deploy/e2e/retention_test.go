package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

// TestPruning: what an operator signed is gone out of audit's files, what is held stays, everything still proves itself, and a body that
// is missing otherwise, or a body more than was signed, is found.
func TestPruning(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	agent := h.Connect(h.AddClient("bearer"))
	const canary, held = "zebraquartz seen", "walnutomen kept"
	var story string
	for _, reason := range []string{canary, held} {
		story = agent.Ask("start_service", map[string]any{"service_id": harness.DemoService}).OperationID
		h.Deny(story, reason)
		// The record comes a moment behind the answer.
		for began := time.Now(); len(h.Records(&auditv1.SearchRecordsRequest{OperationId: story, Kinds: []auditv1.Kind{auditv1.Kind_KIND_DENIED}})) == 0; {
			if time.Since(began) > time.Minute {
				t.Fatal("the denial is not recorded")
			}
		}
		if !inAudit(t, h, reason) {
			t.Fatalf("%q is not in audit's files: this test sees nothing", reason)
		}
	}
	h.Durward("audit", "hold", "add", story, "--reason", "case 7", "--yes")
	if out := h.Durward("audit", "hold", "list"); !strings.Contains(out, story) || !strings.Contains(out, "case 7") {
		t.Errorf("held:\n%s", out)
	}
	if out := h.Run("", "audit", "prune", "--older-than", "720h"); out.Code != 0 || !strings.Contains(out.Stdout, "Nothing goes") {
		t.Errorf("nothing is that old: exit status %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
	// Times in statements are whole seconds: what was written in this one is not before it.
	var found struct {
		Kinds map[string]int `json:"kinds"`
	}
	for began := time.Now(); found.Kinds["denied"] == 0; {
		h.DurwardJSON(&found, "audit", "prune", "--older-than", "1ms", "--dry-run")
		if time.Since(began) > time.Minute {
			t.Fatalf("nothing grows old: %+v", found)
		}
	}
	if out := h.Run("", "audit", "prune", "--older-than", "1ms"); out.Code == 0 {
		t.Errorf("without a terminal and without --yes it was signed:\n%s", out.Stdout)
	}
	out := h.Run("", "audit", "prune", "--older-than", "1ms", "--yes")
	if out.Code != 0 || !strings.Contains(out.Stdout, "were pruned") {
		t.Fatalf("exit status %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
	if inAudit(t, h, canary) {
		t.Error("what was pruned is in audit's files")
	}
	if !inAudit(t, h, held) {
		t.Error("what is held is gone")
	}
	file := filepath.Join(h.Dir, "pruned.jsonl")
	h.Durward("audit", "export", file)
	var report struct {
		Pruned int `json:"pruned_bodies"`
	}
	for _, args := range [][]string{{"audit", "verify", "--complete"}, {"audit", "verify", "--offline", file}} {
		h.DurwardJSON(&report, args...)
		if report.Pruned < 2 {
			t.Errorf("durward %s: %d pruned", strings.Join(args, " "), report.Pruned)
		}
	}
	if out := h.Durward("audit", "show", "0"); !strings.Contains(out, "pruned: see record") || !strings.Contains(out, h.Operator+" signed on") {
		t.Errorf("a pruned record:\n%s", out)
	}

	// A record that names the statement, and was not among those that were signed.
	raw, err := os.ReadFile(file)
	must(t, err)
	lines := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	var by string
	for i := len(lines) - 1; i > 0; i-- {
		var entry map[string]any
		must(t, json.Unmarshal(lines[i], &entry))
		record, ok := entry["record"].(map[string]any)
		if !ok {
			t.Fatal("a line without a record")
		}
		if record["kind"] == "KIND_PRUNED" {
			by = fmt.Sprint(entry["index"])
		}
		if record["operation_id"] == story {
			delete(entry, "salt")
			delete(record, "body")
			entry["pruned_by"] = by
			if lines[i], err = json.Marshal(entry); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	forged := filepath.Join(h.Dir, "forged.jsonl")
	must(t, os.WriteFile(forged, append(bytes.Join(lines, []byte("\n")), '\n'), 0o600))
	if out := h.Run("", "audit", "verify", "--offline", forged); out.Code != 1 || !strings.Contains(out.Stdout, "its body is missing, and ") {
		t.Errorf("a held record that is said to be pruned: exit status %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
}

// inAudit reports whether a text is in the files of audit's database.
func inAudit(t *testing.T, h *harness.Host, text string) bool {
	t.Helper()
	found := false
	for _, suffix := range []string{"", "-wal", "-shm"} {
		b, err := os.ReadFile(h.Path("state", harness.Audit, "audit.db"+suffix))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		found = found || bytes.Contains(b, []byte(text))
	}
	return found
}
