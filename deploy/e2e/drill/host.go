package drill

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"durward.internal/deploy/e2e/fakegpu"
	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// The services of the drill's host, each a stand-in for a model server that holds memory of two GPUs of 24 GiB.
type program struct {
	id         string
	gpu        int
	vram, keep int
	flags      []string
}

var programs = []program{
	{"chat", 0, 16000, 1000, []string{"-api", "vllm", "-sleep-mib", "1000"}},
	{"embed", 1, 4000, 0, nil},
	{"code", 0, 20000, 0, nil},
	{"docs", 1, 18000, 0, nil},
	{"oom", 0, 20000, 0, []string{"-oom-at", "15000"}},
	{"crash", 1, 4000, 0, []string{"-crash-at", "ready"}},
	{"stall", 1, 4000, 0, []string{"-stall"}},
	{"liar", 0, 12000, 1000, []string{"-api", "vllm", "-lying-sleep", "-sleep-mib", "1000"}},
}

// modes are the drill's, with the set that each leaves when it is committed from talk.
var modes = map[string][]string{
	"talk": {"chat", "embed"}, "work": {"code", "docs"}, "oom": {"docs", "oom"}, "crash": {"code", "crash"}, "stall": {"code", "stall"},
	"lie": {"embed", "liar"},
}

const (
	gpuTotal    = 24576
	gpuReserved = 300
	gpuMargin   = 256
)

// hostWorld is an installation whose executor measures made-up GPUs through the driver library's interface.
type hostWorld struct {
	*world
	gpus  *fakegpu.Host
	flags []string
	// share is which of the attack's shares this world has.
	share, shares int
	// edit changes the catalog's text.
	edit func(string) string
}

func newHostWorld(t *testing.T, build harness.Build, flags ...string) *hostWorld {
	w := &hostWorld{world: &world{t: t, weakened: map[string]string{}}, flags: flags}
	var err error
	w.gpus, err = fakegpu.New(filepath.Join(t.TempDir(), "gpus"),
		fakegpu.GPU{UUID: "GPU-00000000-0000-0000-0000-000000000000", Name: "Drill", Total: gpuTotal, Reserved: gpuReserved},
		fakegpu.GPU{UUID: "GPU-00000000-0000-0000-0000-000000000001", Name: "Drill", Total: gpuTotal, Reserved: gpuReserved})
	w.must(err)
	w.h = harness.New(t, harness.Options{Build: build, Catalog: w.catalog, Limits: limits})
	w.h.WriteFile("config/clients.yaml", clientsFile(strings.TrimSpace(string(ssh.MarshalAuthorizedKey(w.public())))))
	w.h.WriteFile("config/executor.yaml", w.h.ReadFile("config/executor.yaml")+
		fmt.Sprintf("\ngpu: {source: nvml, library: %q, margin_mib: %d}\n", filepath.Join(w.h.Bin, harness.Library), gpuMargin))
	w.h.StartProcess(harness.Audit)
	w.h.StartProcess(harness.Vault)
	w.launch()
	w.h.AwaitHealthy(harness.Executor)
	w.h.StartProcess(harness.Gateway)

	w.trust = w.h.Trust()
	w.signer = w.h.Signer()
	gateway, operator := w.source(harness.Gateway), w.source("operator")
	w.gatewayVault = w.dial(gateway, harness.Vault, w.h.Identity(harness.Vault))
	w.gatewayExecutor = w.dial(gateway, harness.Executor, w.h.Identity(harness.Executor))
	w.operatorVault = w.dial(operator, harness.Vault, w.h.Identity(harness.Vault))
	w.operatorExecutor = w.dial(operator, harness.Executor, w.h.Identity(harness.Executor))
	w.reset()
	return w
}

// public is a key for the client that signs; no line of the host uses it.
func (w *hostWorld) public() ssh.PublicKey {
	signer, _ := newKey(w.t)
	return signer.PublicKey()
}

