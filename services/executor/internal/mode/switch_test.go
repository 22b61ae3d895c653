package mode

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/plan"
	sampled "durward.internal/services/platform/platformtest/full"
)

const (
	committed   = executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED
	rolledBack  = executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK
	degraded    = executorv1.SwitchOutcome_SWITCH_OUTCOME_DEGRADED
	needsAHuman = executorv1.SwitchOutcome_SWITCH_OUTCOME_NEEDS_A_HUMAN
)

// trip is a switch of the tests: from what runs to a mode, and what runs when it is committed.
type trip struct {
	name    string
	running []string
	to      string
	plan    []string
	after   []string
}

var trips = []trip{
	{"sleep, stop, start", []string{"chat", "legacy", "watch"}, "work", []string{"sleep chat", "stop legacy", "start embed", "start code", "start tools"},
		[]string{"chat:asleep", "code", "embed", "tools", "watch"}},
	{"wake", []string{"chat:asleep", "code", "embed", "tools"}, "talk", []string{"stop tools", "stop code", "wake chat"}, []string{"chat", "embed"}},
	{"both GPUs, no room beside a sleeper", []string{"chat:asleep", "legacy"}, "huge", []string{"stop legacy", "stop chat", "start big"}, []string{"big"}},
	{"one that cannot stay asleep", []string{"chat", "embed"}, "huge", []string{"stop embed", "stop chat", "start big"}, []string{"big"}},
	{"repair", []string{"chat:failed", "embed:unhealthy"}, "talk", []string{"stop embed", "start chat", "start embed"}, []string{"chat", "embed"}},
	{"from nothing", nil, "old", []string{"start chat", "start legacy"}, []string{"chat", "legacy"}},
}

// plan is a simulation's steps in words.
func (w *world) planned(id string) []string {
	w.t.Helper()
	got, err := w.Simulate(context.Background(), Request{Mode: id})
	must(w.t, err)
	var out []string
	for _, st := range got.Steps {
		out = append(out, plan.ActionName(st.Action)+" "+st.Service)
	}
	return out
}

