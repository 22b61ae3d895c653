package drill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
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
			w.until("the switch has begun", func() bool {
				last := w.newest()
				return last != nil && last.GetOperationId() != began
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
	if w.weak {
		rounds += 2 // a control whose others come when the switch is over shows nothing, and is tried again
	}
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
		w.until("the switch has begun", func() bool {
			last := w.newest()
			return last != nil && last.GetOperationId() != began && len(last.GetSteps()) != 0
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
		// What starts once the switch is over may start: on a busy machine the others may come that late.
		calling.Wait()
		trials += 3
		effects += w.records("crash", "stall", "liar") - before
		others.Wait()
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
