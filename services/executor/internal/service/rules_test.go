package service

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/engine"
	"durward.internal/services/platform/catalog"
)

// book is a Rule and a Proceed that can be told to refuse.
type book struct {
	mu           sync.Mutex
	lines        []string
	down, halted bool
}

func (b *book) rule(_ context.Context, what string, s *catalog.Service, stage Stage, err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down && stage == Intent {
		return errors.New("audit is down")
	}
	what, _, _ = strings.Cut(what, ":")
	line := what + " " + s.ID
	switch {
	case stage == Outcome && err != nil:
		line += " failed"
	case stage == Outcome:
		line += " done"
	}
	b.lines = append(b.lines, line)
	return nil
}

func (b *book) proceed(begin func()) error {
	b.mu.Lock()
	halted := b.halted
	b.mu.Unlock()
	if halted {
		return errNo
	}
	begin()
	return nil
}

func (b *book) set(change func(*book)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(b)
}

func (b *book) read() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.lines)
}

// ruled is a sleeper whose rules are followed until the test ends.
func ruled(t *testing.T) (*sleeper, *book) {
	t.Helper()
	w, b := newSleeper(t), &book{}
	w.cfg.Rule, w.cfg.Proceed = b.rule, b.proceed
	w.s.Restart = catalog.Restart{Max: 2, WithinS: 60}
	return w, b
}

// follows runs the manager while during does.
func (w *sleeper) follows(t *testing.T, during func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { w.Run(ctx); close(ended) }()
	during()
	cancel()
	<-ended
}

func (w *sleeper) end() {
	w.program.set(driver.Status{State: driver.Ended, Cause: driver.CauseOutOfMemory})
}

func TestWhatEndsByItselfIsStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, b := ruled(t)
		w.follows(t, func() {
			// What ended before anybody saw it run is left alone.
			w.end()
			time.Sleep(time.Minute)
			if starts, _ := w.program.count(); starts != 0 {
				t.Errorf("%d starts of what nobody started", starts)
			}
			if _, err := w.Start(t.Context(), w.s); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				w.end()
				time.Sleep(5 * time.Second)
			}
			if v := w.Status(w.s); v.State != executorv1.ServiceState_SERVICE_STATE_FAILED || v.Cause != driver.CauseRestartLimit || v.Restarts != 2 {
				t.Errorf("after three ends: %+v", v)
			}
			if starts, _ := w.program.count(); starts != 3 {
				t.Errorf("%d starts", starts)
			}
			time.Sleep(time.Hour)
			if starts, _ := w.program.count(); starts != 3 {
				t.Errorf("%d starts, though it was given up", starts)
			}
			// A human's start begins anew.
			if _, err := w.Start(t.Context(), w.s); err != nil {
				t.Fatal(err)
			}
			w.end()
			time.Sleep(5 * time.Second)
			if v := w.Status(w.s); v.State != executorv1.ServiceState_SERVICE_STATE_RUNNING || v.Restarts != 3 {
				t.Errorf("then: %+v", v)
			}
			// What was stopped stays stopped.
			if _, err := w.Stop(t.Context(), w.s); err != nil {
				t.Fatal(err)
			}
			w.end()
			time.Sleep(time.Minute)
			if starts, _ := w.program.count(); starts != 5 {
				t.Errorf("%d starts", starts)
			}
		})
		want := []string{"restart chat", "restart chat done", "restart chat", "restart chat done", "restart chat", "restart chat done"}
		if diff := cmp.Diff(want, b.read()); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
	})
}

