package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"durward.internal/deploy/e2e/harness"
)

// TestWalkThrough is the main job: an agent asks, a person approves, something happens, and the log tells and proves it.
func TestWalkThrough(t *testing.T) {
	t.Parallel()
	for name, connect := range map[string]func(h *harness.Host) *harness.Client{
		"http": func(h *harness.Host) *harness.Client { return h.Connect(h.AddClient("agent")) },
		"stdio": func(h *harness.Host) *harness.Client {
			h.AddKeyBound("agent")
			return h.ConnectStdio("agent")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := harness.New(t, harness.Options{Limits: harness.DefaultLimits}) // ordinary work reaches none
			h.Up()
			walk(t, h, connect(h))
		})
	}
}

func walk(t *testing.T, h *harness.Host, agent *harness.Client) {
	names := slices.Sorted(maps.Keys(agent.Tools))
	if diff := cmp.Diff([]string{
		"gpu_status", "list_models", "list_modes", "list_services", "mode_info", "model_info", "security_config", "service_info", "service_logs", "simulate_mode",
		"sleep_service", "start_service", "stop_service", "tokenize", "wait_operation", "wake_service", "withdraw_operation",
	}, names); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	if !strings.Contains(agent.InitializeResult().Instructions, "wait_operation") {
		t.Error("the server's instructions do not mention wait_operation")
	}

	gpus := agent.Ask("gpu_status", nil)
	var status struct {
		Source string
		Gpus   []struct {
			Simulated bool
			Services  []string
		}
	}
	gpus.Decode(t, &status)
	if gpus.Status != "ok" || status.Source != "simulated" || len(status.Gpus) != 2 || !status.Gpus[0].Simulated {
		t.Errorf("gpu_status: %s", gpus.Raw)
	}

	// Asking changes nothing; a person is needed, and the agent is told so.
	asked := agent.Ask("start_service", map[string]any{"service_id": harness.DemoService})
	if asked.Status != "pending_approval" || len(asked.OperationID) != 32 || !strings.Contains(asked.TellUser, "durward approve ") {
		t.Fatalf("start_service: %s", asked.Raw)
	}
	if asked.Next == nil || asked.Next.Tool != "wait_operation" || asked.Next.Arguments["operation_id"] != asked.OperationID {
		t.Errorf("start_service advises %+v", asked.Next)
	}
	if n := h.Starts(harness.DemoService); n != 0 {
		t.Fatalf("the service was started %d times before anybody approved", n)
	}

	waiting := h.Approvals()
	if len(waiting) != 1 {
		t.Fatalf("%d operations wait, want 1", len(waiting))
	}
	got := waiting[0]
	if got.OperationID != asked.OperationID || got.Tool != "start_service" || got.Tier != "WRITE" || got.Principal != "agent" ||
		got.Problem != "" || len(got.Plan) == 0 || len(got.Number) != 4 || string(compact(t, got.Arguments)) != `{"service_id":"demo-chat"}` {
		t.Errorf("durward approvals: %+v", got)
	}

	// Without a terminal and without --yes nothing is signed.
	if out := h.Run("y\n", "approve", got.Number); out.Code != 4 || h.Starts(harness.DemoService) != 0 {
		t.Errorf("approve without a terminal: status %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
	screen := h.Approve(asked.OperationID)
	for _, want := range []string{harness.DemoService, "start_service", asked.OperationID, "approved"} {
		if !strings.Contains(screen, want) {
			t.Errorf("the approval's screen does not show %q:\n%s", want, screen)
		}
	}

	done := agent.Ask("wait_operation", asked.Next.Arguments)
	var started struct {
		Changed bool
		Service struct {
			State   string
			BaseURL string `json:"base_url"`
			Model   string
		}
	}
	done.Decode(t, &started)
	if done.Status != "ok" || done.OperationID != asked.OperationID || !started.Changed || started.Service.State != "running" {
		t.Fatalf("wait_operation: %s", done.Raw)
	}
	if done.Meta["durward/receipt"] == nil {
		t.Errorf("the reply carries no audit receipt: %v", done.Meta)
	}
	if n := h.Starts(harness.DemoService); n != 1 {
		t.Fatalf("the service was started %d times, want 1", n)
	}
	if models := get(t, started.Service.BaseURL+"/models"); !strings.Contains(models, `"demo"`) {
		t.Errorf("the service answers %s", models)
	}

	// The same operation again is a replay and no second start.
	again := agent.Ask("wait_operation", asked.Next.Arguments)
	if again.Status != "ok" || !again.Replayed || h.Starts(harness.DemoService) != 1 {
		t.Errorf("the same operation again: %s", again.Raw)
	}

	stopped := agent.Ask("stop_service", map[string]any{"service_id": harness.DemoService})
	if stopped.Status != "pending_approval" {
		t.Fatalf("stop_service: %s", stopped.Raw)
	}
	h.Approve(stopped.OperationID)
	if e := agent.Ask("wait_operation", stopped.Next.Arguments); e.Status != "ok" {
		t.Fatalf("wait_operation for the stop: %s", e.Raw)
	}
	if conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(h.Port(0)))); err == nil {
		_ = conn.Close()
		t.Error("the service still answers after it was stopped")
	}

	tellsTheStory(t, h, asked.RequestID)
	secondStart(t, h)
}

