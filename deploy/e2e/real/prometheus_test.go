//go:build real

package real

import (
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// TestPromtool has Prometheus' own tool read the alert rules and the example configuration, carry out the rules' tests, and
// judge what every running process shows: names, units and help.
func TestPromtool(t *testing.T) {
	folder := filepath.Join(harness.Root(t), "deploy", "prometheus")
	promtool := func(input string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "promtool", args...)
		cmd.Dir = folder
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	if out := promtool("", "check", "rules", "alerts.yaml"); !strings.Contains(out, "SUCCESS") {
		t.Errorf("rules: %s", out)
	}
	if out := promtool("", "check", "config", "prometheus.yaml"); !strings.Contains(out, "SUCCESS") {
		t.Errorf("configuration: %s", out)
	}
	if out := promtool("", "test", "rules", "alerts_test.yaml"); !strings.Contains(out, "SUCCESS") {
		t.Errorf("the rules' tests: %s", out)
	}

	h := harness.Start(t, harness.Options{Egress: true})
	h.Connect(h.AddClient("agent")).Call("gpu_status", nil)
	for _, role := range append(harness.Roles(), harness.Egress) {
		response, err := http.Get("http://" + h.HealthAddress(role) + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if out := promtool(string(text), "check", "metrics"); strings.TrimSpace(out) != "" {
			t.Errorf("the metrics of %s: %s", role, out)
		}
	}
}