// TestAStopIsNotOvertakenByARestart: what ends by itself while a stop of it has its turn, and waits to be confirmed, stays stopped.
func TestAStopIsNotOvertakenByARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, b := ruled(t)
		w.up()
		w.follows(t, func() {
			time.Sleep(time.Second) // it is seen to run
			confirmed, stopped := make(chan struct{}), make(chan error, 1)
			go func() {
				_, err := w.StopLocked(t.Context(), w.s, Act{Confirm: func(_ context.Context, begin func()) error {
					<-confirmed
					begin()
					return nil
				}})
				stopped <- err
			}()
			synctest.Wait()
			w.end()
			time.Sleep(2 * tick)
			synctest.Wait() // the rule waits for the turn
			close(confirmed)
			must(t, <-stopped)
			time.Sleep(time.Minute)
			if starts, _ := w.program.count(); starts != 0 || w.state() != executorv1.ServiceState_SERVICE_STATE_STOPPED {
				t.Errorf("%d starts after a stop; it is %v", starts, w.Status(w.s))
			}
		})
		if lines := b.read(); len(lines) != 0 {
			t.Errorf("records %v", lines)
		}
	})
}

// TestAStopThatEndsARestartIsTheLast: also where the rest of the stop is refused, since the service is down by then.
func TestAStopThatEndsARestartIsTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := ruled(t)
		w.up()
		w.follows(t, func() {
			time.Sleep(time.Second) // it is seen to run
			w.answers.set(errors.New("not yet"))
			w.end()
			time.Sleep(2 * tick) // the rule has started it, and waits for it to be ready
			confirmed := 0
			w.cfg.Confirm = func(_ context.Context, begin func()) error {
				if confirmed++; confirmed == 2 {
					return errNo
				}
				begin()
				return nil
			}
			changed, err := w.Stop(t.Context(), w.s)
			if !changed || err != nil || confirmed != 2 {
				t.Errorf("stop: %v, %v; confirmed %d times", changed, err, confirmed)
			}
			w.answers.set(nil)
			time.Sleep(10 * time.Minute)
			if starts, _ := w.program.count(); starts != 1 || w.state() == executorv1.ServiceState_SERVICE_STATE_RUNNING {
				t.Errorf("%d starts; it is %v", starts, w.Status(w.s))
			}
		})
	})
}

