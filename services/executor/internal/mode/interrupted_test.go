package mode

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/fault"
)

// interruptedAt kills the executor in a switch to work, at an act, and starts the next one.
func interruptedAt(t *testing.T, act string, running ...string) *world {
	t.Helper()
	w := newWorld(t, running...)
	w.host.crash = func(name string, late bool) bool { return name == act && late }
	// The executor is killed in it: nobody gets its answer.
	if !survives(func() { _, _ = w.to("work") }) {
		t.Fatal("nobody was killed")
	}
	w.host.crash = nil
	w.restart()
	return w
}

func (w *world) last() *Record {
	w.t.Helper()
	known, err := w.History(context.Background(), 1)
	if err != nil || len(known) == 0 {
		w.t.Fatalf("no switch is known: %v", err)
	}
	return known[0]
}

// A disk that is full from some write on: what a restart would undo was never called committed, and until the ending is on disk
// nobody changes anything.
func TestWhatIsNotDurableIsNotCommitted(t *testing.T) {
	for _, trip := range trips {
		clean := newWorld(t, trip.running...)
		clean.must(trip.to)
		for n := 2; n <= clean.journal.writes; n++ {
			w := newWorld(t, trip.running...)
			before := w.host.set()
			w.journal.reset(0, 0, n)
			w.journal.full = true
			out := w.must(trip.to)
			if out.Outcome == committed {
				t.Errorf("%s, full from write %d: committed", trip.name, n)
			}
			if _, err := w.leases.Host(); err == nil {
				t.Errorf("%s, full from write %d: a service can be stopped", trip.name, n)
			}
			w.journal.mu.Lock()
			w.journal.full, w.journal.failAt = false, 0
			w.journal.mu.Unlock()
			if n%2 == 0 {
				w.owing.Wait() // the disk has room again
				if release, err := w.leases.Host(); err != nil {
					t.Errorf("%s: the host is still held: %v", trip.name, err)
				} else {
					release()
				}
			} else {
				w.restart()
				must(t, w.Recover(t.Context()))
			}
			w.sound(trip.name, before, trip.after)
		}
	}
}

// A write that fails and is on disk all the same leaves nothing open.
func TestATornWriteBlocksNothing(t *testing.T) {
	clean := newWorld(t, "chat", "legacy")
	clean.must("work")
	for n := 1; n <= clean.journal.writes; n++ {
		w := newWorld(t, "chat", "legacy")
		before := w.host.set()
		w.journal.reset(0, 0, n)
		w.journal.torn = true
		_, _ = w.to("work") // The torn write fails it or not, by where it is: what is left of it is checked.
		w.owing.Wait()
		w.sound("torn", before, []string{"chat:asleep", "code", "embed", "tools"})
		if out, err := w.to("talk"); err != nil || out.Outcome != committed {
			t.Errorf("write %d: the next switch: %+v, %v", n, out, err)
		}
	}
}

// A defect of the executor outside of a step ends the switch too, and the next one is carried out.
func TestAPanicBetweenStepsIsReported(t *testing.T) {
	w := newWorld(t, "chat", "legacy")
	plan, err := w.Simulate(t.Context(), Request{Mode: "work"})
	must(t, err)
	consent, steps := w.consent(), 0
	catalog := w.cfg.Catalog
	consent.Later = func(_ context.Context, begin func()) error {
		if steps++; steps == 2 {
			w.cfg.Catalog = nil // whatever is asked for next panics
		}
		begin()
		return nil
	}
	out, err := w.Switch(t.Context(), "work", plan.Digest, nil, consent)
	w.cfg.Catalog = catalog
	if err != nil || out.Outcome != needsAHuman || out.Cause != CausePanic || out.FailedService != "legacy" {
		t.Fatalf("it is %+v, %v", out, err)
	}
	if out, err := w.to("talk"); err != nil || out.Outcome != committed {
		t.Errorf("the next: %+v, %v", out, err)
	}
}