func TestSwitch(t *testing.T) {
	for _, trip := range trips {
		t.Run(trip.name, func(t *testing.T) {
			w := newWorld(t, trip.running...)
			before := w.host.set()
			if diff := cmp.Diff(trip.plan, w.planned(trip.to)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
			out := w.must(trip.to)
			if out.Outcome != committed || !out.Changed || out.Cause != "" {
				t.Errorf("result is %+v", out)
			}
			w.sound("", before, trip.after)
			if w.Current() != trip.to || len(w.Drifted()) != 0 {
				t.Errorf("current is %q, drifted %v", w.Current(), w.Drifted())
			}
			// The same again changes nothing.
			if out := w.must(trip.to); out.Outcome != committed || out.Changed {
				t.Errorf("again: %+v", out)
			}
		})
	}
}

// steps are the acts that each trip's switch does, as the host sees them.
func (w *world) did() []string {
	w.host.mu.Lock()
	defer w.host.mu.Unlock()
	return slices.Clone(w.host.acts)
}

// TestEveryStepFails lets each act of each trip fail in each way, and with it each act of the undoing, or some.
func TestEveryStepFails(t *testing.T) {
	for _, trip := range trips {
		t.Run(trip.name, func(t *testing.T) {
			t.Parallel()
			clean := newWorld(t, trip.running...)
			clean.must(trip.to)
			seen, picked := map[executorv1.SwitchOutcome]int{}, sampled.Picks(t, 5) // four would pick one of the four ways alone
			for _, first := range clean.did() {
				for _, how := range []string{"before", "after", "gone", "unknown", "panic"} {
					w := newWorld(t, trip.running...)
					w.host.fails[first] = how
					before := w.host.set()
					out := w.must(trip.to)
					seen[out.Outcome]++
					w.sound(first+" "+how, before, trip.after)
					undoing := w.did()
					undoing = undoing[slices.Index(undoing, first)+1:]
					for _, second := range undoing {
						for _, then := range []string{"before", "gone", "unknown", "panic"} {
							if !picked() {
								continue
							}
							w := newWorld(t, trip.running...)
							w.host.fails[first], w.host.fails[second] = how, then
							out := w.must(trip.to)
							seen[out.Outcome]++
							w.sound(fmt.Sprintf("%s %s, %s %s", first, how, second, then), before, trip.after)
						}
					}
				}
			}
			t.Logf("%d rolled back, %d degraded, %d need a human, %d committed", seen[rolledBack], seen[degraded], seen[needsAHuman], seen[committed])
			if seen[rolledBack] == 0 {
				t.Error("nothing was ever rolled back")
			}
		})
	}
}

// TestEveryCrash kills the executor before and after each write of the journal and at each act, before and after its effect, and
// then the recovery in the same way.
func TestEveryCrash(t *testing.T) {
	for _, trip := range trips {
		t.Run(trip.name, func(t *testing.T) {
			t.Parallel()
			clean := newWorld(t, trip.running...)
			clean.must(trip.to)
			before, writes := newHost(t, trip.running...).set(), clean.journal.writes
			seen := map[executorv1.SwitchOutcome]int{}
			// switchAndDie begins the switch, is killed, and returns what is there.
			die := func(set func(*world)) *world {
				w := newWorld(t, trip.running...)
				plan, err := w.Simulate(t.Context(), Request{Mode: trip.to})
				must(t, err)
				w.journal.reset(0, 0, 0)
				set(w)
				// The executor is killed in it: nobody gets its answer.
				if !survives(func() { _, _ = w.Switch(context.Background(), trip.to, plan.Digest, nil, w.consent()) }) {
					t.Fatal("nobody was killed")
				}
				w.host.mu.Lock()
				w.host.crash, w.host.busy = nil, 0
				w.host.mu.Unlock()
				w.journal.reset(0, 0, 0)
				w.restart()
				return w
			}
			crashes := map[string]func(*world){}
			for n := 1; n <= writes; n++ {
				crashes[fmt.Sprintf("before write %d", n)] = func(w *world) { w.journal.reset(n, 0, 0) }
				crashes[fmt.Sprintf("after write %d", n)] = func(w *world) { w.journal.reset(0, n, 0) }
			}
			for _, act := range clean.did() {
				for _, after := range []bool{false, true} {
					crashes[fmt.Sprintf("at %s, %v", act, after)] = func(w *world) {
						w.host.crash = func(name string, late bool) bool { return name == act && late == after }
					}
				}
			}
			picked := sampled.Picks(t, 5) // odd, so that of the pairs below both kinds are picked
			for _, name := range keys(crashes) {
				w := die(crashes[name])
				must(t, w.Recover(t.Context()))
				w.sound(name, before, trip.after)
				if known, err := w.History(t.Context(), 1); err == nil && len(known) > 0 {
					seen[known[0].Outcome]++
					if !known[0].Recovered && name != fmt.Sprintf("after write %d", writes) {
						t.Errorf("%s: not marked as recovered", name)
					}
				}
				// And again, with the recovery killed at each of its writes, or at some.
				for n, late := range func(yield func(int, bool) bool) {
					for n := 1; n <= w.journal.writes; n++ {
						if !yield(n, false) || !yield(n, true) {
							return
						}
					}
				} {
					if !picked() {
						continue
					}
					w := die(crashes[name])
					if late {
						w.journal.reset(0, n, 0)
					} else {
						w.journal.reset(n, 0, 0)
					}
					// The executor is killed in it: nobody gets its answer.
					if !survives(func() { _ = w.Recover(context.Background()) }) {
						continue
					}
					w.journal.reset(0, 0, 0)
					w.host.busy = 0
					w.restart()
					must(t, w.Recover(t.Context()))
					w.sound(fmt.Sprintf("%s, then the recovery at write %d, %v", name, n, late), before, trip.after)
				}
			}
			t.Logf("%d crashes: %d rolled back, %d committed, %d degraded, %d need a human", len(crashes), seen[rolledBack], seen[committed],
				seen[degraded], seen[needsAHuman])
			if seen[rolledBack] == 0 || seen[committed] == 0 || seen[needsAHuman]+seen[degraded] > 0 {
				t.Errorf("outcomes are %v", seen)
			}
		})
	}
}

// TestEveryWriteFails lets each write of the journal fail: what cannot be noted is not done, and undone what was.
func TestEveryWriteFails(t *testing.T) {
	for _, trip := range trips {
		clean := newWorld(t, trip.running...)
		clean.must(trip.to)
		for n := 1; n <= clean.journal.writes; n++ {
			w := newWorld(t, trip.running...)
			before := w.host.set()
			w.journal.reset(0, 0, n)
			out, err := w.to(trip.to)
			what := fmt.Sprintf("%s, write %d", trip.name, n)
			switch {
			case n == 1 && err == nil:
				t.Errorf("%s: %+v", what, out)
			case n > 1 && err != nil:
				t.Errorf("%s: %v", what, err)
			}
			// An ending that could not be written is written later.
			w.owing.Wait()
			w.sound(what, before, trip.after)
		}
	}
}

// TestEveryHalt halts the host before each act of each trip: no act follows, and a human is asked for.
func TestEveryHalt(t *testing.T) {
	for _, trip := range trips {
		clean := newWorld(t, trip.running...)
		clean.must(trip.to)
		for i, act := range clean.did() {
			w := newWorld(t, trip.running...)
			w.host.on = func(name string) {
				if name == act {
					w.halt()
				}
			}
			out := w.must(trip.to)
			if out.Outcome != needsAHuman || out.Cause != driver.CauseHalted || len(w.did()) != i {
				t.Errorf("%s, halted at %s: %+v after %v", trip.name, act, out, w.did())
			}
			// It stays so: the next executor does not go on with what a human stopped.
			acts := len(w.did())
			w.restart()
			if err := w.Recover(t.Context()); err != nil || len(w.did()) != acts {
				t.Errorf("%s: after a restart: %v, %v", act, err, w.did())
			}
		}
	}
}

// A halted host is not touched by a recovery either.
func TestARecoveryIsHalted(t *testing.T) {
	w := newWorld(t, "chat", "legacy")
	w.host.crash = func(name string, _ bool) bool { return name == "raise embed" }
	// The executor is killed in it: nobody gets its answer.
	if !survives(func() { _, _ = w.to("work") }) {
		t.Fatal("nobody was killed")
	}
	w.host.crash = nil
	w.halt()
	w.restart()
	acts := len(w.did())
	must(t, w.Recover(t.Context()))
	known, err := w.History(t.Context(), 1)
	if err != nil || known[0].Outcome != needsAHuman || len(w.did()) != acts {
		t.Errorf("it is %+v, %v, after %v", known[0], err, w.did())
	}
	found, ok := w.Found(t.Context(), "switch_mode", known[0].Operation)
	if !ok || !strings.HasPrefix(found, "in need of a human") {
		t.Errorf("found %q, %v", found, ok)
	}
}
