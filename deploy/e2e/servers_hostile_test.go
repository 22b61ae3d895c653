package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/platformtest/input"
)

// TestHostileServers: each server that says what none may ends in one clear error of its own name, through everything that stands between it
// and an agent, and a neighbour goes on. The servers are what egress' own tests have: one program, which is as bad as HOSTILE says.
func TestHostileServers(t *testing.T) {
	t.Parallel()
	input.Compiled(t)
	h := harness.New(t, harness.Options{Egress: true})
	program := h.Path("hostile")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", program, "durward.internal/services/egress/internal/child")
	build.Dir = harness.Root(t)
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	hostile := []struct{ server, status, says string }{
		{"line", "error", "it sent a message of more than 4 MiB"},
		{"endless", "error", "it did not answer within 2s"},
		{"wrong-id", "error", "it did not answer within 2s"},
		{"deep", "error", "nested more than 32 deep"},
		{"number", "error", "the number 1e99999999, which is out of range"},
		{"error", "error", "it answered with the error -32000: red gnp.exe"},
		{"twice", "error", "is not what was accepted"},
		{"changed", "error", "is not what was accepted"},
		{"changing", "ok", "once"},
		{"crash", "error", "it ended: exit status 3"},
		{"duplicate", "ok", "first"},
		{"escapes", "ok", "red gnp.exe"},
	}
	echo := []downstream.Tool{{Name: "echo", Description: "says it again", Tier: optionsv1.Tier_TIER_READ, Input: json.RawMessage(`{"type":"object"}`)}}
	text, tools := "servers:\n", map[string][]downstream.Tool{}
	entry := func(id, more string) {
		text += fmt.Sprintf("  - id: %s\n    program: {path: %q}\n    sandbox: {none: true}\n    env: {HOSTILE: %s}\n    tools: {read: [echo]}\n%s",
			id, program, strings.ReplaceAll(id, "-", " "), more)
		tools[id] = echo
	}
	entry("good", "")
	for _, one := range hostile {
		if strings.Contains(one.says, "within 2s") {
			entry(one.server, "    timeouts: {call: 2s}\n")
		} else {
			entry(one.server, "")
		}
	}
	h.Accept(text, tools)
	token := h.AddClient("agent")
	h.StartAll()
	agent := h.Connect(token)
	neighbour := func(after string) {
		t.Helper()
		if e := agent.Ask("good__echo", map[string]any{"mode": "good"}); e.Status != "ok" {
			t.Fatalf("after %s a neighbour says %s", after, e.Raw)
		}
	}
	neighbour("nothing")
	for _, one := range hostile {
		e := agent.Call(one.server+"__echo", map[string]any{})
		if raw := string(e.Raw); e.Status != one.status || !strings.Contains(raw, one.says) || strings.Contains(raw, `\u001b`) ||
			one.status == "error" && !strings.Contains(e.Error.Message, "the server "+one.server+": ") {
			t.Errorf("%s: it is %s, want %s with %q: %.2000s", one.server, e.Status, one.status, one.says, raw)
		}
		neighbour(one.server)
	}
	// A definition that changes between two calls, as its server says with list_changed.
	harness.Eventually(t, "what changed meanwhile is not called", func() error {
		if e := agent.Call("changing__echo", map[string]any{}); e.Status != "error" || !strings.Contains(string(e.Raw), "is not what was accepted") {
			return fmt.Errorf("%s", e.Raw)
		}
		return nil
	})
}
