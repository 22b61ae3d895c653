package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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

// HostLine is one way to try to leave the host half switched. What it counts as an effect is a host that is neither as it was
// before nor as it should be afterwards, without a report that says so; or something that runs and nobody approved.
type HostLine struct {
	Name string
	// Weaken are the executor's flags of the control.
	Weaken []string
	// drill build only: its attack needs what shipped programs do not have, such as an end at a given write.
	drillBuild bool
	// shares is how many worlds do the attack's trials between them.
	shares int
	attack func(w *hostWorld, rounds int) (trials, effects int)
}

// HostLines are every attack on switches of modes.
func HostLines() []HostLine {
	return []HostLine{
		{"host-killed-at-every-write", []string{"-weaken-switch", "compensation"}, true, 4, (*hostWorld).killedAtEveryWrite},
		{"host-killed-at-any-moment", []string{"-weaken-switch", "compensation"}, false, 1, (*hostWorld).killedAtAnyMoment},
		{"host-every-step-fails", []string{"-weaken-switch", "compensation"}, false, 1, (*hostWorld).everyStepFails},
		{"host-two-agents", []string{"-weaken-switch", "lease"}, false, 1, (*hostWorld).twoAgents},
		{"host-stranger-takes-memory", []string{"-weaken-switch", "compensation,admission"}, false, 1, (*hostWorld).strangerTakesMemory},
		{"host-edited-after-approval", []string{"-weaken", "subject,confirm", "-weaken-switch", "plan,definition"}, false, 1,
			(*hostWorld).editedAfterApproval},
		{"host-hostile-gateway", []string{
			"-weaken", "required,grant,arguments,subject,statement,spent,redeem,confirm", "-weaken-switch", "plan",
		}, false, 1, (*hostWorld).hostileGateway},
	}
}

// RunHost carries out the lines that are wanted, each in the shipped world (or, where it needs that, in the drill's build with
// every guard in place) and in one without the guards, prints each, and fails the test when an attack had an effect or a control
// had none. rounds is how often each attack is repeated.
func RunHost(t *testing.T, worlds Worlds, rounds int, wanted func(name string) bool, print func(line string)) {
	lines := slices.DeleteFunc(HostLines(), func(l HostLine) bool { return !wanted(l.Name) })
	if len(lines) == 0 {
		return // nothing is compiled for nothing
	}
	builds := map[bool]harness.Build{false: {NVML: true}, true: {Weak: true, NVML: true}}
	harness.Binaries(t, builds[false])
	harness.Binaries(t, builds[true])
	board := NewBoard(print)
	var running sync.WaitGroup
	for _, l := range lines {
		board.Expect(l.Name, l.shares+1)
		for share := range l.shares {
			worlds.Run(t, &running, fmt.Sprintf("%s/guarded-%d", l.Name, share), func(t *testing.T) {
				w := newHostWorld(t, builds[l.drillBuild])
				w.share, w.shares = share, l.shares
				began := time.Now()
				trials, effects := l.attack(w, rounds)
				t.Logf("%d trials, %d effects, %s", trials, effects, time.Since(began).Round(time.Millisecond))
				board.Note(t, l.Name, Result{Trials: trials, Effects: effects})
			})
		}
		worlds.Run(t, &running, l.Name+"/control", func(t *testing.T) {
			w := newHostWorld(t, builds[true], l.Weaken...)
			w.weak, w.shares = true, 1
			_, effects := l.attack(w, 1)
			board.Note(t, l.Name, Result{Control: effects})
		})
	}
	running.Wait()
	board.Judge(t)
}

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
	ctx, cancel := w.ctx(callTime)
	defer cancel()
	return executorv1.NewToolServiceClient(w.operatorExecutor).SimulateMode(ctx, &executorv1.SimulateModeRequest{ModeId: &mode})
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
	ctx, cancel := w.ctx(callTime)
	defer cancel()
	out, err := executorv1.NewControlServiceClient(w.operatorExecutor).ListSwitches(ctx, &executorv1.ListSwitchesRequest{Limit: 1})
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
	ctx, cancel := w.ctx(callTime)
	defer cancel()
	host, err := executorv1.NewControlServiceClient(w.operatorExecutor).GetHost(ctx, &executorv1.GetHostRequest{})
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

