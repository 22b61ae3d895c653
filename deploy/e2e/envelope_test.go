package e2e

import (
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// TestEnvelope brings about every status and has a strict client check each answer: its schema, that text and structured
// content say the same, and that isError is set for denied and error alone (harness.CheckResult).
func TestEnvelope(t *testing.T) {
	t.Parallel()
	for name, connect := range map[string]func(*harness.Host) *harness.Client{
		"http":  func(h *harness.Host) *harness.Client { return h.Connect(h.AddClient("bearer")) },
		"stdio": func(h *harness.Host) *harness.Client { h.AddKeyBound("bound"); return h.ConnectStdio("bound") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := harness.Start(t, harness.Options{})
			agent := connect(h)
			seen := map[string]harness.Envelope{}
			note := func(want string, e harness.Envelope) harness.Envelope {
				t.Helper()
				if e.Status != want {
					t.Fatalf("status %s, want %s: %s", e.Status, want, e.Raw)
				}
				seen[want] = e
				return e
			}
			note("ok", agent.Ask("list_services", map[string]any{}))
			bad := note("error", agent.Ask("start_service", map[string]any{"service_id": "--force"}))
			if bad.Error == nil || bad.Error.Code != "INVALID_ARGUMENT" || bad.Result != nil {
				t.Errorf("error: %s", bad.Raw)
			}

			slow := map[string]any{"service_id": harness.SlowService}
			asked := note("pending_approval", agent.Ask("start_service", slow))
			if asked.ExpiresAt == "" || asked.TellUser == "" || asked.Next == nil || asked.Result != nil {
				t.Errorf("pending: %s", asked.Raw)
			}
			// The identical call joins the operation.
			if again := agent.Ask("start_service", slow); again.OperationID != asked.OperationID || again.Status != "pending_approval" {
				t.Errorf("the identical call: %s", again.Raw)
			}
			h.Deny(asked.OperationID, "not while the benchmark runs")
			denied := note("denied", agent.Ask("wait_operation", asked.Next.Arguments))
			if denied.Reason != "user_rejected" || denied.Error != nil || denied.Result != nil {
				t.Errorf("denied: %s", denied.Raw)
			}

			// A service that takes an hour to be ready is approved and still running when the call can be held no longer.
			asked = agent.Ask("start_service", slow)
			h.Approve(asked.OperationID)
			running := note("running", agent.Ask("wait_operation", asked.Next.Arguments))
			if running.OperationID != asked.OperationID || running.Next == nil || running.Result != nil {
				t.Errorf("running: %s", running.Raw)
			}
			// Stopping it ends the start.
			stop := agent.Ask("stop_service", slow)
			h.Approve(stop.OperationID)
			if e := agent.Ask("wait_operation", stop.Next.Arguments); e.Status != "ok" {
				t.Errorf("stopping what is starting: %s", e.Raw)
			}

			started := agent.Ask("start_service", demo)
			h.Approve(started.OperationID)
			done := note("ok", agent.Ask("wait_operation", started.Next.Arguments))
			if done.Replayed || done.OperationID != started.OperationID {
				t.Errorf("ok: %s", done.Raw)
			}
			replayed := note("ok", agent.Ask("wait_operation", started.Next.Arguments))
			if !replayed.Replayed || string(replayed.Result) != string(done.Result) {
				t.Errorf("replayed: %s", replayed.Raw)
			}
			if len(seen) != 5 {
				t.Errorf("only %d statuses were seen", len(seen))
			}
		})
	}
}
