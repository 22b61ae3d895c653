//go:build real

package real

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
		must(t, err)
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		must(t, err)
		if out := promtool(string(text), "check", "metrics"); strings.TrimSpace(out) != "" {
			t.Errorf("the metrics of %s: %s", role, out)
		}
	}
}

// TestPrometheus runs Prometheus with the alert rules and the example configuration, at this installation's ports and quicker: it scrapes
// every process, and evaluates every rule without an error; the process that is then ended has its alert, which no other process has.
func TestPrometheus(t *testing.T) {
	h := harness.Start(t, harness.Options{})
	folder := filepath.Join(harness.Root(t), "deploy", "prometheus")
	config := func(from string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(folder, from))
		must(t, err)
		return string(b)
	}
	text := strings.ReplaceAll(config("prometheus.yaml"), "15s", "1s")
	for role, shipped := range map[string]string{harness.Gateway: "127.0.0.1:7440", harness.Vault: "127.0.0.1:7441", harness.Executor: "127.0.0.1:7442", harness.Audit: "127.0.0.1:7443"} {
		text = strings.ReplaceAll(text, `"`+shipped+`"`, `"`+h.HealthAddress(role)+`"`)
	}
	// The control can be read, and not evaluated: it takes one series for another's.
	const control = "\n      - alert: Control\n        expr: up * on () up\n"
	dir := t.TempDir()
	for name, content := range map[string]string{"prometheus.yaml": text, "alerts.yaml": config("alerts.yaml") + control} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	address := fmt.Sprintf("127.0.0.1:%d", h.Port(0))
	begin(t, h, "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	type rule struct {
		Name, Health, LastError, State string
		LastEvaluation                 time.Time
		Alerts                         []struct{ Labels map[string]string }
	}
	var answer struct {
		Data struct {
			ActiveTargets []struct{ Health, LastError, ScrapeURL string }
			Groups        []struct{ Rules []rule }
		}
	}
	ask := func(what string) error {
		response, err := http.Get("http://" + address + "/api/v1/" + what)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		answer.Data.ActiveTargets, answer.Data.Groups = nil, nil
		return json.NewDecoder(response.Body).Decode(&answer)
	}
	harness.Eventually(t, "every process is scraped", func() error {
		if err := ask("targets"); err != nil {
			return err
		}
		for _, target := range answer.Data.ActiveTargets {
			if target.Health != "up" {
				return fmt.Errorf("%s is %s: %s", target.ScrapeURL, target.Health, target.LastError)
			}
		}
		if n := len(answer.Data.ActiveTargets); n != 4 {
			return fmt.Errorf("%d targets", n)
		}
		return nil
	})
	scraped := time.Now()
	rules := func() (out []rule) {
		for _, group := range answer.Data.Groups {
			out = append(out, group.Rules...)
		}
		return out
	}
	harness.Eventually(t, "every rule is evaluated, and well", func() error {
		if err := ask("rules"); err != nil {
			return err
		}
		if want := 1 + strings.Count(config("alerts.yaml"), "- alert:"); len(rules()) != want {
			return fmt.Errorf("%d rules of %d", len(rules()), want)
		}
		for _, r := range rules() {
			if (r.Health == "ok" && r.LastError == "") == (r.Name == "Control") || r.LastEvaluation.Before(scraped) {
				return fmt.Errorf("%s: %s %s, at %s", r.Name, r.Health, r.LastError, r.LastEvaluation)
			}
		}
		return nil
	})
	h.Process(harness.Vault).Kill()
	harness.Eventually(t, "the vault's absence is an alert", func() error {
		if err := ask("rules"); err != nil {
			return err
		}
		for _, r := range rules() {
			for _, alert := range r.Alerts {
				if r.Name == "DurwardProcessDown" && alert.Labels["job"] == "durward-vault" {
					return nil
				} else if r.Name == "DurwardProcessDown" {
					t.Errorf("%s is said to be down", alert.Labels["job"])
				}
			}
		}
		return errors.New("there is none yet")
	})
}
