package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/engine"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/procfs"
)

// TestReadinessIsByStall: what shows progress may take its time, up to start_timeout_s; what shows none may not.
func TestReadinessIsByStall(t *testing.T) {
	const start, stall = 600, 20
	// Each sign moves every ten seconds.
	for name, sign := range map[string]func(w *sleeper, n int){
		"none":                  nil,
		"its health answer":     func(w *sleeper, n int) { w.answers.mu.Lock(); w.answers.mark = fmt.Sprint(n); w.answers.mu.Unlock() },
		"its log":               func(w *sleeper, n int) { logs(w, n) },
		"its log, at first":     func(w *sleeper, n int) { logs(w, min(500*(n-1), 500)) },
		"its memory":            func(w *sleeper, n int) { w.bench.hold(uint32(100 * n)) },
		"its memory, and back":  func(w *sleeper, n int) { w.bench.hold(uint32(1000 + n%2*100)) },
		"its processor":         func(w *sleeper, n int) { cpu(w, n*9_000_000) },
		"its processor, a bit":  func(w *sleeper, n int) { cpu(w, n*100_000) },
		"the manager starts it": func(w *sleeper, _ int) { w.program.set(driver.Status{State: driver.Starting}) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				w := newSleeper(t)
				w.host.cgroups = dir
				w.bench.hold(0)
				w.s.StartTimeoutS, w.s.StallTimeoutS = start, stall
				w.program.sightAfter = driver.Status{State: driver.Running, CGroup: "/chat"}
				w.answers.set(errors.New("loading"))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if sign != nil {
					go func() {
						for n := 1; ctx.Err() == nil; n++ {
							sign(w, n)
							select {
							case <-time.After(10 * time.Second):
							case <-ctx.Done():
							}
						}
					}()
				}
				began := time.Now()
				_, err := w.Start(t.Context(), w.s)
				took, cause := time.Since(began), driver.CauseStalled
				switch name {
				case "its health answer", "its log", "its processor", "its memory":
					cause = driver.CauseTimeout
				}
				wantFault(t, err, callv1.Code_CODE_FAILED, "chat did not start: "+cause)
				if cause == driver.CauseStalled && took > 60*time.Second || cause == driver.CauseTimeout && took < start*time.Second {
					t.Errorf("it took %s", took)
				}
				if _, stops := w.program.count(); stops != 1 && name != "the manager starts it" {
					t.Errorf("%d stops", stops)
				}
				if v := w.Status(w.s); v.State != executorv1.ServiceState_SERVICE_STATE_FAILED || v.Cause != cause {
					t.Errorf("then it is %v", v)
				}
			})
		})
	}
}

// TestStartTimeoutBoundsTheManager: one that never gets as far as the program keeps nobody from the GPU beyond start_timeout_s.
func TestStartTimeoutBoundsTheManager(t *testing.T) {
	for name, hangs := range map[string]error{"systemd": driver.ErrNotStarted, "Docker": driver.ErrNoManager} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSleeper(t)
				w.program.hangs = hangs
				began := time.Now()
				_, err := w.Start(t.Context(), w.s)
				wantFault(t, err, callv1.Code_CODE_FAILED, "chat did not start: "+driver.CauseTimeout)
				if took := time.Since(began); took != w.s.StartTimeout() {
					t.Errorf("it took %s", took)
				}
				if state := w.program.Status(w.s).State; state != driver.Stopped {
					t.Errorf("what it left was not stopped: %v", state)
				}
				if v := w.Status(w.s); v.State != executorv1.ServiceState_SERVICE_STATE_FAILED || v.Cause != driver.CauseTimeout {
					t.Errorf("then it is %v", v)
				}
				release, err := w.cfg.Leases.Loading(w.s)
				must(t, err)
				release()
			})
		})
	}
}

// logs is how much the program has logged.
func logs(w *sleeper, lines int) {
	w.program.mu.Lock()
	defer w.program.mu.Unlock()
	w.program.said = lines
}

// cpu writes what the kernel would.
func cpu(w *sleeper, us int) {
	dir := filepath.Join(w.host.cgroups, "chat")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "cpu.stat"), fmt.Appendf(nil, "usage_usec %d\nuser_usec 0\n", us), 0o600)); err != nil {
		panic(err)
	}
}