// TestNoRestart: while the host is halted, while audit is down, in a switch, where it does not fit, where the entry says none;
// and once that is over it is made good.
func TestNoRestart(t *testing.T) {
	for name, c := range map[string]struct {
		hinder func(w *sleeper, b *book) (free func())
	}{
		"halted": {func(_ *sleeper, b *book) func() {
			b.set(func(b *book) { b.halted = true })
			return func() { b.set(func(b *book) { b.halted = false }) }
		}},
		"audit is down": {func(_ *sleeper, b *book) func() {
			b.set(func(b *book) { b.down = true })
			return func() { b.set(func(b *book) { b.down = false }) }
		}},
		"a switch": {func(w *sleeper, _ *book) func() {
			release, err := w.cfg.Leases.Host()
			must(t, err)
			return release
		}},
		"another load": {func(w *sleeper, _ *book) func() {
			release, err := w.cfg.Leases.Loading(w.s)
			must(t, err)
			return release
		}},
		"it does not fit": {func(w *sleeper, _ *book) func() {
			var mu sync.Mutex
			full := true
			w.cfg.Admit = func(context.Context, *catalog.Service) error {
				mu.Lock()
				defer mu.Unlock()
				if full {
					return errNo
				}
				return nil
			}
			return func() { mu.Lock(); full = false; mu.Unlock() }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, b := ruled(t)
				w.up()
				w.follows(t, func() {
					time.Sleep(time.Second)
					free := c.hinder(w, b)
					w.end()
					time.Sleep(10 * time.Minute)
					if starts, _ := w.program.count(); starts != 0 || len(b.read()) != 0 {
						t.Errorf("%d starts, records %v", starts, b.read())
					}
					free()
					time.Sleep(2 * maxRuleBackoff)
					if starts, _ := w.program.count(); starts != 1 || w.state() != executorv1.ServiceState_SERVICE_STATE_RUNNING {
						t.Errorf("afterwards: %d starts, %v", starts, w.Status(w.s))
					}
				})
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w, b := ruled(t)
		w.s.Restart = catalog.Restart{}
		w.up()
		w.follows(t, func() {
			time.Sleep(time.Second)
			w.end()
			time.Sleep(10 * time.Minute)
		})
		if starts, _ := w.program.count(); starts != 0 || len(b.read()) != 0 {
			t.Errorf("%d starts without a rule", starts)
		}
	})
}

// TestAnEntryThatChangedIsNotRestarted: a rule runs what was started, and nothing that its entry has come to say since.
func TestAnEntryThatChangedIsNotRestarted(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*catalog.Service)
		starts int
	}{
		"nothing":            {func(*catalog.Service) {}, 1},
		"its words":          {func(s *catalog.Service) { s.Description = "other" }, 1},
		"its rules":          {func(s *catalog.Service) { s.Restart.Max, s.MinResidenceS = 3, 60 }, 1},
		"what it needs":      {func(s *catalog.Service) { s.VRAMMiB = 2000 }, 1},
		"its arguments":      {func(s *catalog.Service) { s.Argv = []string{"/bin/other"} }, 0},
		"its environment":    {func(s *catalog.Service) { s.Environment = map[string]string{"A": "b"} }, 0},
		"its user":           {func(s *catalog.Service) { s.RunAs = "other" }, 0},
		"its container":      {func(s *catalog.Service) { s.Container = &catalog.Container{Image: "x"} }, 0},
		"what it is given":   {func(s *catalog.Service) { s.Credentials = []string{"token"} }, 0},
		"what it may change": {func(s *catalog.Service) { s.Limits.MemoryMiB = 1 }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, _ := ruled(t)
				one, next := *w.s, *w.cfg.Catalog()
				c.change(&one)
				next.Services = []*catalog.Service{&one}
				var now atomic.Pointer[catalog.Catalog]
				now.Store(w.cfg.Catalog())
				w.cfg.Catalog = now.Load
				w.up()
				w.follows(t, func() {
					time.Sleep(time.Second + tick/2) // between two looks: one that began with the old entry goes by it
					now.Store(&next)
					w.end()
					time.Sleep(10 * time.Minute)
				})
				if starts, _ := w.program.count(); starts != c.starts {
					t.Errorf("%d starts, want %d", starts, c.starts)
				}
				if cause := w.Status(&one).Cause; (cause == driver.CauseChanged) != (c.starts == 0) {
					t.Errorf("its cause is %q", cause)
				}
			})
		})
	}
}