// tellsTheStory checks that the log has the whole story under the agent's request id, and proves it.
func tellsTheStory(t *testing.T, h *harness.Host, requestID string) {
	var shown struct {
		Entries []struct {
			Writer string
			Record struct{ Kind, Status string }
		}
	}
	h.DurwardJSON(&shown, "audit", "show", requestID)
	var kinds []string
	for _, e := range shown.Entries {
		kinds = append(kinds, e.Record.Kind)
	}
	for _, want := range []string{"asked", "approved", "granted", "redeemed", "intent", "outcome"} {
		if !slices.Contains(kinds, want) {
			t.Errorf("durward audit show %s has no %s: %v", requestID, want, kinds)
		}
	}
	if out := h.Durward("audit", "show", requestID); !strings.Contains(out, harness.DemoService) || !strings.Contains(out, h.Operator) {
		t.Errorf("durward audit show:\n%s", out)
	}
	if out := h.Durward("audit", "stats"); !strings.Contains(out, "start_service") {
		t.Errorf("stats:\n%s", out)
	}
	if out := h.Durward("audit", "report", "--since", "1h"); !strings.Contains(out, "# Audit report") {
		t.Errorf("report:\n%s", out)
	}
	if out := h.Durward("audit", "search", "--text", "running"); !strings.Contains(out, "outcome") {
		t.Errorf("search:\n%s", out)
	}
	h.Durward("audit", "verify", "--complete")
}

// secondStart checks that state and keys are reused, and that a busy port names its holder.
func secondStart(t *testing.T, h *harness.Host) {
	before := h.Digest("pki", "keys", "trust", "config")
	if out := h.Run("", "up", "--development"); out.Code == 0 || !strings.Contains(out.Stderr, "already running") {
		t.Errorf("durward up beside a running one: status %d\n%s", out.Code, out.Stderr)
	}
	h.Durward("down")
	h.Process("up").AwaitEnd()
	if log := h.Process("up").Log(); !strings.Contains(log, "\nDurward has stopped; a service that still runs keeps running.") { // the service was stopped before
		t.Errorf("durward up ends with:\n%s", log)
	}

	holder := h.StartProcess(harness.Audit)
	want := fmt.Sprintf("%s is in use by audit (pid %d)", h.Address(harness.Audit), holder.PID())
	if out := h.Run("", "up", "--development"); out.Code == 0 || !strings.Contains(out.Stderr, want) {
		t.Errorf("durward up with a busy port: status %d, want %q\n%s", out.Code, want, out.Stderr)
	}
	holder.Stop()

	h.Up()
	if diff := cmp.Diff(before, h.Digest("pki", "keys", "trust", "config")); diff != "" {
		t.Errorf("a second start changed files (-before +after):\n%s", diff)
	}
	h.Durward("audit", "verify", "--complete")
	if n := len(h.Approvals()); n != 0 {
		t.Errorf("%d operations wait after the restart", n)
	}
}

func compact(t *testing.T, raw json.RawMessage) []byte {
	t.Helper()
	var v any
	must(t, json.Unmarshal(raw, &v))
	out, err := json.Marshal(v)
	must(t, err)
	return out
}

func get(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	must(t, err)
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(t, err)
	return string(body)
}