func (w *hostWorld) catalog(h *harness.Host) string {
	var b strings.Builder
	b.WriteString("version: 1\ngpus:\n  - {index: 0, name: One}\n  - {index: 1, name: Two}\nservices:\n")
	for i, p := range programs {
		argv := []string{"durward-engine", "-name", p.id, "-port", fmt.Sprint(h.Port(i)), "-gpus", fmt.Sprint(p.gpu),
			"-vram", fmt.Sprint(p.vram), "-fake-gpu", w.gpus.Dir, "-record", h.Path("starts-" + p.id), "-load-time", "100ms"}
		words, err := json.Marshal(append(argv, p.flags...))
		w.must(err)
		fmt.Fprintf(&b, "  - {id: %s, driver: process, argv: %s, port: %d, health: {path: /health}, gpus: [%d], vram_mib: %d, "+
			"start_timeout_s: 8, stall_timeout_s: 3, stop_timeout_s: 2, writes: [%q]", p.id, words, h.Port(i), p.gpu, p.vram, h.Path("starts-"+p.id))
		if p.keep > 0 {
			fmt.Fprintf(&b, ", sleep: vllm-l1, sleep_mib: %d", p.keep)
		}
		b.WriteString("}\n")
	}
	b.WriteString("modes:\n")
	for _, id := range []string{"talk", "work", "oom", "crash", "stall", "lie"} {
		fmt.Fprintf(&b, "  - {id: %s, services: [%s]}\n", id, strings.Join(modes[id], ", "))
	}
	if w.edit != nil {
		return w.edit(b.String())
	}
	return b.String()
}

// launch starts the executor with the world's GPUs, and with further flags; it does not wait.
func (w *hostWorld) launch(flags ...string) *harness.Process {
	w.h.SetFlags(harness.Executor, append(slices.Clone(w.flags), flags...)...)
	return w.h.LaunchUnder([]string{"/usr/bin/env", fakegpu.Variable + "=" + w.gpus.Dir}, harness.Executor)
}