// workAfter is the set after a switch from talk to work.
var workAfter = []string{"chat:asleep", "code", "docs"}

// killedAtEveryWrite kills the executor before and after each write of the journal, in switches that go well and in ones that
// are being undone, and kills the next one while it recovers: at every third point in the first round, then at each.
func (w *hostWorld) killedAtEveryWrite(rounds int) (trials, effects int) {
	for round := range rounds {
		for _, mode := range []string{"work", "oom"} {
			for point, died := 1+w.share, true; died; point += w.shares {
				w.restartWith("-crash-at", fmt.Sprint(point))
				began := w.began()
				args, g := w.ready(mode)
				_, err := w.call(w.operatorExecutor, "switch_mode", args, g)
				died = err != nil
				if !died {
					break // every point is past
				}
				w.h.Process(harness.Executor).AwaitEnd()
				// Recoveries are killed too, at another write each time.
				for again := range 3 {
					if at := (point + again + round) % 9; (round > 0 || point%3 == 0) && at > 0 && !w.restartWith("-crash-at", fmt.Sprint(at)) {
						continue
					}
					break
				}
				w.restartWith()
				trials++
				effects += w.judge(fmt.Sprintf("%s, killed at %d", mode, point), began, true, modes["talk"], workAfter)
				if w.caught(effects) {
					return trials, effects
				}
				w.reset()
			}
			w.restartWith() // the point that was not reached would be, in the next switch
			w.reset()
		}
	}
	return trials, effects
}

// killedAtAnyMoment kills the executor from outside, at moments that nobody chose.
func (w *hostWorld) killedAtAnyMoment(rounds int) (trials, effects int) {
	w.restartWith()
	trialsMax := rounds * 8
	if w.weak {
		trialsMax = 64 // until one moment was the wrong one
	}
	for i := range trialsMax {
		began := w.began()
		args, g := w.ready("work")
		var calling sync.WaitGroup
		// The host is judged, whatever the call is answered.
		calling.Go(func() { _, _ = w.call(w.operatorExecutor, "switch_mode", args, g) })
		if i%2 == 1 {
			// Every second kill comes in the midst of the switch, however long it took to begin.
			harness.Eventually(w.t, "the switch has begun", func() error {
				if last := w.newest(); last == nil || last.GetOperationId() == began {
					return errors.New("not yet")
				}
				return nil
			})
		}
		time.Sleep(time.Duration(rand.IntN(600)) * time.Millisecond)
		w.h.Process(harness.Executor).Kill()
		calling.Wait()
		w.restartWith()
		trials++
		effects += w.judge(fmt.Sprintf("killed for the %d. time", i+1), began, true, modes["talk"], workAfter)
		if w.caught(effects) {
			return trials, effects
		}
		w.reset()
	}
	return trials, effects
}

// everyStepFails switches to modes whose services run out of memory, crash, hang or lie, each in its own step.
func (w *hostWorld) everyStepFails(rounds int) (trials, effects int) {
	for range rounds {
		for _, mode := range []string{"oom", "crash", "stall"} {
			began := w.began()
			out, err := w.to(mode)
			w.must(err)
			trials++
			if out.GetOutcome() == executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED || out.GetCause() == "" ||
				out.GetFailedService() != mode {
				w.t.Logf("%s: %v", mode, out)
				effects++
			}
			effects += w.judge(mode, began, true, modes["talk"], nil)
			if w.caught(effects) {
				return trials, effects
			}
			w.reset()
		}
		// One that lies about its sleep is stopped, and the switch goes on.
		_, err := w.to("lie")
		w.must(err)
		began := w.began()
		out, err := w.to("work")
		w.must(err)
		trials++
		if out.GetOutcome() != executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED || slices.Contains(w.set(), "liar") {
			w.t.Logf("lie: %v, the host has %v", out, w.set())
			effects++
		}
		effects += w.judge("lie", began, true, nil, workAfter)
		w.reset()
	}
	return trials, effects
}