func TestProcessorTime(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		file := filepath.Join(dir, name)
		must(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)))
	}
	write("v2/chat/cpu.stat", "usage_usec 1500000\n")
	write("v1/cpu,cpuacct/chat/cpuacct.usage", "2500000000\n")
	write("proc/7/stat", "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 1 0 1 1 1")
	write("proc/8/stat", "8 (x) S 1")
	for name, c := range map[string]struct {
		host   host
		status driver.Status
		want   time.Duration
		ok     bool
	}{
		"nothing known":    {host{}, driver.Status{}, 0, false},
		"no such program":  {host{proc: dir + "/proc"}, driver.Status{PID: 9}, 0, false},
		"too short a line": {host{proc: dir + "/proc"}, driver.Status{PID: 8}, 0, false},
		"group, version 2": {host{cgroups: dir + "/v2"}, driver.Status{CGroup: "/chat", PID: 9}, 1500 * time.Millisecond, true},
		"group, version 1": {host{cgroups: dir + "/v1"}, driver.Status{CGroup: "/chat"}, 2500 * time.Millisecond, true},
		"first program":    {host{proc: dir + "/proc", cgroups: dir + "/v2"}, driver.Status{CGroup: "/", PID: 7}, 2 * time.Second, true},
	} {
		if got, ok := c.host.cpu(c.status); got != c.want || ok != c.ok {
			t.Errorf("%s: %s, %t", name, got, ok)
		}
	}
}

func TestEstablished(t *testing.T) {
	const header, rest = "  sl  local_address rem_address   st tx_queue\n", " 0 0 0 0 7\n"
	for line, want := range map[string]bool{
		"   0: 0100007F:1F90 00000000:0000 0A 0": false, // listening
		"   1: 0100007F:D431 0100007F:1F90 01 0": true,  // the other end: Docker forwards in the kernel
		"   1: 0200A8C0:D431 0300A8C0:1F90 01 0": false, // the same port of another host
		"   1: 0100007F:1F90 0100007F:D431 06 0": false, // long gone
		"   1: 0100007F:1F9":                     false,
		"":                                       false,
		"   1: 0100007F:1F90 0100007F:D431 01 0": true,
		"   1: 00000000000000000000000001000000:1F90 00000000000000000000000001000000:D431 01 0": true,
	} {
		if got := established(procfs.ParseSockets([]byte(header+line+rest)), 8080); got != want {
			t.Errorf("%q: %t", line, got)
		}
	}
}

func FuzzEstablished(f *testing.F) {
	f.Add([]byte("   1: 0100007F:1F90 0100007F:D431 01 0 0 0 0 0 7\n"))
	f.Add([]byte(":1F90"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if established(procfs.ParseSockets(text), 8080) && !strings.Contains(string(text), ":1F90") {
			t.Error("found where it is not")
		}
	})
}

func TestWarmUp(t *testing.T) {
	for name, c := range map[string]struct {
		given func(*sleeper)
		cause string
		warms int
	}{
		"no model": {func(w *sleeper) { w.model.warmErr = engine.ErrRefused }, driver.CauseNoModel, 1},
		"never":    {func(w *sleeper) { w.model.warmErr = engine.ErrStatus }, driver.CauseTimeout, 20},
		"it hangs": {func(w *sleeper) { w.model.warmFor = time.Hour }, driver.CauseTimeout, 1},
		"it dies of it": {func(w *sleeper) {
			w.model.warmErr, w.answers.ready = engine.ErrStatus, time.Now().Add(time.Second)
			dies(w)
		}, driver.CauseOutOfVRAM, 3},
		"it is slow":          {func(w *sleeper) { w.model.warmFor = 3 * time.Second }, "", 1},
		"it speaks no OpenAI": {func(w *sleeper) { w.s.OpenAI = false }, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSleeper(t)
				c.given(w)
				changed, err := w.Start(t.Context(), w.s)
				if changed != (c.cause == "") || Cause(err) != c.cause {
					t.Errorf("%v, %v", changed, err)
				}
				if calls := w.model.done(); len(calls) < c.warms || len(calls) > c.warms+1 && c.warms < 2 {
					t.Errorf("its engine was asked %d times: %v", len(calls), calls[:min(len(calls), 5)])
				}
				if _, stops := w.program.count(); (stops == 1) != (c.cause != "" && name != "it dies of it") {
					t.Errorf("%d stops", stops)
				}
			})
		})
	}
}

// dies makes the program end after two seconds.
func dies(w *sleeper) {
	go func() {
		time.Sleep(2 * time.Second) // in a bubble of synctest, which takes no time
		w.program.set(driver.Status{State: driver.Ended, Cause: driver.CauseOutOfVRAM})
	}()
}

// TestARouterIsReadyWithItsModel: it answers with nothing loaded.
func TestARouterIsReadyWithItsModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSleeper(t)
		w.s.Sleep = catalog.SleepLlamaRouter
		if _, err := w.Start(t.Context(), w.s); err != nil {
			t.Error(err)
		}
		if got := strings.Join(w.model.done(), " "); got != "wake - warm" {
			t.Errorf("its engine was asked: %s", got)
		}
		w.model.wakeErr = engine.ErrLoad
		if _, err := w.Stop(t.Context(), w.s); err != nil {
			t.Error(err)
		}
		_, err := w.Start(t.Context(), w.s)
		wantFault(t, err, callv1.Code_CODE_FAILED, "chat did not start: the service answers and does not serve its model")
	})
}