// Each step of a recovery is in the log before it begins, with how it went after.
func TestARecoveryIsRecorded(t *testing.T) {
	w := interruptedAt(t, "raise code", "chat", "legacy")
	acts := len(w.did())
	must(t, w.Recover(t.Context()))
	if w.last().Outcome != rolledBack || len(w.did()) == acts {
		t.Fatalf("it is %+v after %v", w.last(), w.did())
	}
	names := map[string]string{"raise": "start", "lower": "stop", "sleep": "sleep"}
	for _, act := range w.did()[acts:] {
		verb, id, _ := strings.Cut(act, " ")
		record := names[verb] + ": an interrupted switch is undone " + id + " <nil>"
		if i := slices.Index(w.rules, record); i < 0 || !slices.Contains(w.rules[i:], "after "+record) {
			t.Errorf("%s is not recorded: %v", act, w.rules)
		}
	}
}

// What cannot be recorded is not done, and a human is asked.
func TestARecoveryWaitsForTheLog(t *testing.T) {
	for _, comes := range []bool{true, false} {
		w := interruptedAt(t, "raise code", "chat", "legacy")
		w.silence = errors.New("audit is down")
		if comes {
			w.unseenPatience = time.Minute
			time.AfterFunc(5*time.Millisecond, func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.silence = nil
			})
		}
		acts := len(w.did())
		must(t, w.Recover(t.Context()))
		switch last := w.last(); {
		case comes && last.Outcome != rolledBack:
			t.Errorf("it is %+v", last)
		case !comes && (last.Outcome != needsAHuman || last.Cause != CauseUnrecorded || len(w.did()) != acts):
			t.Errorf("it is %+v after %v", last, w.did())
		}
	}
}

// After a restart of the host a recovery starts nothing: what runs then is the boot rule's matter, or a human's.
func TestARecoveryAfterARebootStartsNothing(t *testing.T) {
	for _, rule := range []string{"none", "last"} {
		w := newWorld(t, "chat", "legacy")
		w.host.c = parse(t, catalogText+"boot: "+rule+"\n")
		w.must("old")
		w.host.crash = func(name string, late bool) bool { return name == "raise code" && late }
		// The executor is killed in it: nobody gets its answer.
		if !survives(func() { _, _ = w.to("work") }) {
			t.Fatal("nobody was killed")
		}
		w.host.crash = nil
		w.host.bendAll()
		w.boot = "boot-2"
		w.restart()
		acts := len(w.did())
		must(t, w.Recover(t.Context()))
		if last := w.last(); last.Outcome != needsAHuman || last.Cause != CauseRebooted || len(w.did()) != acts || len(w.rules) != 0 {
			t.Errorf("%s: it is %+v after %v", rule, last, w.did())
		}
		must(t, w.Boot(t.Context()))
		want := map[string][]string{"none": nil, "last": {"chat", "legacy"}}[rule]
		if got := w.host.set(); !slices.Equal(got, want) {
			t.Errorf("%s: then %v runs, want %v", rule, got, want)
		}
	}
}

// A manager that answers late is waited for.
func TestARecoveryWaitsForManagers(t *testing.T) {
	w := interruptedAt(t, "raise code", "chat", "legacy")
	w.unseenPatience = time.Minute
	w.host.state["code"] = executorv1.ServiceState_SERVICE_STATE_UNKNOWN
	time.AfterFunc(5*time.Millisecond, func() {
		w.host.mu.Lock()
		defer w.host.mu.Unlock()
		w.host.state["code"] = executorv1.ServiceState_SERVICE_STATE_RUNNING
	})
	before := []string{"chat", "legacy"}
	if err := w.Recover(t.Context()); err != nil || w.last().Outcome != rolledBack || !slices.Equal(w.host.set(), before) {
		t.Errorf("%v, %+v, %v", err, w.last(), w.host.set())
	}
}

