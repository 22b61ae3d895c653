package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// TestTheHostFromTheCommandLine walks the operator's commands for services, modes and the catalog over real processes.
func TestTheHostFromTheCommandLine(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	add := func(args ...string) {
		t.Helper()
		h.Durward(append([]string{"catalog", "add", "--yes"}, args...)...)
	}
	port := strconv.Itoa(h.Port(2))
	add("service", "second", "--port", port, "--gpus", "1", "--vram", "4096", "--", "durward-demo", "-port", port,
		"-touch", filepath.Join(h.Dir, "starts-second"))
	add("service", "broken", "--port", strconv.Itoa(h.Port(3)), "--gpus", "1", "--vram", "1024", "--", "/bin/false")
	add("service", "huge", "--port", strconv.Itoa(h.Port(4)), "--gpus", "0", "--vram", "30000", "--", "/bin/false")
	add("mode", "one", harness.DemoService)
	add("mode", "two", "second")
	add("mode", "bad", harness.DemoService, "broken")
	add("mode", "toobig", "huge")
	harness.Eventually(t, "the executor uses the new catalogue", func() error {
		var check struct {
			InForce bool `json:"in_force"`
		}
		if h.DurwardJSON(&check, "catalog", "check"); !check.InForce {
			return fmt.Errorf("not yet")
		}
		return nil
	})

	simulate := func(mode string) string {
		t.Helper()
		var plan struct {
			Fits       bool
			PlanDigest string `json:"plan_digest"`
		}
		if h.DurwardJSON(&plan, "simulate", mode); !plan.Fits || len(plan.PlanDigest) != 64 {
			t.Fatalf("simulate %s: %+v", mode, plan)
		}
		return plan.PlanDigest
	}
	running := func(want ...string) {
		t.Helper()
		var list struct {
			Services []struct {
				ServiceID string `json:"service_id"`
				State     string
			}
		}
		h.DurwardJSON(&list, "services")
		var got []string
		for _, s := range list.Services {
			if s.State == "running" {
				got = append(got, s.ServiceID)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("running: %v, want %v", got, want)
		}
	}
	holds := func(out harness.Output, code int, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if out.Code != code || !strings.Contains(out.Stdout+out.Stderr, text) {
				t.Errorf("exit code %d, want %d, and %q in\n%s%s", out.Code, code, text, out.Stdout, out.Stderr)
			}
		}
	}

	holds(h.Ask("simulate", "toobig"), 1, "toobig cannot be switched to")
	holds(h.Ask("switch", "toobig", "--yes"), 1, "toobig cannot be switched to")
	running()

	stale := simulate("two")
	holds(h.Ask("switch", "one", "--plan", simulate("one")[:12], "--yes"), 0, "start "+harness.DemoService, "✓ the host is in mode one  ")
	running(harness.DemoService)
	holds(h.Ask("gpu"), 0, "8.0 GiB by services", harness.DemoService)
	holds(h.Ask("switch", "one", "--yes"), 0, "in this mode already")
	holds(h.Ask("logs", harness.DemoService), 0, "demo service")
	holds(h.Ask("logs", harness.DemoService, "-n", "100"), 0, "demo service")

	// The plan from before stops nothing, since nothing ran then.
	holds(h.Ask("switch", "two", "--plan", stale[:12], "--yes"), 1, "nothing was done")
	running(harness.DemoService)
	holds(h.Ask("switch", "two", "--yes"), 0, "stop "+harness.DemoService, "start second")
	running("second")

	holds(h.Ask("switch", "bad", "--yes"), 1, "rolled back: broken")
	running("second")

	holds(h.Ask("stop", "second", "--yes"), 0, "stopped")
	holds(h.Ask("mode", "show", "two"), 0, "drifted: second")
	holds(h.Ask("status"), 0, "drifted; bring it back: durward switch two")
	holds(h.Ask("switch", "two", "--yes"), 0, "start second")
	running("second")

	var history struct {
		Switches []struct {
			ModeID  string `json:"mode_id"`
			Outcome string
		}
	}
	h.DurwardJSON(&history, "switches")
	var got []string
	for _, s := range history.Switches {
		got = append(got, s.ModeID+" "+s.Outcome)
	}
	if want := "two committed, bad rolled_back, two committed, one committed"; strings.Join(got, ", ") != want {
		t.Errorf("the history is %v, want %s", got, want)
	}
	holds(h.Ask("switches", "--steps", "--limit", "2"), 0, "to bring back what was before", "broken: ")
	h.Durward("audit", "verify")
}

// TestWhatIsPrintedToTry: the request that durward prints for a new bearer client to try is answered, and not refused.
func TestWhatIsPrintedToTry(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	out := h.Durward("client", "add", "robot", "--bearer", "--channel", "api", "--tier", "READ", "--yes")
	_, line, _ := strings.Cut(out, "try    curl ")
	body := regexp.MustCompile(`-d '([^']*)' (http://\S+)`).FindStringSubmatch(line)
	if body == nil {
		t.Fatalf("nothing to try in:\n%s", out)
	}
	token, err := os.ReadFile(filepath.Join(h.Dir, "clients", "robot", "token"))
	must(t, err)
	harness.Eventually(t, "it is answered", func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, body[2], strings.NewReader(body[1]))
		must(t, err)
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
		for _, h := range regexp.MustCompile(`-H '([^:']*): ([^']*)'`).FindAllStringSubmatch(line, -1) {
			req.Header.Set(h[1], h[2])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(answer), `"result"`) || !strings.Contains(string(answer), "robot") {
			return fmt.Errorf("%d %s %w", resp.StatusCode, answer, err)
		}
		return nil
	})
}
