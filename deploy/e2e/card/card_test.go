//go:build hardware

package card

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/services/platform/platformtest/testfile"
)

// near reports whether two sizes are the same but for rounding.
func near(a, b int) bool { return max(a, b)-min(a, b) <= 4 }

// TestWhatIsShown holds what agents, people and scrapers are shown of the card beside what nvidia-smi says, idle and with a service on it.
func TestWhatIsShown(t *testing.T) {
	for _, source := range []string{"nvml", "nvidia-smi"} {
		t.Run(source, func(t *testing.T) {
			h := start(t, source)
			h.agrees(source, "")
			h.service("start_service", byDay)
			h.agrees(source, byDay)
			for _, words := range [][]string{{"gpu"}, {"status"}, {"services"}, {"service", "show", byDay}, {"simulate", byNight, "--verbose"}} {
				t.Logf("durward %s:\n%s", strings.Join(words, " "), h.Durward(words...))
			}
			doctor := h.Run("", "doctor")
			t.Logf("durward doctor:\n%s%s", doctor.Stdout, doctor.Stderr)
			if want := map[string]string{"nvml": "1 GPUs, read through the driver's library", "nvidia-smi": "1 GPUs, read through nvidia-smi"}[source]; !strings.Contains(doctor.Stdout, want) {
				t.Errorf("doctor does not say %q", want)
			}
			h.service("stop_service", byDay)
			harness.Eventually(t, "its memory is free", func() error {
				if now := look(t); now.free < h.card.free-contextMiB {
					return fmt.Errorf("%d MiB are free", now.free)
				}
				return nil
			})
		})
	}
}

// agrees compares what is shown with what nvidia-smi says; service is the one that runs, "" for none.
func (h *host) agrees(source, service string) {
	h.t.Helper()
	var status struct {
		Source string
		Gpus   []map[string]any
	}
	seen := ""
	harness.Eventually(h.t, "what is shown is what nvidia-smi says", func() error {
		before, g, after := look(h.t), h.shown(), look(h.t)
		if before.used != after.used {
			return fmt.Errorf("it changes: %+v, %+v", before, after)
		}
		if g.GPU.UUID != after.uuid || g.GPU.Name != after.name || g.GPU.Problem != "" || g.GPU.Simulated || !near(g.GPU.Total, after.total) ||
			!near(g.GPU.Used, after.used) || !near(g.GPU.Free, after.free) || !near(g.GPU.Reserved, after.reserved) {
			return fmt.Errorf("shown %+v, nvidia-smi %+v", g, after)
		}
		if g.GPU.Utilisation == nil || g.GPU.Temperature == nil || g.GPU.Power == nil || max(*g.GPU.Temperature, after.temperature)-min(*g.GPU.Temperature, after.temperature) > 5 {
			return fmt.Errorf("its sensors: %+v, nvidia-smi %+v", g.GPU, after)
		}
		seen = fmt.Sprintf("total %d, reserved %d, used %d, free %d, foreign %d, claimed %d MiB, %d %%, %d C, %d W; programs %+v", g.GPU.Total,
			g.GPU.Reserved, g.GPU.Used, g.GPU.Free, g.GPU.Foreign, g.GPU.Claimed, *g.GPU.Utilisation, *g.GPU.Temperature, *g.GPU.Power, g.Processes)
		if service == "" {
			return nil
		}
		if len(g.Processes) != 1 || len(g.GPU.Services) != 1 {
			return fmt.Errorf("programs %+v, services %v", g.Processes, g.GPU.Services)
		}
		p := g.Processes[0]
		if p.Service != service || p.PID != h.pid(service) || p.MiB != held(h.t)[p.PID] || p.MiB < h.takes(service) || p.MiB > h.takes(service)+contextMiB ||
			p.Name != harness.Engine || p.User == "" || g.GPU.Foreign != 0 {
			return fmt.Errorf("the program is %+v, nvidia-smi has %v", p, held(h.t))
		}
		return nil
	})
	h.t.Logf("%s: %s", source, seen)
	e := h.agent.Ask("gpu_status", nil)
	if e.Decode(h.t, &status); status.Source != source || len(status.Gpus) != 1 {
		h.t.Errorf("gpu_status: %s", e.Raw)
	}
	used := fmt.Sprintf("durward_gpu_memory_used_bytes{gpu=\"0\",gpu_uuid=\"%s\"} ", h.card.uuid)
	metrics := h.metrics()
	_, rest, found := strings.Cut(metrics, used)
	line, _, _ := strings.Cut(rest, "\n")
	if bytes, err := strconv.ParseFloat(line, 64); !found || err != nil || !near(int(bytes)>>20, look(h.t).used) {
		h.t.Errorf("the metrics have %q, nvidia-smi %+v", line, look(h.t))
	}
}

