package mode

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
)

func switchOf(i int) *store.Switch {
	return &store.Switch{Operation: fmt.Sprint(i), Mode: "talk", Work: []byte("{}"), BeganAt: time.Unix(int64(i), 0)}
}

func endSwitch(t *testing.T, s *store.Store, id int64, action executorv1.PlanAction, service string, took time.Duration) {
	t.Helper()
	step := &store.Step{Number: 1, Action: action, Service: service}
	must(t, s.NoteSteps(t.Context(), id, nil, step))
	step.Ended, step.Done, step.Took = true, true, took
	must(t, s.EndSwitch(t.Context(), id, step, time.Unix(10, 0), &store.Ending{Outcome: committed, Current: "talk"}))
}

// D4: what ran was stopped first, and where a start failed the host was left so.
func TestGpumodD4AFailedSwitchIsUndone(t *testing.T) {
	w := newWorld(t, "chat", "legacy")
	w.must("old") // the host is in a mode
	w.host.fails["raise code"], w.host.says["code"] = "gone", 30
	out := w.must("work")
	want := &Result{
		Mode: "work", Outcome: rolledBack, FailedService: "code", Cause: driver.CauseOutOfVRAM, Changed: true,
		Done: []Step{{Action: actionSleep, Service: "chat"}, {Action: actionStop, Service: "legacy"}, {Action: actionStart, Service: "embed"},
			{Action: actionStop, Service: "embed"}, {Action: actionStart, Service: "legacy"}, {Action: actionStart, Service: "chat"}},
	}
	log := out.Log
	out.Log = nil
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	if len(log) != 20 || log[19] != "code says 29" {
		t.Errorf("its log is %q", log)
	}
	if diff := cmp.Diff([]string{"chat", "legacy"}, w.host.set()); diff != "" || w.Current() != "old" {
		t.Errorf("the host has (-want +got), in mode %q:\n%s", w.Current(), diff)
	}
	known, err := w.History(t.Context(), 1)
	if err != nil || known[0].FailedService != "code" || len(known[0].Log) != 20 || known[0].From != "old" || len(known[0].Steps) != 7 {
		t.Errorf("history: %+v, %v", known[0], err)
	}
}

// Of a service that fails to start, the lines that it wrote are kept, and none of an earlier run.
func TestLogOfAFailedStartIsOfThatStart(t *testing.T) {
	for says, want := range map[int][]string{0: {}, 2: {"code says 0", "code says 1"}} {
		w := newWorld(t, "chat", "legacy")
		w.host.fails["raise code"], w.host.says["code"] = "gone", says
		if diff := cmp.Diff(want, w.must("work").Log); diff != "" {
			t.Errorf("log of a start that wrote %d lines (-want +got):\n%s", says, diff)
		}
	}
}

// D5: two switches went through each other.
func TestGpumodD5OneSwitchAtATime(t *testing.T) {
	w := newWorld(t, "chat", "legacy")
	entered, leave := make(chan struct{}), make(chan struct{})
	w.host.on = func(name string) {
		if name == "raise embed" {
			close(entered)
			<-leave
		}
	}
	plan, err := w.Simulate(t.Context(), Request{Mode: "huge"})
	must(t, err)
	var first sync.WaitGroup
	first.Go(func() {
		if out := w.must("work"); out.Outcome != committed {
			t.Errorf("result is %+v", out)
		}
	})
	<-entered
	before := len(w.did())
	_, err = w.Switch(t.Context(), "huge", plan.Digest, nil, w.consent())
	wantFault(t, err, callv1.Code_CODE_CONFLICT, "another switch of modes is going on; nothing was done")
	chat, _ := w.host.c.Lookup("chat")
	if _, err := w.leases.Loading(chat); err == nil {
		t.Error("a service could be started in the middle")
	}
	if _, err := w.leases.Releasing(chat, false); err == nil {
		t.Error("a service could be stopped in the middle")
	}
	if err := w.Accept(nil); err == nil {
		t.Error("the catalogue could change in the middle")
	}
	if len(w.did()) != before {
		t.Errorf("it did %v", w.did())
	}
	close(leave)
	first.Wait()
	if err := w.Accept(nil); err != nil {
		t.Error(err)
	}
	// A plan from before that switch is none any more.
	_, err = w.Switch(t.Context(), "huge", plan.Digest, nil, w.consent())
	wantFault(t, err, callv1.Code_CODE_PLAN_CHANGED, "nothing was done")
	// And a single start holds a switch up.
	release, err := w.leases.Loading(chat)
	must(t, err)
	_, err = w.to("huge")
	wantFault(t, err, callv1.Code_CODE_CONFLICT, "a service is being started or stopped; nothing was done")
	release()
	if out := w.must("huge"); out.Outcome != committed {
		t.Errorf("result is %+v", out)
	}
}