// TestARestartOfWhatNobodyCouldStop: the catalog changes while the rule is recorded. An entry that is gone, or is another driver's,
// does not lead to the program.
func TestARestartOfWhatNobodyCouldStop(t *testing.T) {
	for name, c := range map[string]struct{ entry, record string }{
		"it is gone":              {"id: other, driver: process, argv: [/usr/bin/true], port: 17999", "restart chat failed"},
		"it is another driver's":  {"id: chat, driver: \"null\"", "restart chat failed"},
		"its arguments are other": {"id: chat, driver: process, argv: [/usr/bin/false], port: 17999", "restart chat done"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, b := ruled(t)
				next, err := catalog.Parse("c.yaml", []byte("version: 1\nservices: [{"+c.entry+"}]\n"), catalog.Options{Development: true})
				must(t, err)
				var now atomic.Pointer[catalog.Catalog]
				now.Store(w.cfg.Catalog())
				w.cfg.Catalog = now.Load
				w.cfg.Rule = func(ctx context.Context, what string, s *catalog.Service, stage Stage, err error) error {
					now.Store(next)
					return b.rule(ctx, what, s, stage, err)
				}
				w.up()
				w.follows(t, func() {
					time.Sleep(time.Second) // it is seen to run
					w.end()
					time.Sleep(time.Minute)
				})
				if starts, _ := w.program.count(); (starts == 1) != (c.record == "restart chat done") {
					t.Errorf("%d starts", starts)
				}
				if diff := cmp.Diff([]string{"restart chat", c.record}, b.read()); diff != "" {
					t.Errorf("records (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestARestartThatFails is tried again within the same bound.
func TestARestartThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, b := ruled(t)
		w.up()
		w.follows(t, func() {
			time.Sleep(time.Second)
			w.program.mu.Lock()
			w.program.startErr = driver.ErrProgramMissing
			w.program.mu.Unlock()
			w.end()
			time.Sleep(10 * time.Minute)
		})
		want := []string{"restart chat", "restart chat failed", "restart chat", "restart chat failed"}
		if diff := cmp.Diff(want, b.read()); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
		if v := w.Status(w.s); v.State != executorv1.ServiceState_SERVICE_STATE_FAILED || v.Cause != driver.CauseRestartLimit {
			t.Errorf("it is %+v", v)
		}
	})
}

func TestWhatNobodyUsesIsReleased(t *testing.T) {
	for name, c := range map[string]struct {
		action string
		given  func(w *sleeper, b *book)
		state  executorv1.ServiceState
	}{
		"nobody, sleep": {"sleep", func(*sleeper, *book) {}, executorv1.ServiceState_SERVICE_STATE_SLEEPING},
		"nobody, stop":  {"stop", func(*sleeper, *book) {}, executorv1.ServiceState_SERVICE_STATE_STOPPED},
		"requests":      {"sleep", func(w *sleeper, _ *book) { w.model.usage.Requests = 1 }, executorv1.ServiceState_SERVICE_STATE_RUNNING},
		"pinned":        {"sleep", func(w *sleeper, _ *book) { w.s.Pin = true }, executorv1.ServiceState_SERVICE_STATE_RUNNING},
		"halted":        {"sleep", func(_ *sleeper, b *book) { b.halted = true }, executorv1.ServiceState_SERVICE_STATE_RUNNING},
		"audit is down": {"stop", func(_ *sleeper, b *book) { b.down = true }, executorv1.ServiceState_SERVICE_STATE_RUNNING},
		"a switch": {"stop", func(w *sleeper, _ *book) {
			if _, err := w.cfg.Leases.Host(); err != nil {
				t.Fatal(err)
			}
		}, executorv1.ServiceState_SERVICE_STATE_RUNNING},
		"a load on its GPU": {"sleep", func(w *sleeper, _ *book) {
			if _, err := w.cfg.Leases.Loading(w.s); err != nil {
				t.Fatal(err)
			}
		}, executorv1.ServiceState_SERVICE_STATE_RUNNING},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, b := ruled(t)
				w.model.usage = engine.Usage{Told: true}
				w.s.Idle = &catalog.Idle{Action: c.action, AfterS: 60}
				c.given(w, b)
				w.up()
				w.follows(t, func() {
					time.Sleep(59 * time.Second)
					if w.state() != executorv1.ServiceState_SERVICE_STATE_RUNNING {
						t.Errorf("too early it is %v", w.Status(w.s))
					}
					time.Sleep(time.Minute)
				})
				if w.state() != c.state {
					t.Errorf("it is %v; %v", w.Status(w.s), b.read())
				}
				acted := c.state != executorv1.ServiceState_SERVICE_STATE_RUNNING
				if want := []string{c.action + " chat", c.action + " chat done"}; acted && !slices.Equal(b.read(), want) || !acted && len(b.read()) > 0 {
					t.Errorf("records %v", b.read())
				}
			})
		})
	}
}