// While an interrupted switch is undone nothing else is changed, and its call is told later.
func TestAnInterruptedSwitchHoldsTheHost(t *testing.T) {
	w := interruptedAt(t, "raise code", "chat", "legacy")
	found, err := w.Interrupted(t.Context())
	if err != nil || found == nil || found.Operation != w.consent().Operation || !w.Undoing() {
		t.Fatalf("found %+v, %v", found, err)
	}
	if _, err := w.to("talk"); !fault.Is(err, callv1.Code_CODE_CONFLICT) || !strings.Contains(err.Error(), "is being undone") {
		t.Errorf("a switch meanwhile: %v", err)
	}
	if _, err := w.leases.Host(); err == nil {
		t.Error("a service can be stopped meanwhile")
	}
	if err := w.Accept(nil); err == nil {
		t.Error("the catalogue can be changed meanwhile")
	}
	if told, ok := w.Found(t.Context(), "switch_mode", found.Operation); !ok || told != "" {
		t.Errorf("its call is told %q", told)
	}
	if !found.Undo(t.Context()) || w.Undoing() || w.Accept(nil) != nil {
		t.Error("it did not end")
	}
}

// A process that ends begins no step, neither forward nor back; the next one undoes what is left.
func TestAStoppedExecutorLeavesTheSwitchOpen(t *testing.T) {
	for _, trip := range trips {
		clean := newWorld(t, trip.running...)
		clean.must(trip.to)
		for i, act := range clean.did() {
			w := newWorld(t, trip.running...)
			before := w.host.set()
			w.host.on = func(name string) {
				if name == act {
					w.Stop()
				}
			}
			out := w.must(trip.to)
			if out.Outcome != needsAHuman || out.Cause != CauseInterrupted || len(w.did()) != i {
				t.Errorf("%s, stopped at %s: %+v after %v", trip.name, act, out, w.did())
			}
			if _, err := w.to(trip.to); !fault.Is(err, callv1.Code_CODE_CONFLICT) {
				t.Errorf("another switch: %v", err)
			}
			w.host.on = nil
			w.restart()
			if err := w.Recover(t.Context()); err != nil || w.last().Outcome != rolledBack {
				t.Errorf("%s, stopped at %s: %v, %+v", trip.name, act, err, w.last())
			}
			w.sound(trip.name+", "+act, before, trip.after)
		}
	}
}

// A recovery is stopped like a switch.
func TestAStoppedRecoveryGoesOnLater(t *testing.T) {
	w := interruptedAt(t, "raise code", "chat", "legacy")
	w.host.on = func(string) { w.Stop() }
	acts := len(w.did())
	found, err := w.Interrupted(t.Context())
	if err != nil || found.Undo(t.Context()) || len(w.did()) != acts {
		t.Fatalf("it ended: %v, %v", err, w.did())
	}
	w.host.on = nil
	w.restart()
	if err := w.Recover(t.Context()); err != nil || w.last().Outcome != rolledBack {
		t.Errorf("%v, %+v", err, w.last())
	}
}

// The boot rule waits for audit and managers, and is marked as followed only then.
func TestTheBootRuleWaits(t *testing.T) {
	for name, bend := range map[string]func(*world) func(){
		"audit": func(w *world) func() {
			w.silence = errors.New("audit is down")
			return func() { w.silence = nil }
		},
		"a manager": func(w *world) func() {
			w.host.state["code"] = executorv1.ServiceState_SERVICE_STATE_UNKNOWN
			return func() { w.host.state["code"] = executorv1.ServiceState_SERVICE_STATE_STOPPED }
		},
		"a GPU": func(w *world) func() {
			w.host.lost[0] = true
			return func() { w.host.lost[0] = false }
		},
	} {
		w := newWorld(t)
		w.host.c = parse(t, catalogText+"boot: work\n")
		comes := bend(w)
		w.bootPatience = time.Minute
		time.AfterFunc(5*time.Millisecond, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.host.mu.Lock()
			defer w.host.mu.Unlock()
			comes()
		})
		if err := w.Boot(t.Context()); err != nil || !slices.Equal(w.host.set(), []string{"code", "embed", "tools"}) || w.Current() != "work" {
			t.Errorf("%s: %v, %v runs", name, err, w.host.set())
		}
		// One that ends before it is done goes on at its next start.
		w = newWorld(t)
		w.host.c = parse(t, catalogText+"boot: work\n")
		comes = bend(w)
		w.bootPatience = time.Minute
		time.AfterFunc(5*time.Millisecond, w.Stop)
		if err := w.Boot(t.Context()); err != nil {
			t.Error(err)
		}
		comes()
		w.restart()
		if err := w.Boot(t.Context()); err != nil || !slices.Equal(w.host.set(), []string{"code", "embed", "tools"}) {
			t.Errorf("%s, at the next start: %v, %v runs", name, err, w.host.set())
		}
	}
}

