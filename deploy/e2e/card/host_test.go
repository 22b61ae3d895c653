//go:build hardware

package card

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// The services: byDay and byNight do not fit together, sleepy can sleep, greedy takes more than it declares and the card has.
const (
	byDay, byNight, sleepy, greedy = "by-day", "by-night", "sleepy", "greedy"
	// contextMiB is more than a CUDA context takes; what services declare has it beside what their programs ask for.
	contextMiB = 1024
	sleepMiB   = 2048
)

// share is what the programs ask for, in hundredths of the card.
var share = map[string]int{byDay: 45, byNight: 60, sleepy: 20, greedy: 120}

// device is what nvidia-smi says of the first card. Sizes are MiB.
type device struct {
	uuid, name                  string
	total, used, free, reserved int
	utilisation, temperature    int
}

// host is an installation on this card.
type host struct {
	*harness.Host
	t     *testing.T
	agent *harness.Client
	card  device
}

// asked runs nvidia-smi, and returns the first card's line or every program's.
func asked(t testing.TB, question string) [][]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nvidia-smi", question, "--format=csv,noheader,nounits").CombinedOutput()
	if err != nil {
		t.Fatalf("nvidia-smi %s: %v\n%s", question, err, out)
	}
	var rows [][]string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line != "" {
			rows = append(rows, strings.Split(line, ", "))
		}
	}
	return rows
}

// look asks nvidia-smi for the first card.
func look(t testing.TB) device {
	t.Helper()
	row := asked(t, "--query-gpu=uuid,name,memory.total,memory.used,memory.free,memory.reserved,utilization.gpu,temperature.gpu")[0]
	d := device{uuid: row[0], name: row[1]}
	for i, into := range []*int{&d.total, &d.used, &d.free, &d.reserved, &d.utilisation, &d.temperature} {
		n, err := strconv.Atoi(row[2+i])
		if err != nil {
			t.Fatalf("nvidia-smi says %q", row)
		}
		*into = n
	}
	return d
}

// held is what nvidia-smi says that each program holds, in MiB.
func held(t testing.TB) map[int]int {
	t.Helper()
	out := map[int]int{}
	for _, row := range asked(t, "--query-compute-apps=pid,used_memory") {
		pid, err := strconv.Atoi(row[0])
		if err != nil {
			t.Fatalf("nvidia-smi says %q", row)
		}
		out[pid], _ = strconv.Atoi(row[1]) // [N/A]: 0
	}
	return out
}

// programs is the folder of the built programs, as they are released.
func programs(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("DURWARD_GPU_PROGRAMS")
	if dir == "" {
		t.Fatal("DURWARD_GPU_PROGRAMS names no folder: run scripts/gpu.sh")
	}
	return dir
}

// start makes an installation whose catalogue names the card by its uuid, and starts it.
func start(t *testing.T, source string) *host {
	t.Helper()
	h := &host{t: t, card: look(t)}
	h.Host = harness.New(t, harness.Options{Bin: programs(t), Catalog: h.catalog})
	h.WriteFile("config/executor.yaml", h.ReadFile("config/executor.yaml")+fmt.Sprintf("\ngpu: {source: %s}\n", source))
	h.StartAll()
	h.agent = h.Connect(h.AddClient("agent", "--tier", "DESTRUCTIVE"))
	return h
}

// takes is what a service's program asks for, in MiB.
func (h *host) takes(id string) int { return h.card.total * share[id] / 100 }

func (h *host) catalog(in *harness.Host) string {
	var b strings.Builder
	fmt.Fprintf(&b, "version: 1\ngpus:\n  - {index: 0, uuid: %s}\nservices:\n", h.card.uuid)
	for i, id := range []string{byDay, byNight, sleepy, greedy} {
		record := in.Path("record-" + id)
		argv := []string{"durward-engine", "-cuda", "-name", id, "-port", strconv.Itoa(in.Port(i)), "-vram", strconv.Itoa(h.takes(id)), "-record", record}
		declared, more := h.takes(id)+contextMiB, "openai: true"
		switch id {
		case sleepy:
			argv, more = append(argv, "-api", "vllm", "-sleep-mib", "256"), fmt.Sprintf("sleep: vllm-l1, sleep_mib: %d", sleepMiB)
		case greedy:
			declared = contextMiB
		}
		words, err := json.Marshal(argv)
		if err != nil {
			h.t.Fatal(err)
		}
		fmt.Fprintf(&b, "  - {id: %s, driver: process, argv: %s, port: %d, health: {path: /health}, gpus: [0], vram_mib: %d, writes: [%q], %s}\n",
			id, words, in.Port(i), declared, record, more)
	}
	b.WriteString("modes:\n")
	for _, id := range []string{byDay, byNight, greedy} {
		fmt.Fprintf(&b, "  - {id: %s, services: [%s]}\n", id, id)
	}
	return b.String()
}