// TestARequestBetweenTwoLooks counts, and so does a connection to a service that tells nothing.
func TestARequestBetweenTwoLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := ruled(t)
		w.model.usage = engine.Usage{Told: true, Served: 1}
		w.s.Idle = &catalog.Idle{Action: "sleep", AfterS: 60}
		w.up()
		w.follows(t, func() {
			for range 10 {
				time.Sleep(50 * time.Second)
				w.model.mu.Lock()
				w.model.usage.Served++
				w.model.mu.Unlock()
			}
			if w.state() != executorv1.ServiceState_SERVICE_STATE_RUNNING {
				t.Errorf("used, and yet %v", w.Status(w.s))
			}
			time.Sleep(75 * time.Second)
			if w.state() != executorv1.ServiceState_SERVICE_STATE_SLEEPING {
				t.Errorf("unused, and yet %v", w.Status(w.s))
			}
		})
	})
	dir := t.TempDir()
	table := filepath.Join(dir, "net", "tcp")
	write := func(text string) {
		t.Helper()
		must(t, errors.Join(os.MkdirAll(filepath.Dir(table), 0o700), os.WriteFile(table, []byte(text), 0o600)))
	}
	synctest.Test(t, func(t *testing.T) {
		w, _ := ruled(t)
		w.host.proc = dir
		w.s.Idle = &catalog.Idle{Action: "sleep", AfterS: 60}
		u := w.up().instance("chat")
		if w.idle(t.Context(), w.s, u); w.idle(t.Context(), w.s, u) {
			t.Error("what cannot be seen is idle")
		}
		write("0: 0100007F:464F 0100007F:D431 01 0 0 0 0 0 7\n")
		time.Sleep(2 * time.Minute)
		if w.idle(t.Context(), w.s, u) {
			t.Error("somebody is connected")
		}
		write("0: 0100007F:464F 0100007F:D431 06 0 0 0 0 0 7\n")
		time.Sleep(59 * time.Second)
		if w.idle(t.Context(), w.s, u) {
			t.Error("too early")
		}
		if time.Sleep(time.Second); !w.idle(t.Context(), w.s, u) {
			t.Error("nobody is connected")
		}
		write("")
		table = filepath.Join(dir, "net", "tcp6")
		write("0: 00000000000000000000000001000000:464F 00000000000000000000000001000000:D431 01 0 0 0 0 0 7\n")
		if w.idle(t.Context(), w.s, u) {
			t.Error("somebody is connected to ::1")
		}
		write("")
		// Another container reaches this one in a network of theirs, of which the host's table does not tell.
		w.s.Container = &catalog.Container{Port: 8080}
		w.program.set(driver.Status{State: driver.Running, PID: 7})
		time.Sleep(time.Hour)
		table = filepath.Join(dir, "7", "net", "tcp")
		write("0: 020012AC:1F90 030012AC:D431 01 0 0 0 0 0 7\n")
		if w.idle(t.Context(), w.s, u) {
			t.Error("a container is connected")
		}
		write("0: 020012AC:D431 030012AC:1F90 01 0 0 0 0 0 7\n")
		if time.Sleep(time.Minute); !w.idle(t.Context(), w.s, u) {
			t.Error("it is connected to another one itself")
		}
	})
}

// TestIdleCountsFromTheFirstLook: of the time before the entry had the rule nobody knows whether the service was used.
func TestIdleCountsFromTheFirstLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := ruled(t)
		w.s.Idle = nil
		without := w.cfg.Catalog()
		with, one := *without, *w.s
		one.Idle = &catalog.Idle{Action: "stop", AfterS: 60}
		with.Services = []*catalog.Service{&one}
		var now atomic.Pointer[catalog.Catalog]
		now.Store(without)
		w.cfg.Catalog = now.Load
		w.model.usage = engine.Usage{Told: true}
		w.up()
		w.follows(t, func() {
			time.Sleep(time.Hour)
			now.Store(&with)
			time.Sleep(59 * time.Second)
			if w.state() != executorv1.ServiceState_SERVICE_STATE_RUNNING {
				t.Errorf("%v within 59 s of the rule", w.state())
			}
			time.Sleep(10 * time.Second)
			if w.state() != executorv1.ServiceState_SERVICE_STATE_STOPPED {
				t.Errorf("%v after 69 s", w.state())
			}
		})
	})
}

// webSleeps is an engine in which "web" alone sleeps.
type webSleeps struct {
	*model
	slept *atomic.Bool
}

func (e webSleeps) Asleep(_ context.Context, s *catalog.Service) (bool, error) {
	return s.ID == "web" && e.slept.Load(), nil
}