// twoAgents lets others switch, start and stop, all with genuine grants, while a switch goes on: nothing of it may come between.
func (w *hostWorld) twoAgents(rounds int) (trials, effects int) {
	for range rounds {
		began := w.began()
		args, g := w.ready("work")
		lie, lieGrant := w.ready("lie")
		crash := arguments("crash")
		crashGrant, err := w.grantFor("start_service", crash)
		w.must(err)
		stall := arguments("stall")
		stallGrant, err := w.grantFor("start_service", stall)
		w.must(err)
		before := w.records("crash", "stall", "liar")
		var calling sync.WaitGroup
		// The host is judged, whatever the call is answered.
		calling.Go(func() { _, _ = w.call(w.operatorExecutor, "switch_mode", args, g) })
		harness.Eventually(w.t, "the switch has begun", func() error {
			if last := w.newest(); last == nil || last.GetOperationId() == began || len(last.GetSteps()) == 0 {
				return errors.New("not yet")
			}
			return nil
		})
		var others sync.WaitGroup
		for _, other := range []struct {
			tool string
			args []byte
			g    *callv1.SignedGrant
		}{{"switch_mode", lie, lieGrant}, {"start_service", crash, crashGrant}, {"start_service", stall, stallGrant}} {
			// The records are counted, whatever the call is answered.
			others.Go(func() { _, _ = w.call(w.gatewayExecutor, other.tool, other.args, other.g) })
		}
		others.Wait()
		calling.Wait()
		trials += 3
		effects += w.records("crash", "stall", "liar") - before
		effects += w.judge("two agents", began, true, modes["talk"], workAfter)
		if w.caught(effects) {
			return trials, effects
		}
		w.reset()
	}
	return trials, effects
}

// records counts how often services were started, by themselves.
func (w *hostWorld) records(ids ...string) int {
	w.t.Helper()
	n := 0
	for _, id := range ids {
		b, err := os.ReadFile(w.h.Path("starts-" + id))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			w.t.Fatal(err)
		}
		n += strings.Count(string(b), "started ")
	}
	return n
}

// strangerTakesMemory is a program of nobody's that takes what is free at every moment of a switch.
func (w *hostWorld) strangerTakesMemory(rounds int) (trials, effects int) {
	for range rounds {
		for _, after := range []time.Duration{0, 150 * time.Millisecond, 300 * time.Millisecond} {
			began := w.began()
			args, g := w.ready("work")
			var calling sync.WaitGroup
			// The host is judged, whatever the call is answered.
			calling.Go(func() { _, _ = w.call(w.operatorExecutor, "switch_mode", args, g) })
			time.Sleep(after)
			stop := w.grab()
			calling.Wait()
			trials++
			effects += w.judge(fmt.Sprintf("a stranger after %s", after), began, w.weak, modes["talk"], workAfter)
			stop()
			if w.caught(effects) {
				return trials, effects
			}
			w.reset()
		}
	}
	return trials, effects
}

// grab starts the stranger's program on the first GPU, as soon as there is anything to take, and returns how to end it.
func (w *hostWorld) grab() (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	var waiting sync.WaitGroup
	waiting.Go(func() {
		for ctx.Err() == nil {
			gpus, err := w.gpus.Read()
			if err != nil || gpus[0].Free() < 10000 {
				time.Sleep(5 * time.Millisecond)
				continue
			}
			stranger := exec.CommandContext(ctx, filepath.Join(w.h.Bin, harness.Engine), "grab",
				"-fake-gpu", w.gpus.Dir, "-mib", fmt.Sprint(gpus[0].Free()))
			_ = stranger.Run() // it ends with the context, or at once where a service was first
		}
	})
	return func() {
		cancel()
		waiting.Wait()
	}
}