// A start is bound to what was approved, also where that changes while room is waited for.
func TestAStartIsBoundToItsDefinition(t *testing.T) {
	w := newWorld(t, "chat", "legacy")
	w.must("work")
	for _, id := range []string{"embed", "code", "tools"} {
		if w.host.given[id] != "sha256:"+id {
			t.Errorf("%s was started as %q", id, w.host.given[id])
		}
	}
	w = newWorld(t, "chat", "legacy")
	before := w.host.set()
	w.host.on = func(name string) {
		if name == "raise code" { // after the switcher's own look
			w.host.mu.Lock()
			w.host.edits["code"] = " of somebody else"
			w.host.mu.Unlock()
		}
	}
	if out := w.must("work"); out.Outcome != rolledBack || out.FailedService != "code" || !strings.Contains(out.Cause, "changed since") {
		t.Errorf("it is %+v", out)
	}
	w.sound("edited", before, nil)
	if w.host.given["chat"] != "sha256:chat" {
		t.Errorf("chat was brought back as %q", w.host.given["chat"])
	}
}

// A wall clock that was set back keeps no service for longer than it may stay.
func TestResidenceGoesByNoWallClock(t *testing.T) {
	w := newWorld(t, "legacy")
	w.host.c = parse(t, strings.Replace(catalogText, "vram_mib: 6000}", "vram_mib: 6000, min_residence_s: 60}", 1))
	now := time.Now()
	w.planner.Now = func() time.Time { return now }
	w.host.since["legacy"] = now.Add(24 * time.Hour)
	if _, err := w.to("talk"); !fault.Is(err, callv1.Code_CODE_CONFLICT) {
		t.Errorf("at once: %v", err)
	}
	now = now.Add(61 * time.Second)
	if out, err := w.to("talk"); err != nil || out.Outcome != committed {
		t.Errorf("a minute later: %+v, %v", out, err)
	}
}

// A service whose wake failed may be half awake though it looks asleep: undoing makes sure that it sleeps.
func TestAWakeThatFailedIsPutBackToSleep(t *testing.T) {
	w := newWorld(t, "chat:asleep", "code", "embed", "tools")
	before := w.host.set()
	w.host.fails["wake chat"] = "before"
	if out := w.must("talk"); out.Outcome != rolledBack || !slices.Contains(w.did(), "sleep chat") {
		t.Errorf("it is %+v after %v", out, w.did())
	}
	w.sound("wake", before, nil)
}

// Undoing brings back first what a sleeper depends on, and after the sleepers what else there was.
func TestASleeperComesBackAfterWhatItDependsOn(t *testing.T) {
	w := newWorld(t, "chat:asleep", "embed", "legacy")
	w.host.c = parse(t, strings.NewReplacer("id: chat, ", "id: chat, depends_on: [legacy], ", "[chat, legacy]", "[legacy, chat]", "[chat, ", "[legacy, chat, ").Replace(catalogText))
	before := w.host.set()
	w.host.fails["raise big"] = "before"
	w.host.on = func(act string) {
		w.host.mu.Lock()
		defer w.host.mu.Unlock()
		if act == "raise chat" && w.host.state["legacy"] != executorv1.ServiceState_SERVICE_STATE_RUNNING {
			w.host.fails[act] = "before"
		}
	}
	out := w.must("huge")
	did, want := w.did(), []string{"raise legacy", "raise chat", "sleep chat", "raise embed"}
	if out.Outcome != rolledBack || !slices.Equal(did[max(len(did)-len(want), 0):], want) {
		t.Errorf("it is %+v after %v", out, did)
	}
	w.sound("a sleeper that depends on another", before, nil)
}