// TestWhatARunningServiceNeedsIsNotReleased: its idle time begins once nothing that depends on it runs or sleeps any more.
func TestWhatARunningServiceNeedsIsNotReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := ruled(t)
		w.model.usage = engine.Usage{Told: true}
		w.s.Idle = &catalog.Idle{Action: "stop", AfterS: 60}
		var slept atomic.Bool
		w.cfg.Engine = webSleeps{w.model, &slept}
		web, catalogue := &catalog.Service{
			ID: "web", Driver: "test", DependsOn: []string{"chat"}, StartTimeoutS: 10, StopTimeoutS: 5, Sleep: catalog.SleepVLLM1,
		}, *w.cfg.Catalog()
		catalogue.Services = []*catalog.Service{w.s, web}
		w.cfg.Catalog = func() *catalog.Catalog { return &catalogue }
		other := &program{}
		other.set(driver.Status{State: driver.Running})
		w.cfg.Drivers["test"] = Is(other)
		w.up()
		w.follows(t, func() {
			time.Sleep(time.Hour)
			if w.state() != executorv1.ServiceState_SERVICE_STATE_RUNNING {
				t.Fatalf("%v, while web runs", w.state())
			}
			slept.Store(true)
			time.Sleep(time.Hour)
			if state := w.Status(web).State; state != executorv1.ServiceState_SERVICE_STATE_SLEEPING {
				t.Fatalf("web: %v", state)
			}
			if w.state() != executorv1.ServiceState_SERVICE_STATE_RUNNING {
				t.Fatalf("%v, while web sleeps, which could not wake without it", w.state())
			}
			other.set(driver.Status{State: driver.Stopped})
			time.Sleep(50 * time.Second)
			if w.state() != executorv1.ServiceState_SERVICE_STATE_RUNNING {
				t.Errorf("%v within 50 s of the end of web", w.state())
			}
			time.Sleep(20 * time.Second)
			if w.state() != executorv1.ServiceState_SERVICE_STATE_STOPPED {
				t.Errorf("%v after 70 s", w.state())
			}
		})
	})
}

// TestARuleThatIsPutOffLooksOn: what is used while the rule cannot act is in use.
func TestARuleThatIsPutOffLooksOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := ruled(t)
		w.model.usage = engine.Usage{Told: true}
		w.s.Idle = &catalog.Idle{Action: "stop", AfterS: 120}
		release, err := w.cfg.Leases.Loading(w.s)
		must(t, err)
		w.up()
		requests := func(n uint64) {
			w.model.mu.Lock()
			defer w.model.mu.Unlock()
			w.model.usage.Requests = n
		}
		w.follows(t, func() {
			u := w.instance("chat")
			for put := time.Duration(0); put < 30*time.Second; {
				time.Sleep(time.Second) // of the fake clock: until the rule is put off for long
				u.mu.Lock()
				put = time.Until(u.rules.next)
				u.mu.Unlock()
			}
			requests(1)
			time.Sleep(12 * time.Second)
			requests(0)
			release()
			time.Sleep(100 * time.Second)
			if w.state() != executorv1.ServiceState_SERVICE_STATE_RUNNING {
				t.Errorf("%v within 100 s of a request", w.state())
			}
			time.Sleep(90 * time.Second)
			if w.state() != executorv1.ServiceState_SERVICE_STATE_STOPPED {
				t.Errorf("%v after 190 s", w.state())
			}
		})
	})
}

// TestAStopEndsARestartThatIsBeingRecorded: before its program began.
func TestAStopEndsARestartThatIsBeingRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, b := ruled(t)
		w.cfg.Rule = func(ctx context.Context, what string, s *catalog.Service, stage Stage, err error) error {
			if stage == Intent {
				time.Sleep(10 * time.Second) // in a bubble of synctest, which takes no time
			}
			return b.rule(ctx, what, s, stage, err)
		}
		w.up()
		w.follows(t, func() {
			time.Sleep(time.Second) // it is seen to run
			w.answers.set(errors.New("not yet"))
			w.end()
			time.Sleep(2 * tick)
			if changed, err := w.Stop(t.Context(), w.s); !changed || err != nil {
				t.Errorf("stop: %v, %v", changed, err)
			}
			time.Sleep(10 * time.Minute)
			if starts, _ := w.program.count(); starts != 0 || w.state() != executorv1.ServiceState_SERVICE_STATE_STOPPED {
				t.Errorf("%d starts; it is %v", starts, w.Status(w.s))
			}
		})
		if diff := cmp.Diff([]string{"restart chat", "restart chat failed"}, b.read()); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
	})
}