// restartWith ends the executor and starts it anew with further flags. It returns when it serves and has undone what was
// interrupted, or has ended by itself: false.
func (w *hostWorld) restartWith(flags ...string) bool {
	w.t.Helper()
	if p := w.h.Process(harness.Executor); p.Running() {
		p.Kill()
	}
	p := w.launch(flags...)
	deadline := time.Now().Add(time.Minute)
	for !w.h.Healthy(harness.Executor) {
		if !p.Running() {
			return false
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the executor does not serve\n%s", p.Log())
		}
		time.Sleep(20 * time.Millisecond)
	}
	// It undoes an interrupted switch while it serves, and may be made to die of that.
	for _, conn := range []*grpc.ClientConn{w.operatorExecutor, w.gatewayExecutor} {
		for conn.GetState() != connectivity.Ready {
			if !p.Running() {
				return false
			}
			if time.Now().After(deadline) {
				w.t.Fatalf("the executor cannot be reached after its restart\n%s", p.Log())
			}
			conn.ResetConnectBackoff()
			conn.Connect()
			time.Sleep(10 * time.Millisecond)
		}
	}
	deadline = time.Now().Add(switchPatience)
	for {
		last, err := w.lastSwitch()
		if err == nil && (last == nil || last.GetEndedAt() != nil) {
			return true
		}
		if !p.Running() {
			return false
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the executor does not undo an interrupted switch: %v\n%s", err, p.Log())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// set is what runs on the host, seen from outside: by the programs and the memory that they hold.
func (w *hostWorld) set() []string {
	w.t.Helper()
	gpus, err := w.gpus.Read()
	w.must(err)
	held := map[int]uint32{}
	for _, g := range gpus {
		for _, p := range g.Programs {
			held[p.PID] += p.MiB
		}
	}
	var out []string
	for _, p := range programs {
		pids := w.pidsOf(p.id)
		switch {
		case len(pids) == 0:
		case len(pids) > 1:
			out = append(out, fmt.Sprintf("%s × %d", p.id, len(pids)))
		case held[pids[0]] == uint32(p.vram):
			out = append(out, p.id)
		case p.keep > 0 && held[pids[0]] == uint32(p.keep):
			out = append(out, p.id+":asleep")
		default:
			out = append(out, fmt.Sprintf("%s with %d MiB", p.id, held[pids[0]]))
		}
	}
	slices.Sort(out)
	return out
}

// pidsOf are the running programs of a service.
func (w *hostWorld) pidsOf(id string) []int {
	w.t.Helper()
	var out []int
	for _, pid := range w.h.ServicePIDs() {
		line, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "cmdline"))
		if err == nil && strings.Contains(string(line), "\x00-name\x00"+id+"\x00") {
			out = append(out, pid)
		}
	}
	return out
}

// simulate asks the executor for the plan.
func (w *hostWorld) simulate(mode string) (*executorv1.SimulateModeResponse, error) {
	return unary(w.world, executorv1.NewToolServiceClient(w.operatorExecutor).SimulateMode, &executorv1.SimulateModeRequest{ModeId: &mode})
}

func modeArguments(mode, digest string) []byte {
	return fmt.Appendf(nil, `{"mode_id":%q,"plan_digest":%q}`, mode, digest)
}

// grantFor lets the operator command a call, and returns the vault's grant for it.
func (w *hostWorld) grantFor(tool string, args []byte) (*callv1.SignedGrant, error) {
	ctx, cancel := w.ctx(callTime)
	defer cancel()
	preview, err := executorv1.NewControlServiceClient(w.operatorExecutor).PreviewCall(ctx, &executorv1.PreviewCallRequest{
		Tool: w.tool(tool).Ref(), Arguments: args,
	})
	if err != nil {
		return nil, err
	}
	st := w.newStatement(statement.KindCommand, tool, "", preview)
	digest := canonical.Digest(args)
	st.Arguments, st.ArgumentsDigest = args, canonical.FormatDigest(digest[:])
	st.Principal, st.Session, st.Channel = statement.CommandPrincipal(w.h.Operator), "-", "cli"
	command := &vaultv1.GrantCommandRequest{Statement: w.sign(st, w.signer)}
	out, err := vaultv1.NewApprovalServiceClient(w.operatorVault).GrantCommand(ctx, command)
	if err != nil {
		return nil, err
	}
	return out.GetGrant(), nil
}

// switchPatience bounds one switch.
const switchPatience = 90 * time.Second

// call carries a granted call out.
func (w *hostWorld) call(conn *grpc.ClientConn, tool string, args []byte, g *callv1.SignedGrant) (proto.Message, error) {
	t := w.tool(tool)
	request, err := t.Decode(args)
	if err != nil {
		return nil, err
	}
	ctx, cancel := w.ctx(switchPatience)
	defer cancel()
	if g != nil {
		ctx = metadata.AppendToOutgoingContext(ctx, rpc.MetadataGrant, marshal(g))
	}
	response := t.NewResponse()
	if err := conn.Invoke(ctx, t.FullMethod, request, response); err != nil {
		return nil, fault.From(err)
	}
	return response, nil
}

// to is a human's own switch.
func (w *hostWorld) to(mode string) (*executorv1.SwitchModeResponse, error) {
	plan, err := w.simulate(mode)
	if err != nil {
		return nil, err
	}
	if plan.GetPlanDigest() == "" {
		return nil, errors.New(plan.GetReason())
	}
	args := modeArguments(mode, plan.GetPlanDigest())
	g, err := w.grantFor("switch_mode", args)
	if err != nil {
		return nil, err
	}
	out, err := w.call(w.operatorExecutor, "switch_mode", args, g)
	if err != nil {
		return nil, err
	}
	return out.(*executorv1.SwitchModeResponse), nil
}

// reset brings the host to the set from which every trial begins: talk, and nothing else.
func (w *hostWorld) reset() {
	w.t.Helper()
	harness.Eventually(w.t, "the host is in the first mode", func() error {
		if slices.Equal(w.set(), modes["talk"]) {
			// Another plan than none would be an executor that sees it otherwise.
			if plan, err := w.simulate("talk"); err == nil && len(plan.GetSteps()) == 0 {
				return nil
			}
		}
		for _, p := range programs {
			if p.id == "chat" || p.id == "embed" {
				continue
			}
			for _, pid := range w.pidsOf(p.id) {
				_ = syscall.Kill(pid, syscall.SIGKILL) // gone already is as good
			}
		}
		out, err := w.to("talk")
		if err == nil && out.GetOutcome() != executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED {
			err = errors.New(out.GetCause())
		}
		if err == nil && !slices.Equal(w.set(), modes["talk"]) {
			err = fmt.Errorf("the host has %v", w.set())
		}
		return err
	})
}

// newest is the newest switch of the journal, nil where there is none.
func (w *hostWorld) newest() *executorv1.Switch {
	w.t.Helper()
	last, err := w.lastSwitch()
	w.must(err)
	return last
}

func (w *hostWorld) lastSwitch() (*executorv1.Switch, error) {
	out, err := unary(w.world, executorv1.NewControlServiceClient(w.operatorExecutor).ListSwitches, &executorv1.ListSwitchesRequest{Limit: 1})
	if err != nil || len(out.GetSwitches()) == 0 {
		return nil, err
	}
	return out.GetSwitches()[0], nil
}

// judge returns 1 where the host is neither in the old set nor in the new one and nobody says so, and logs why. began is the id of the
// newest switch before the trial. strict: nothing hindered the executor from bringing the old set back, so that a switch which is
// reported as degraded is an effect too.
func (w *hostWorld) judge(what, began string, strict bool, old, after []string) int {
	w.t.Helper()
	now := w.set()
	effect := func(why string) int {
		w.t.Logf("%s: %s; the host has %v", what, why, now)
		return 1
	}
	// What the executor shows was measured up to a second ago.
	for deadline := time.Now().Add(3 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		bad := w.unaccounted()
		if bad == "" {
			break
		}
		if time.Now().After(deadline) {
			return effect(bad)
		}
	}
	last := w.newest()
	if last == nil || last.GetOperationId() == began {
		if !slices.Equal(now, old) {
			return effect("no switch was begun, and the set is another")
		}
		return 0
	}
	asleep := func(id string) bool { return strings.HasSuffix(id, ":asleep") }
	is := func(want []string) bool {
		// One that would not sleep is stopped, and what slept may have been stopped for its memory.
		return slices.Equal(now, want) || slices.Equal(now, slices.DeleteFunc(slices.Clone(want), asleep))
	}
	switch last.GetOutcome() {
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED:
		if !is(after) {
			return effect(fmt.Sprintf("committed, and not %v", after))
		}
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK:
		if !slices.Equal(now, old) {
			return effect(fmt.Sprintf("rolled back, and not %v", old))
		}
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_DEGRADED, executorv1.SwitchOutcome_SWITCH_OUTCOME_NEEDS_A_HUMAN:
		if strict {
			return effect("it is reported as " + last.GetOutcome().String())
		}
		if last.GetCause() == "" || last.GetFailedService() == "" {
			return effect("it is reported without a cause")
		}
		for _, id := range now {
			name, _, _ := strings.Cut(id, ":")
			if !slices.Contains(old, name) && last.GetOutcome() == executorv1.SwitchOutcome_SWITCH_OUTCOME_DEGRADED {
				return effect("degraded, and something runs that did not before")
			}
		}
	default:
		return effect("the switch has no outcome")
	}
	return 0
}

// unaccounted says what memory is held that no service of the executor's accounts for, or is overfull.
func (w *hostWorld) unaccounted() string {
	w.t.Helper()
	gpus, err := w.gpus.Read()
	w.must(err)
	host, err := unary(w.world, executorv1.NewControlServiceClient(w.operatorExecutor).GetHost, &executorv1.GetHostRequest{})
	w.must(err)
	own := map[int]bool{}
	for _, pid := range w.h.ServicePIDs() {
		own[pid] = true
	}
	for i, g := range gpus {
		if g.Used+g.Reserved > g.Total {
			return fmt.Sprintf("GPU %d is overfull", i)
		}
		for _, p := range g.Programs {
			if !own[p.PID] {
				continue
			}
			known := false
			for _, seen := range host.GetGpus()[i].GetProcesses() {
				known = known || int(seen.GetPid()) == p.PID && seen.GetServiceId() != ""
			}
			if !known {
				return fmt.Sprintf("program %d holds %d MiB of GPU %d and counts as nobody's", p.PID, p.MiB, i)
			}
		}
	}
	return ""
}

// began is the id of the newest switch.
func (w *hostWorld) began() string {
	if last := w.newest(); last != nil {
		return last.GetOperationId()
	}
	return ""
}

// ready makes the plan and the grant of a switch, for a call that follows at once.
func (w *hostWorld) ready(mode string) (args []byte, g *callv1.SignedGrant) {
	w.t.Helper()
	plan, err := w.simulate(mode)
	w.must(err)
	args = modeArguments(mode, plan.GetPlanDigest())
	g, err = w.grantFor("switch_mode", args)
	w.must(err)
	return args, g
}