// D6: a member of the current mode that had died was not started by selecting the mode again.
func TestGpumodD6SelectingTheModeAgainRepairsIt(t *testing.T) {
	w := newWorld(t)
	w.must("talk")
	w.host.mu.Lock()
	w.host.state["embed"], w.host.cause["embed"] = executorv1.ServiceState_SERVICE_STATE_FAILED, driver.CauseExited
	w.host.mu.Unlock()
	if diff := cmp.Diff([]string{"embed"}, w.Drifted()); diff != "" || w.Current() != "talk" {
		t.Errorf("drifted (-want +got), in %q:\n%s", w.Current(), diff)
	}
	if diff := cmp.Diff([]string{"start embed"}, w.planned("talk")); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	if out := w.must("talk"); out.Outcome != committed || len(w.Drifted()) != 0 {
		t.Errorf("result is %+v, drifted %v", out, w.Drifted())
	}
}

// An engine that says that it sleeps and keeps its memory is stopped.
func TestALyingSleeperIsStopped(t *testing.T) {
	w := newWorld(t, "chat")
	w.host.lies["chat"] = true
	out := w.must("work")
	if out.Outcome != committed || !slices.Equal(w.host.set(), []string{"code", "embed", "tools"}) {
		t.Errorf("result is %+v, the host has %v", out, w.host.set())
	}
	if out.Done[0] != (Step{Action: actionStop, Service: "chat"}) {
		t.Errorf("done: %v", out.Done)
	}
}

// Memory that is held for a while after its holder's end is waited for; memory that stays held ends the switch.
func TestMemoryIsSeenToBeFree(t *testing.T) {
	w := newWorld(t, "legacy", "chat")
	w.host.lag, w.patience = 15*time.Millisecond, time.Second
	if out := w.must("huge"); out.Outcome != committed {
		t.Errorf("result is %+v", out)
	}
	w = newWorld(t, "legacy", "chat")
	w.host.lag = time.Hour
	out := w.must("huge")
	if out.FailedService != "big" || out.Cause != driver.CauseStillHeld || out.Outcome == committed {
		t.Errorf("result is %+v", out)
	}
	w.sound("held", []string{"chat", "legacy"}, []string{"big"})
}

// A stranger that takes the memory in the middle: the old set comes back, or is said to be missing.
func TestAStrangerComesInTheMiddle(t *testing.T) {
	for _, act := range []string{"sleep chat", "lower legacy", "raise embed", "raise code", "raise tools"} {
		w := newWorld(t, "chat", "legacy")
		w.host.on = func(name string) {
			if name == act {
				w.host.mu.Lock()
				w.host.foreign[0] = total - reserved - h0(w.host)
				w.host.mu.Unlock()
			}
		}
		out := w.must("work")
		w.sound(act, []string{"chat", "legacy"}, []string{"chat:asleep", "code", "embed", "tools"})
		if act == "raise embed" && (out.Outcome != degraded || out.Cause != CauseForeign || !slices.Equal(out.NotRunning, []string{"chat"})) {
			t.Errorf("%s: %+v", act, out)
		}
	}
}

// h0 is what is used of the first GPU. The host is locked.
func h0(h *host) uint32 { return h.device(0).Used }