// TestTheCauseIsTheDrivers: what a program's last words tell comes first.
func TestTheCauseIsTheDrivers(t *testing.T) {
	m, s := manager(t, &program{sightAfter: driver.Status{State: driver.Ended, Cause: driver.CauseOutOfVRAM}}, &answers{}, 0)
	_, err := m.Start(t.Context(), s)
	wantFault(t, err, callv1.Code_CODE_FAILED, "chat did not start: the GPU's memory ran out")
	if Cause(err) != driver.CauseOutOfVRAM || Cause(errNo) != "" || Cause(fault.New(callv1.Code_CODE_HALTED, "x")) != driver.CauseHalted {
		t.Errorf("cause is %q", Cause(err))
	}
}

// TestASlowDriverKeepsNoHaltWaiting: what confirms a start does not wait for a driver that takes long, before the program begins or
// while it does, and what begins later than that is asked about again.
func TestASlowDriverKeepsNoHaltWaiting(t *testing.T) {
	for name, c := range map[string]struct {
		before, meanwhile time.Duration
		held, late        time.Duration
	}{
		"quick":            {held: 0},
		"slow to begin":    {before: time.Minute, held: beginPatience},
		"slow in all":      {before: time.Minute, meanwhile: time.Minute, held: beginPatience, late: beginPatience},
		"begins meanwhile": {meanwhile: time.Minute, held: 2 * beginPatience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &program{after: driver.Running, took: c.before, begins: c.meanwhile}
				m, s := manager(t, p, &answers{}, 0)
				var held, late time.Duration
				measured := func(held *time.Duration) Confirm {
					return func(_ context.Context, begin func()) error {
						began := time.Now()
						begin()
						*held = time.Since(began)
						return nil
					}
				}
				m.cfg.Confirm, m.cfg.Late = measured(&held), measured(&late)
				if changed, err := m.Start(t.Context(), s); !changed || err != nil || held != c.held || late != c.late || p.starts != 1 {
					t.Errorf("%v, %v, held for %s and %s, %d starts", changed, err, held, late, p.starts)
				}
			})
		})
	}
}

// TestWhatIsLateBeginsOnlyIfItMay: a driver that was not that far when a human ended what lets the start be begins nothing, and the
// service is as it was.
func TestWhatIsLateBeginsOnlyIfItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{after: driver.Running, took: time.Second}
		m, s := manager(t, p, &answers{}, 0)
		ended := fault.New(callv1.Code_CODE_EXPIRED, "it has ended")
		m.cfg.Late = func(context.Context, func()) error { return ended }
		if changed, err := m.Start(t.Context(), s); changed || !errors.Is(err, ended) || p.starts != 0 {
			t.Errorf("%v, %v, %d starts", changed, err, p.starts)
		}
		if v := m.Status(s); v.State != executorv1.ServiceState_SERVICE_STATE_STOPPED || v.Cause != "" {
			t.Errorf("it is %s, %q", v.State, v.Cause)
		}
		m.cfg.Late = nil
		if changed, err := m.Start(t.Context(), s); !changed || err != nil || p.starts != 1 {
			t.Errorf("then: %v, %v, %d starts", changed, err, p.starts)
		}
	})
}

// TestAStopEndsWhatIsLate: whoever stops a service before its program begins sees it begin no more.
func TestAStopEndsWhatIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{after: driver.Running, took: time.Second}
		m, s := manager(t, p, &answers{}, 0)
		started := make(chan error, 1)
		go func() { _, err := m.Start(t.Context(), s); started <- err }()
		time.Sleep(p.took / 2) // in a bubble of synctest, which takes no time
		if _, err := m.Stop(t.Context(), s); err != nil {
			t.Error(err)
		}
		wantFault(t, <-started, callv1.Code_CODE_FAILED, "chat did not start: it was stopped while it was starting")
		if p.starts != 0 {
			t.Errorf("%d starts", p.starts)
		}
	})
}

