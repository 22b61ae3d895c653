package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

const scripted = harness.ScriptedService

func scriptedCatalog(h *harness.Host) string {
	return harness.DemoCatalog(h) + harness.ScriptedEntry(h, 2)
}

// TestAnEditedScriptDoesNotRun: a script that an interpreter is given is approved with its content. Edited after the approval it does
// not run; an executor that holds a service to its program alone runs it.
func TestAnEditedScriptDoesNotRun(t *testing.T) {
	t.Parallel()
	t.Run("shipped", func(t *testing.T) {
		t.Parallel()
		if ran := runEdited(t, harness.Options{Catalog: scriptedCatalog}); ran {
			t.Error("the edited script ran")
		}
	})
	t.Run("without the guard of files", func(t *testing.T) {
		t.Parallel()
		if ran := runEdited(t, harness.Options{Catalog: scriptedCatalog, Build: harness.Build{Weak: true},
			Flags: map[string][]string{harness.Executor: {"-weaken", "files"}}}); !ran {
			t.Error("the edited script did not run, so that the test shows nothing")
		}
	})
}

// runEdited has a script approved, edits it, and reports whether it ran then.
func runEdited(t *testing.T, opts harness.Options) (ran bool) {
	h := harness.New(t, opts)
	evil := h.Path("evil")
	script := func(first string) {
		h.WriteFile("svc.sh", fmt.Sprintf("%s\nexec %s -port %d -touch %s\n", first, filepath.Join(h.Bin, "durward-demo"), h.Port(2), h.Path("starts-"+scripted)))
	}
	script("true")
	h.StartAll()
	agent := h.Connect(h.AddClient("agent"))

	pending := agent.Ask("start_service", map[string]any{"service_id": scripted})
	if opts.Flags == nil {
		shown := h.Durward("approvals")
		for _, line := range []string{"pinned: /usr/bin/env", "checked, not held: " + h.Path("svc.sh")} {
			if !strings.Contains(shown, line) {
				t.Errorf("the approval does not say %q:\n%s", line, shown)
			}
		}
	}
	h.Approve(pending.OperationID)
	script("touch " + evil)
	refused := agent.Ask("start_service", map[string]any{"service_id": scripted})
	if _, err := os.Stat(evil); err == nil {
		return true
	}
	if opts.Flags != nil {
		return harness.Poll(func() error { _, err := os.Stat(evil); return err }) == nil
	}
	if refused.Error == nil || !slices.Contains([]string{"CONFLICT", "PLAN_CHANGED"}, refused.Error.Code) {
		t.Errorf("an edited script is answered with %s", refused.Raw)
	}
	script("true")
	if done := agent.Ask("start_service", map[string]any{"service_id": scripted}); done.Status != "ok" {
		t.Errorf("as it was approved: %s", done.Raw)
	}
	return false
}

// TestEditedWeightsAreNotServed: one byte of a large file whose digest the entry asks for, and which no argument names, keeps the service
// from starting; an executor that holds a service to its program alone starts it.
func TestEditedWeightsAreNotServed(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]harness.Options{
		"shipped":                    {},
		"without the guard of files": {Build: harness.Build{Weak: true}, Flags: map[string][]string{harness.Executor: {"-weaken", "files"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts.Catalog = func(h *harness.Host) string {
				return scriptedCatalog(h) + fmt.Sprintf("    digests: [%q]\n", h.Path("weights"))
			}
			h := harness.New(t, opts)
			h.WriteFile("svc.sh", fmt.Sprintf("exec %s -port %d -touch %s\n", filepath.Join(h.Bin, "durward-demo"), h.Port(2), h.Path("starts-"+scripted)))
			h.WriteFile("weights", "x")
			write := func(b string) {
				f, err := os.OpenFile(h.Path("weights"), os.O_WRONLY, 0)
				if err == nil {
					_, err = f.WriteAt([]byte(b), 65<<20)
				}
				must(t, errors.Join(err, f.Close()))
			}
			write("a")
			h.StartAll()
			agent := h.Connect(h.AddClient("agent"))
			start := func() harness.Envelope { return agent.Ask("start_service", map[string]any{"service_id": scripted}) }
			h.Approve(start().OperationID)
			write("b")
			edited := start()
			if opts.Flags != nil {
				if edited.Status != "ok" {
					t.Errorf("it did not start, so that the test shows nothing: %s", edited.Raw)
				}
				return
			}
			if edited.Error == nil || !slices.Contains([]string{"CONFLICT", "PLAN_CHANGED"}, edited.Error.Code) {
				t.Errorf("with edited weights: %s", edited.Raw)
			}
			write("a")
			if done := start(); done.Status != "ok" {
				t.Errorf("with the weights that were approved: %s", done.Raw)
			}
		})
	}
}