// What was approved is what is started: an edit in the middle ends the switch, and nothing that was edited is started.
func TestAnEditInTheMiddle(t *testing.T) {
	for _, id := range []string{"embed", "code", "tools", "legacy"} {
		w := newWorld(t, "chat", "legacy")
		w.host.on = func(name string) {
			if name == "lower legacy" {
				w.host.mu.Lock()
				w.host.edits[id] = "edited"
				w.host.mu.Unlock()
			}
		}
		out := w.must("work")
		w.sound(id, []string{"chat", "legacy"}, []string{"chat:asleep", "code", "embed", "tools"})
		if slices.Contains(w.did(), "raise "+id) {
			t.Errorf("%s was started: %+v, %v", id, out, w.did())
		}
		if id != "legacy" && (out.Outcome != rolledBack || out.Cause != CauseChanged || out.FailedService != id) {
			t.Errorf("%s: %+v", id, out)
		}
	}
	// One that cannot be brought back as it was is missing, and named.
	w := newWorld(t, "chat", "legacy")
	w.host.edits["legacy"] = "unreadable"
	w.host.fails["raise embed"] = "before"
	out := w.must("work")
	if out.Outcome != degraded || !slices.Equal(out.NotRunning, []string{"legacy"}) {
		t.Errorf("result is %+v", out)
	}
}

// A mode that does not fit when the approval comes is refused, and nothing is done.
func TestAdmissionIsAtTheMoment(t *testing.T) {
	w := newWorld(t, "legacy")
	plan, err := w.Simulate(t.Context(), Request{Mode: "talk"})
	must(t, err)
	w.host.foreign[0] = 9000
	_, err = w.Switch(t.Context(), "talk", plan.Digest, nil, w.consent())
	wantFault(t, err, callv1.Code_CODE_DOES_NOT_FIT, "programs that are no service of this host hold 9000 MiB")
	if len(w.did()) != 0 {
		t.Errorf("it did %v", w.did())
	}
}

// A consent that is refused leaves nothing behind, in the journal neither.
func TestARefusedConsent(t *testing.T) {
	w := newWorld(t, "legacy")
	plan, err := w.Simulate(t.Context(), Request{Mode: "talk"})
	must(t, err)
	no := fault.New(callv1.Code_CODE_EXPIRED, "over")
	_, err = w.Switch(t.Context(), "talk", plan.Digest, nil, Consent{First: func(context.Context, func()) error { return no }, Operation: "o"})
	if !fault.Is(err, callv1.Code_CODE_EXPIRED) || len(w.did()) != 0 {
		t.Errorf("it is %v, after %v", err, w.did())
	}
	w.sound("refused", []string{"legacy"}, nil)
	if out := w.must("talk"); out.Outcome != committed {
		t.Errorf("afterwards: %+v", out)
	}
}

// A member that dies while the others are started ends the switch.
func TestAMemberDiesInTheMiddle(t *testing.T) {
	w := newWorld(t, "legacy")
	w.host.on = func(name string) {
		if name == "raise tools" {
			w.host.mu.Lock()
			w.host.state["embed"], w.host.cause["embed"] = executorv1.ServiceState_SERVICE_STATE_FAILED, driver.CauseOutOfMemory
			w.host.mu.Unlock()
		}
	}
	out := w.must("work")
	if out.Outcome != rolledBack || out.FailedService != "embed" || out.Cause != driver.CauseOutOfMemory {
		t.Errorf("result is %+v", out)
	}
	w.sound("dead", []string{"legacy"}, nil)
}