// editedAfterApproval changes the catalog between the approval and the start, and while the switch goes on: nothing of what was
// written then may run.
func (w *hostWorld) editedAfterApproval(rounds int) (trials, effects int) {
	evil := w.h.Path("starts-evil")
	count := func() int {
		b, err := os.ReadFile(evil)
		if err != nil {
			return 0
		}
		return strings.Count(string(b), "started ")
	}
	write := func(edit func(string) string) {
		w.edit = edit
		w.h.WriteFile("config/catalogue.yaml", w.catalog(w.h))
	}
	poison := func(text string) string { return strings.ReplaceAll(text, w.h.Path("starts-docs"), evil) }
	for range rounds {
		for _, late := range []bool{false, true} {
			began := w.began()
			args, g := w.ready("work")
			var calling sync.WaitGroup
			if late {
				// The host is judged, whatever the call is answered.
				calling.Go(func() { _, _ = w.call(w.gatewayExecutor, "switch_mode", args, g) })
				time.Sleep(50 * time.Millisecond)
				write(poison)
				calling.Wait()
			} else {
				write(poison)
				// The executor looks every second.
				harness.Eventually(w.t, "the edit is in force", func() error {
					plan, err := w.simulate("work")
					if err != nil || plan.GetPlanDigest() == "" || strings.Contains(string(args), plan.GetPlanDigest()) {
						return errors.New("not yet")
					}
					return nil
				})
				// The host is judged, whatever the call is answered.
				_, _ = w.call(w.gatewayExecutor, "switch_mode", args, g)
			}
			trials++
			effects += count()
			effects += w.judge(fmt.Sprintf("an edit, late %v", late), began, true, modes["talk"], workAfter)
			write(nil)
			if w.caught(effects) {
				return trials, effects
			}
			harness.Eventually(w.t, "the edit is taken back", func() error {
				w.reset()
				plan, err := w.simulate("work")
				if err != nil || !strings.Contains(string(args), plan.GetPlanDigest()) {
					return errors.New("not yet")
				}
				return nil
			})
		}
	}
	return trials, effects
}

// hostileGateway has the gateway's certificate and one genuine grant, which was used, and tries to switch with it: for another mode,
// another plan, without any, and again.
func (w *hostWorld) hostileGateway(rounds int) (trials, effects int) {
	for range rounds {
		args, g := w.ready("work")
		started, err := w.grantFor("start_service", arguments("docs"))
		w.must(err)
		if _, err := w.call(w.gatewayExecutor, "switch_mode", args, g); err != nil {
			w.t.Fatal(err)
		}
		w.reset()
		began := w.began()
		plan, err := w.simulate("work")
		w.must(err)
		lie, err := w.simulate("lie")
		w.must(err)
		for _, attempt := range []struct {
			args []byte
			g    *callv1.SignedGrant
		}{
			{args, nil}, {args, g}, {args, started},
			{modeArguments("lie", lie.GetPlanDigest()), nil},
			{modeArguments("lie", lie.GetPlanDigest()), g},
			{modeArguments("lie", plan.GetPlanDigest()), g},
			{modeArguments("work", strings.Repeat("0", 64)), g},
			{modeArguments("work", strings.Repeat("0", 64)), nil},
		} {
			// The host is judged, whatever the call is answered.
			_, _ = w.call(w.gatewayExecutor, "switch_mode", attempt.args, attempt.g)
			trials++
			if !slices.Equal(w.set(), modes["talk"]) || w.began() != began {
				effects++
				w.t.Logf("%s had an effect: %v", attempt.args, w.set())
				if w.weak {
					return trials, effects
				}
				w.reset()
				began = w.began()
			}
		}
	}
	return trials, effects
}