// approved asks for a call as the agent, approves it as the operator, and returns its end.
func (h *host) approved(tool string, arguments map[string]any) harness.Envelope {
	h.t.Helper()
	asked := h.agent.Ask(tool, arguments)
	if asked.Status != "pending_approval" {
		h.t.Fatalf("%s: %s", tool, asked.Raw)
	}
	h.Approve(asked.OperationID)
	for {
		done := h.agent.Ask("wait_operation", map[string]any{"operation_id": asked.OperationID})
		if done.Status != "pending_approval" && done.Status != "running" {
			return done
		}
	}
}

// service carries out a change of one service, which must succeed.
func (h *host) service(tool, id string) {
	h.t.Helper()
	if e := h.approved(tool, map[string]any{"service_id": id}); e.Status != "ok" {
		h.t.Fatalf("%s %s: %s", tool, id, e.Raw)
	}
}

// switched carries out a switch.
func (h *host) switched(mode string) harness.Envelope {
	h.t.Helper()
	var plan struct {
		PlanDigest string `json:"plan_digest"`
	}
	simulated := h.agent.Ask("simulate_mode", map[string]any{"mode_id": mode})
	if simulated.Decode(h.t, &plan); plan.PlanDigest == "" {
		h.t.Fatalf("simulate_mode %s: %s", mode, simulated.Raw)
	}
	h.t.Logf("simulate_mode %s: %s", mode, simulated.Raw)
	return h.approved("switch_mode", map[string]any{"mode_id": mode, "plan_digest": plan.PlanDigest})
}

// pid is the running program of a service; 0: none.
func (h *host) pid(id string) int {
	h.t.Helper()
	for _, pid := range h.ServicePIDs() {
		if line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline")); err == nil &&
			strings.Contains(string(line), "\x00-name\x00"+id+"\x00") {
			return pid
		}
	}
	return 0
}

// state is a service's.
func (h *host) state(id string) string {
	h.t.Helper()
	var list struct {
		Services []struct {
			ServiceID string `json:"service_id"`
			State     string
		}
	}
	h.DurwardJSON(&list, "services")
	for _, s := range list.Services {
		if s.ServiceID == id {
			return s.State
		}
	}
	return "missing"
}

// gpu is what `durward gpu --json` has of the card.
type gpu struct {
	GPU struct {
		UUID, Name, Problem string
		Simulated           bool
		Total               int      `json:"memory_total_mib"`
		Used                int      `json:"memory_used_mib"`
		Free                int      `json:"memory_free_mib"`
		Reserved            int      `json:"memory_reserved_mib"`
		Claimed             int      `json:"memory_claimed_mib"`
		Foreign             int      `json:"memory_foreign_mib"`
		Services            []string `json:"services"`
		Utilisation         *int     `json:"utilisation_percent"`
		Temperature         *int     `json:"temperature_c"`
		Power               *int     `json:"power_w"`
		ECC                 *int     `json:"ecc_errors"`
		XID                 int      `json:"last_xid"`
	}
	Processes []struct {
		PID     int    `json:"pid"`
		MiB     int    `json:"memory_mib"`
		Service string `json:"service_id"`
		Name    string
		User    string
	}
}

func (h *host) shown() gpu {
	h.t.Helper()
	var list struct {
		Gpus   []gpu
		Source string
	}
	h.DurwardJSON(&list, "gpu")
	i := slices.IndexFunc(list.Gpus, func(g gpu) bool { return g.GPU.UUID == h.card.uuid })
	if i < 0 {
		h.t.Fatalf("durward gpu has not %s: %+v", h.card.uuid, list)
	}
	return list.Gpus[i]
}

// stranger starts a program that is no service and holds so many MiB beside its context, and returns it once it has them.
func (h *host) stranger(mib int, flags ...string) *exec.Cmd {
	h.t.Helper()
	return grab(h.t, filepath.Join(h.Bin, harness.Engine), mib, flags...)
}

func grab(t testing.TB, program string, mib int, flags ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(program, append([]string{"grab", "-cuda", "-mib", strconv.Itoa(mib)}, flags...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have been killed before
		_ = cmd.Wait()         // it was killed
	})
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatalf("it takes nothing: %v", err)
	}
	return cmd
}