func TestProgressIsTold(t *testing.T) {
	w := newWorld(t, "chat")
	w.host.fails["raise tools"] = "before"
	out := w.must("work")
	if out.Outcome != rolledBack {
		t.Fatalf("result is %+v", out)
	}
	var told []string
	seen := map[int]bool{}
	if err := w.hub.Watch(t.Context(), w.consent().Operation, func(s progress.Step) error {
		seen[s.Number] = true
		told = append(told, fmt.Sprintf("%d/%d %s %s %v %s", s.Number, s.Of, s.Phase, s.Service, s.Ended, s.Cause))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"1/5 ready chat true ", "2/5 verify  true ", "3/5 ready embed true ", "4/5 ready code true ", "5/5 ready tools true ",
		"6/8 stop code true ", "7/8 stop embed true ", "8/8 compensate chat true ",
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

func TestWhatACallIsToldAfterACrash(t *testing.T) {
	w := newWorld(t, "chat", "legacy")
	plan, err := w.Simulate(t.Context(), Request{Mode: "work"})
	must(t, err)
	operation := w.consent().Operation
	if found, ok := w.Found(t.Context(), "switch_mode", operation); !ok || found != "as it was: nothing of the switch had begun" {
		t.Errorf("found %q, %v", found, ok)
	}
	if _, ok := w.Found(t.Context(), "start_service", operation); ok {
		t.Error("it answers for other tools")
	}
	w.host.crash = func(name string, late bool) bool { return name == "raise code" && late }
	// The executor is killed in it: nobody gets its answer.
	if !survives(func() { _, _ = w.Switch(context.Background(), "work", plan.Digest, nil, w.consent()) }) {
		t.Fatal("nobody was killed")
	}
	w.host.crash = nil
	w.restart()
	must(t, w.Recover(t.Context()))
	if found, _ := w.Found(t.Context(), "switch_mode", operation); found != "rolled back: the services from before run again" {
		t.Errorf("found %q", found)
	}
	if err := w.Recover(t.Context()); err != nil {
		t.Errorf("a second recovery: %v", err)
	}
	// Another call with the same plan, before or after, is not this one.
	w.operation = "fedcba9876543210fedcba9876543210"
	w.must("work")
	if found, _ := w.Found(t.Context(), "switch_mode", operation); found != "rolled back: the services from before run again" {
		t.Errorf("found %q", found)
	}
	w.host.bendAll()
	if found, _ := w.Found(t.Context(), "switch_mode", w.operation); found != "committed: the host is in mode work" {
		t.Errorf("found %q", found)
	}
}

func TestBoot(t *testing.T) {
	for name, c := range map[string]struct {
		rule, current string
		running       []string
		bend          func(*world)
		want          []string
		mode          string
	}{
		"no rule":             {"none", "talk", nil, nil, nil, "talk"},
		"nothing before":      {"last", "", nil, nil, nil, ""},
		"the last":            {"last", "old", nil, nil, []string{"chat", "legacy"}, "old"},
		"a mode":              {"work", "old", []string{"embed"}, nil, []string{"code", "embed", "tools"}, "work"},
		"halted":              {"work", "", nil, func(w *world) { w.halt() }, nil, ""},
		"nothing is recorded": {"work", "", nil, func(w *world) { w.silence = context.DeadlineExceeded }, nil, ""},
		"one fails":           {"work", "", nil, func(w *world) { w.host.fails["raise code"] = "before" }, []string{"embed"}, ""},
		"no room":             {"old", "", nil, func(w *world) { w.host.foreign[0] = 9000 }, []string{"legacy"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.running...)
			w.host.c = parse(t, catalogText+"boot: "+c.rule+"\n")
			must(t, w.store.SetCurrentMode(t.Context(), c.current))
			if c.bend != nil {
				c.bend(w)
			}
			must(t, w.Boot(t.Context()))
			if diff := cmp.Diff(c.want, w.host.set()); diff != "" || w.Current() != c.mode {
				t.Errorf("the host has (-want +got), in mode %q:\n%s", w.Current(), diff)
			}
			for _, act := range w.did() {
				id := strings.TrimPrefix(act, "raise ")
				if !slices.Contains(w.rules, RuleBoot+" "+id+" <nil>") {
					t.Errorf("%s was not recorded before: %v", act, w.rules)
				}
			}
			// An executor that starts again in the same boot starts nothing.
			w.host.bendAll()
			w.silence = nil
			w.restart()
			acts := len(w.did())
			if err := w.Boot(t.Context()); err != nil || len(w.did()) != acts {
				t.Errorf("again: %v, %v", err, w.did())
			}
		})
	}
}

// bendAll stops everything, as a host does that is switched off.
func (h *host) bendAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.state {
		h.state[id] = executorv1.ServiceState_SERVICE_STATE_STOPPED
	}
}

// A mode that the catalog has no more is nobody's current one.
func TestCurrentIsOfTheCatalog(t *testing.T) {
	w := newWorld(t)
	must(t, w.store.SetCurrentMode(t.Context(), "gone"))
	if w.Current() != "" || w.Drifted() != nil {
		t.Errorf("current is %q, drifted %v", w.Current(), w.Drifted())
	}
}

var (
	_ Services = (*host)(nil)
	_ Journal  = (*store.Store)(nil)
	_          = catalog.Share
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