// TestARestartOutlivesTheExecutor: what a rule started and loads when the executor ends is left to the next one, as what a call started is.
func TestARestartOutlivesTheExecutor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, b := ruled(t)
		var how error
		w.cfg.Rule = func(ctx context.Context, what string, s *catalog.Service, stage Stage, err error) error {
			how = err
			return b.rule(ctx, what, s, stage, err)
		}
		w.up()
		w.follows(t, func() {
			time.Sleep(time.Second) // it is seen to run
			w.answers.set(errors.New("not yet"))
			w.end()
			time.Sleep(2 * tick)
		})
		if starts, stops := w.program.count(); starts != 1 || stops != 0 || w.program.Status(w.s).State != driver.Running {
			t.Errorf("%d starts, %d stops; it is %+v", starts, stops, w.program.Status(w.s))
		}
		if Cause(how) != driver.CauseLeft || !w.Status(w.s).Running() {
			t.Errorf("its start ended with %v; it is %+v", how, w.Status(w.s))
		}
		if diff := cmp.Diff([]string{"restart chat", "restart chat failed"}, b.read()); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
	})
}

// TestALyingSleeperIsNotAskedForEver: what does not give its memory back is put off.
func TestALyingSleeperIsNotAskedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, b := ruled(t)
		w.model.usage = engine.Usage{Told: true}
		w.model.lies = true
		w.s.Idle = &catalog.Idle{Action: "sleep", AfterS: 10}
		w.up()
		w.follows(t, func() { time.Sleep(time.Hour) })
		if n := len(b.read()); n != 2 {
			t.Errorf("%d records: %v", n, b.read()[:min(n, 6)])
		}
		if v := w.Status(w.s); v.Cause != driver.CauseStillHeld {
			t.Errorf("it is %v", v)
		}
	})
}

// TestWhatWasRecordedHasAnOutcome: a halt between the record and the start leaves no intent open.
func TestWhatWasRecordedHasAnOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, b := ruled(t)
		w.cfg.Rule = func(ctx context.Context, what string, s *catalog.Service, stage Stage, how error) error {
			if stage == Intent {
				b.set(func(b *book) { b.halted = true })
			}
			return b.rule(ctx, what, s, stage, how)
		}
		w.up()
		w.follows(t, func() {
			time.Sleep(time.Second)
			w.end()
			time.Sleep(time.Minute)
		})
		if diff := cmp.Diff([]string{"restart chat", "restart chat failed"}, b.read()); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
		if starts, _ := w.program.count(); starts != 0 {
			t.Errorf("%d starts on a halted host", starts)
		}
	})
}

// TestWhatRunsStaysForItsResidence: min_residence_s keeps the idle rule off as it keeps a switch off.
func TestWhatRunsStaysForItsResidence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := ruled(t)
		w.s.Idle, w.s.MinResidenceS = &catalog.Idle{Action: "stop", AfterS: 60}, 600
		if _, err := w.Start(t.Context(), w.s); err != nil {
			t.Fatal(err)
		}
		w.follows(t, func() {
			time.Sleep(599 * time.Second)
			if w.state() != executorv1.ServiceState_SERVICE_STATE_RUNNING {
				t.Errorf("after 599 s: %v", w.state())
			}
			time.Sleep(10 * time.Second)
			if w.state() != executorv1.ServiceState_SERVICE_STATE_STOPPED {
				t.Errorf("after 609 s: %v", w.state())
			}
		})
	})
}