func (h *host) metrics() string {
	h.t.Helper()
	answer, err := http.Get("http://" + h.HealthAddress(harness.Executor) + "/metrics")
	if err != nil {
		h.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(text)
}

// TestSwitch switches between two services that do not fit together, there and back.
func TestSwitch(t *testing.T) {
	h := start(t, "nvml")
	h.service("start_service", byDay)
	first := h.pid(byDay)
	for _, mode := range []string{byNight, byDay, byNight} {
		other := byDay
		if mode == byDay {
			other = byNight
		}
		before := strings.Count(h.ReadFile("record-"+other), "started")
		began := time.Now()
		if e := h.switched(mode); e.Status != "ok" {
			t.Fatalf("switch to %s: %s", mode, e.Raw)
		}
		t.Logf("the switch to %s took %s, its approval included\n%s", mode, time.Since(began).Round(time.Millisecond), h.Durward("switches", "--json"))
		now := held(t)
		if pid := h.pid(mode); len(now) != 1 || now[pid] < h.takes(mode) || now[first] != 0 {
			t.Errorf("nvidia-smi has %v, %s is %d", now, mode, pid)
		}
		// The card was empty when the program found it: the other one's memory was free before.
		lines := strings.Split(h.ReadFile("record-"+mode), "\n")
		found := 0
		for _, line := range lines {
			_, _ = fmt.Sscanf(line, "found %d MiB free", &found) // the last one counts
		}
		if found < h.card.free-contextMiB {
			t.Errorf("%s found %d MiB free of %d", mode, found, h.card.free)
		}
		if n := strings.Count(h.ReadFile("record-"+other), "started"); n != before {
			t.Errorf("%s was started meanwhile", other)
		}
	}

	// One that takes more than it declares and the card has: what was before is there again.
	e := h.switched(greedy)
	t.Logf("switch to %s: %s", greedy, e.Raw)
	if e.Status == "ok" && !strings.Contains(string(e.Raw), "ROLLED_BACK") {
		t.Errorf("the switch is not undone: %s", e.Raw)
	}
	if pid := h.pid(byNight); h.state(byNight) != "running" || held(t)[pid] < h.takes(byNight) || len(held(t)) != 1 {
		t.Errorf("%s is %s, nvidia-smi has %v", byNight, h.state(byNight), held(t))
	}
}

// TestAStrangersProgram holds memory that a start needs: the start is refused, and the program named.
func TestAStrangersProgram(t *testing.T) {
	h := start(t, "nvml")
	stranger := h.stranger(h.card.total * 70 / 100)
	pid := stranger.Process.Pid
	harness.Eventually(t, "the stranger is seen", func() error {
		g := h.shown()
		for _, p := range g.Processes {
			if p.PID == pid && p.Service == "" && p.Name == harness.Engine && p.MiB == held(t)[pid] && g.GPU.Foreign == p.MiB {
				return nil
			}
		}
		return fmt.Errorf("%+v", g)
	})
	e := h.agent.Ask("start_service", map[string]any{"service_id": byDay})
	if e.Status == "pending_approval" {
		h.Approve(e.OperationID)
		e = h.agent.Ask("wait_operation", map[string]any{"operation_id": e.OperationID})
	}
	t.Logf("start_service: %s", e.Raw)
	if e.Error == nil || e.Error.Code != "DOES_NOT_FIT" || !strings.Contains(e.Error.Message, strconv.Itoa(held(t)[pid])+" MiB") {
		t.Errorf("the start beside a stranger: %s", e.Raw)
	}
	text := h.Durward("gpu")
	t.Logf("durward gpu:\n%s", text)
	if !strings.Contains(text, strconv.Itoa(pid)) || !strings.Contains(text, " 0 MiB by services") || h.pid(byDay) != 0 {
		t.Errorf("durward gpu does not name %d alone", pid)
	}
	if simulated := h.Run("", "simulate", byDay); simulated.Code != 1 {
		t.Errorf("it fits, by durward simulate:\n%s", simulated.Stdout)
	} else {
		t.Logf("durward simulate:\n%s%s", simulated.Stdout, simulated.Stderr)
	}
	_ = stranger.Process.Kill() // its memory tells that it is gone
	_ = stranger.Wait()         // it was killed
	harness.Eventually(t, "its memory is free", func() error {
		if g := h.shown(); g.GPU.Foreign != 0 || len(g.Processes) != 0 {
			return fmt.Errorf("%+v", g)
		}
		return nil
	})
	h.service("start_service", byDay)
}

// TestAKilledService is noticed, and its memory is free.
func TestAKilledService(t *testing.T) {
	h := start(t, "nvml")
	h.service("start_service", byDay)
	if err := syscall.Kill(h.pid(byDay), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "it has failed, and holds nothing", func() error {
		if g := h.shown(); h.state(byDay) != "failed" || g.GPU.Used > h.card.used+contextMiB || len(g.Processes) != 0 {
			return fmt.Errorf("%s is %s: %+v", byDay, h.state(byDay), g)
		}
		return nil
	})
	h.service("start_service", byDay)
}

// TestSleep verifies a sleep by what the card says.
func TestSleep(t *testing.T) {
	h := start(t, "nvml")
	h.service("start_service", sleepy)
	pid := h.pid(sleepy)
	awake := held(t)[pid]
	h.service("sleep_service", sleepy)
	asleep := held(t)[pid]
	h.service("wake_service", sleepy)
	if again := held(t)[pid]; awake < h.takes(sleepy) || asleep > sleepMiB || asleep == 0 || max(again, awake)-min(again, awake) > 64 || h.state(sleepy) != "running" {
		t.Errorf("it held %d MiB, %d asleep and %d awake again", awake, asleep, again)
	}
	t.Logf("awake %d MiB, asleep %d", awake, asleep)
}

// TestACriticalError is reported by the driver while the executor runs.
func TestACriticalError(t *testing.T) {
	h := start(t, "nvml")
	busy := h.stranger(256, "-busy")
	harness.Eventually(t, "the card is busy", func() error {
		if g := h.shown(); g.GPU.Utilisation == nil || *g.GPU.Utilisation < 50 {
			return fmt.Errorf("%+v", g.GPU)
		}
		return nil
	})
	_ = busy.Process.Kill() // as above
	_ = busy.Wait()         // it was killed
	faulty := h.stranger(256, "-fault")
	_ = faulty.Wait() // it fails: that is what it is for
	harness.Eventually(t, "the error is known", func() error {
		if g := h.shown(); g.GPU.XID != 31 {
			return fmt.Errorf("the newest XID is %d", g.GPU.XID)
		}
		return nil
	})
	t.Logf("durward gpu:\n%s", h.Durward("gpu"))
	// It was a program's fault: the card goes on.
	h.service("start_service", byDay)
}

// TestProposal proposes the host's card for a catalogue that has none.
func TestProposal(t *testing.T) {
	card := look(t)
	h := harness.New(t, harness.Options{Bin: programs(t), Catalog: func(*harness.Host) string { return "version: 1\n" }})
	file := h.Path("compose.yaml")
	testfile.Write(t, file, "services:\n  llm:\n    image: vllm/vllm-openai:v0.10.0\n    gpus: all\n    user: \"1000:1000\"\n    command: [--model, Qwen/Qwen3-8B]\n    ports: [\"8000:8000\"]\n")
	out := h.Run("", "catalog", "import", "compose", file, "--out", "-")
	t.Logf("durward catalog import compose:\n%s%s", out.Stdout, out.Stderr)
	if !strings.Contains(out.Stdout, card.uuid) || !strings.Contains(out.Stdout, card.name) {
		t.Errorf("exit status %d: the proposal does not name %s, %s", out.Code, card.uuid, card.name)
	}
}