// TestAStopEndsWhatHasNotBegun: a start or wake that waits for anything before its confirmation does not come after the stop.
func TestAStopEndsWhatHasNotBegun(t *testing.T) {
	loads := func(t *testing.T, w *sleeper) {
		t.Helper()
		other := *w.s
		other.ID = "other"
		release, err := w.cfg.Leases.Loading(&other)
		must(t, err)
		time.AfterFunc(3*time.Second, release)
	}
	admits := func(_ *testing.T, w *sleeper) {
		w.cfg.Admit = func(context.Context, *catalog.Service) error {
			time.Sleep(10 * time.Second) // in a bubble of synctest, which takes no time
			return nil
		}
	}
	turns := func(_ *testing.T, w *sleeper) {
		w.instance("chat").turn <- struct{}{}
		time.AfterFunc(3*time.Second, w.instance("chat").release)
	}
	for name, hinder := range map[string]func(*testing.T, *sleeper){"admission": admits, "another's load": loads, "its turn": turns} {
		for what, c := range map[string]struct {
			slept bool
			act   func(*Manager, context.Context, *catalog.Service) (bool, error)
			says  string
		}{
			"a start":                {false, (*Manager).Start, "chat did not start: it was stopped while it was starting"},
			"a start of what sleeps": {true, (*Manager).Start, "chat did not start: it was stopped while it was starting"},
			"a wake":                 {true, (*Manager).WakeService, "chat did not wake: it was stopped while it was starting"},
		} {
			t.Run(what+" waits for "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newSleeper(t)
					if c.slept {
						if _, err := w.up().SleepService(t.Context(), w.s); err != nil {
							t.Fatal(err)
						}
					}
					hinder(t, w)
					w.answers.set(errors.New("not yet"))
					acted := make(chan error, 1)
					go func() { _, err := c.act(w.Manager, t.Context(), w.s); acted <- err }()
					time.Sleep(time.Second)
					if changed, err := w.Stop(t.Context(), w.s); !changed || err != nil {
						t.Errorf("stop: %v, %v", changed, err)
					}
					wantFault(t, <-acted, callv1.Code_CODE_FAILED, c.says)
					time.Sleep(2 * time.Minute)
					if starts, _ := w.program.count(); starts != 0 || w.state() != executorv1.ServiceState_SERVICE_STATE_STOPPED {
						t.Errorf("%d starts; it is %v", starts, w.Status(w.s))
					}
					if calls := w.model.done(); slices.Contains(calls, "wake one") {
						t.Errorf("its engine was asked: %v", calls)
					}
					// A start that is asked for afterwards is another.
					w.answers.set(nil)
					if changed, err := w.Start(t.Context(), w.s); !changed || err != nil {
						t.Errorf("then: %v, %v", changed, err)
					}
				})
			})
		}
	}
}

// TestADriversPanicIsAFailedStart: the call is answered, and so is the next.
func TestADriversPanicIsAFailedStart(t *testing.T) {
	p := &program{after: driver.Running, panics: true}
	m, s := manager(t, p, &answers{}, 0)
	_, err := m.Start(t.Context(), s)
	wantFault(t, err, callv1.Code_CODE_FAILED, "chat did not start: the program could not be started")
	p.panics = false
	if changed, err := m.Start(t.Context(), s); !changed || err != nil {
		t.Errorf("then: %v, %v", changed, err)
	}
	p.set(driver.Status{})
	m.cfg.Confirm = func(context.Context, func()) error { return nil }
	if _, err := m.Start(t.Context(), s); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
		t.Errorf("a confirmation that does nothing: %v", err)
	}
}

// TestAnswersInARow: as many as the entry says make it ready, and as many change the verdict of a running one.
func TestAnswersInARow(t *testing.T) {
	var v verdict
	h := &catalog.Health{UnhealthyAfter: 3, HealthyAfter: 2}
	for i, c := range []struct{ ok, want bool }{
		{true, true}, {false, true}, {false, true}, {true, true}, {false, true}, {false, true}, {false, false},
		{true, false}, {false, false}, {true, false}, {true, true},
	} {
		if v.hear(c.ok, h); v.good() != c.want || v.bad() == c.want {
			t.Errorf("after %d: %+v", i, v)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		a := &answers{}
		m, s := manager(t, &program{after: driver.Running}, a, 0)
		s.Health.HealthyAfter = 3
		if _, err := m.Start(t.Context(), s); err != nil || a.asked != 3 {
			t.Errorf("%v after %d checks", err, a.asked)
		}
	})
}

// TestAServiceThatDoesNotAnswerIsAskedLess: with backoff, and never all at once.
func TestAServiceThatDoesNotAnswerIsAskedLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answers{err: errors.New("refused")}
		m, _ := manager(t, &program{status: driver.Status{State: driver.Running}}, a, 0)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { m.Run(ctx); close(ended) }()
		time.Sleep(5 * time.Minute)
		cancel()
		<-ended
		// 2, 4, 8 and then every 16 s: about 21 times, where every 2 s would be 150.
		if a.asked < 15 || a.asked > 30 {
			t.Errorf("asked %d times in 5 minutes", a.asked)
		}
	})
}
