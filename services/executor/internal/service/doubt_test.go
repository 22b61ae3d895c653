package service

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
)

// hooked is a model whose answers a test can replace.
type hooked struct {
	*model
	asleepIs func() (bool, error)
	wakes    func() error
	sleeps   func()
}

func (h hooked) Asleep(ctx context.Context, s *catalog.Service) (bool, error) {
	if h.asleepIs != nil {
		return h.asleepIs()
	}
	return h.model.Asleep(ctx, s)
}

func (h hooked) Wake(ctx context.Context, s *catalog.Service, models []string) error {
	if h.wakes != nil {
		return h.wakes()
	}
	return h.model.Wake(ctx, s, models)
}

func (h hooked) Sleep(ctx context.Context, s *catalog.Service) ([]string, error) {
	if h.sleeps != nil {
		h.sleeps()
	}
	return h.model.Sleep(ctx, s)
}

// TestAServiceThatDiesBeforeItsStart: what ran when it was looked at, and does not when it is begun, passes admission first.
func TestAServiceThatDiesBeforeItsStart(t *testing.T) {
	w := newSleeper(t)
	w.program.set(driver.Status{State: driver.Running})
	no := fault.New(callv1.Code_CODE_DOES_NOT_FIT, "too big")
	asked := 0
	w.cfg.Admit = func(context.Context, *catalog.Service) error { asked++; return no }
	w.cfg.Engine = hooked{model: w.model, asleepIs: func() (bool, error) {
		w.program.set(driver.Status{State: driver.Ended})
		return false, context.DeadlineExceeded
	}}
	if changed, err := w.Start(t.Context(), w.s); changed || !errors.Is(err, error(no)) || asked != 1 {
		t.Errorf("%t, %v, asked %d times", changed, err, asked)
	}
	if starts, _ := w.program.count(); starts != 0 {
		t.Errorf("%d starts", starts)
	}
}

// TestWhatChangedIsNotStarted: neither before it is begun nor, where only the driver sees it, then.
func TestWhatChangedIsNotStarted(t *testing.T) {
	p := &program{after: driver.Running}
	m, s := manager(t, p, &answers{}, 0)
	_, err := m.StartLocked(t.Context(), s, Act{Confirm: willing, Definition: "sha256:0"})
	wantFault(t, err, callv1.Code_CODE_CONFLICT, "chat was not started: what it runs changed since it was approved")
	if Cause(err) != driver.CauseChanged || m.Status(s).State != executorv1.ServiceState_SERVICE_STATE_STOPPED {
		t.Errorf("%q, %+v", Cause(err), m.Status(s))
	}
	p.startErr = fmt.Errorf("%w: just now", driver.ErrChanged)
	_, err = m.StartLocked(t.Context(), s, Act{Confirm: willing, Definition: "sha256:1"})
	wantFault(t, err, callv1.Code_CODE_CONFLICT, "chat was not started: what it runs changed since it was approved")
	p.startErr = nil
	if changed, err := m.StartLocked(t.Context(), s, Act{Confirm: willing, Definition: "sha256:1"}); !changed || err != nil {
		t.Errorf("unchanged: %t, %v", changed, err)
	}
	if diff := cmp.Diff([]string{"sha256:1"}, p.started); diff != "" {
		t.Error(diff)
	}
}

// TestARestartRunsWhatWasApproved: what a rule starts again is what was started, or found running.
func TestARestartRunsWhatWasApproved(t *testing.T) {
	for _, found := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w, _ := ruled(t)
			if found {
				w.program.set(driver.Status{State: driver.Running, Since: time.Now()})
			} else if _, err := w.Start(t.Context(), w.s); err != nil {
				t.Fatal(err)
			}
			w.Settle(t.Context())
			w.follows(t, func() {
				time.Sleep(time.Minute)
				before, _ := w.program.count()
				w.program.mu.Lock()
				w.program.definition = "sha256:2"
				w.program.mu.Unlock()
				w.end()
				time.Sleep(10 * time.Minute)
				if starts, _ := w.program.count(); starts != before {
					t.Errorf("found %t: something else was started", found)
				}
				w.program.mu.Lock()
				w.program.definition = ""
				w.program.mu.Unlock()
				time.Sleep(2 * time.Minute)
				if starts, _ := w.program.count(); starts != before+1 {
					t.Errorf("found %t: %d starts of what was approved", found, starts-before)
				}
			})
		})
	}
}

// lost is a driver whose answer to a start is lost: the service comes up later, or is not seen any more.
type lost struct {
	*program
	later time.Duration
	blind bool
}

func (l lost) Start(_ context.Context, _ *catalog.Service, _ string, begin driver.Begin) error {
	return begin(l.ask)
}

func (l lost) ask() error {
	go func() {
		time.Sleep(l.later) // in a bubble of synctest, which takes no time
		state := driver.Running
		if l.blind {
			state = driver.Unknown
		}
		l.set(driver.Status{State: state})
	}()
	return fmt.Errorf("%w: no answer", driver.ErrUnknown)
}

// TestAStartWhoseAnswerIsLost: what comes up after it was stopped is stopped again, and what nobody sees is not called stopped.
func TestAStartWhoseAnswerIsLost(t *testing.T) {
	for _, blind := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := &program{}
			m, s := manager(t, p, &answers{}, 0)
			m.cfg.Drivers["process"] = Is(lost{p, 2 * time.Second, blind})
			_, err := m.Start(t.Context(), s)
			if Cause(err) != driver.CauseUnknown {
				t.Errorf("%v", err)
			}
			v := m.Status(s)
			switch {
			case blind && v.State != executorv1.ServiceState_SERVICE_STATE_UNKNOWN, !blind && v.State != executorv1.ServiceState_SERVICE_STATE_FAILED:
				t.Errorf("blind %t: %+v", blind, v)
			}
			if !blind {
				return
			}
			// Its manager is seen again, and says that it is stopped: it may still come up, until a stop has gone well.
			p.set(driver.Status{State: driver.Stopped})
			if v := m.Status(s); v.State != executorv1.ServiceState_SERVICE_STATE_UNKNOWN || v.Cause != driver.CauseUnknown || len(m.Claims()) != 1 {
				t.Errorf("in doubt: %+v", v)
			}
			if _, err := m.Stop(t.Context(), s); err != nil || m.Status(s).State != executorv1.ServiceState_SERVICE_STATE_STOPPED {
				t.Errorf("stopped: %v, %+v", err, m.Status(s))
			}
		})
	}
}

// TestAnErrorThatIsNoRefusalIsUndone: a driver that fails in an unknown way may have started something.
func TestAnErrorThatIsNoRefusalIsUndone(t *testing.T) {
	for err, want := range map[error]bool{driver.ErrNotStarted: true, errors.New("odd"): true, driver.ErrPortInUse: false, driver.ErrChanged: false} {
		p := &program{startErr: err}
		m, s := manager(t, p, &answers{}, 0)
		stopped := &stopCounter{program: p}
		m.cfg.Drivers["process"] = Is(stopped)
		if _, serr := m.Start(t.Context(), s); serr == nil {
			t.Errorf("%v: it started", err)
		}
		if (stopped.stops > 0) != want {
			t.Errorf("%v: %d stops", err, stopped.stops)
		}
	}
}

type stopCounter struct {
	*program
	stops int
}

func (c *stopCounter) Stop(ctx context.Context, s *catalog.Service) (bool, error) {
	c.stops++
	return c.program.Stop(ctx, s)
}

// TestAPanicIsAnError: of a driver or an engine, whatever it was asked; the phase ends, and the next change works.
func TestAPanicIsAnError(t *testing.T) {
	for name, act := range map[string]func(w *sleeper) error{
		"stop": func(w *sleeper) error {
			w.program.stopPanics = true
			_, err := w.StopLocked(t.Context(), w.s, Act{Confirm: willing})
			w.program.stopPanics = false
			return err
		},
		"sleep": func(w *sleeper) error {
			w.cfg.Engine = hooked{model: w.model, sleeps: func() { panic("a fault in an engine") }}
			_, err := w.Sleep(t.Context(), w.s, Act{Confirm: willing})
			return err
		},
		"wake": func(w *sleeper) error {
			w.model.asleep = true
			w.cfg.Engine = hooked{model: w.model, wakes: func() error { panic("a fault in an engine") }}
			_, err := w.Wake(t.Context(), w.s, Act{Confirm: willing})
			return err
		},
		"a phase that panics": func(w *sleeper) error {
			_, err := w.StopLocked(t.Context(), w.s, Act{Confirm: willing, Phase: func(string) { panic("a fault in a switch") }})
			return err
		},
	} {
		w := newSleeper(t).up()
		err := act(w)
		if !fault.Is(err, callv1.Code_CODE_FAILED) || Cause(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
		switch w.state() {
		case executorv1.ServiceState_SERVICE_STATE_STARTING, executorv1.ServiceState_SERVICE_STATE_STOPPING:
			t.Errorf("%s: it is %v for ever", name, w.state())
		}
		w.cfg.Engine = w.model
		if _, err := w.StopLocked(t.Context(), w.s, Act{Confirm: willing}); err != nil {
			t.Errorf("%s: a stop afterwards: %v", name, err)
		}
	}
}

// TestAWakeThatFailsHalfWay: the service sleeps only where its engine and its memory say so.
func TestAWakeThatFailsHalfWay(t *testing.T) {
	const running, held, asleep = executorv1.ServiceState_SERVICE_STATE_UNHEALTHY, executorv1.ServiceState_SERVICE_STATE_UNHEALTHY,
		executorv1.ServiceState_SERVICE_STATE_SLEEPING
	for name, c := range map[string]struct {
		wakes  func(w *sleeper) error
		asleep func(w *sleeper) (bool, error)
		want   executorv1.ServiceState
		cause  string
	}{
		"awake, and not warm":  {nil, nil, running, driver.CauseUnhealthy},
		"refused":              {func(*sleeper) error { return errors.New("no") }, nil, asleep, ""},
		"half of it was taken": {func(w *sleeper) error { w.bench.hold(600); return errors.New("no") }, nil, held, driver.CauseStillHeld},
		"no answer any more": {func(w *sleeper) error {
			w.cfg.Engine = hooked{model: w.model, asleepIs: func() (bool, error) { return false, errors.New("gone") }}
			return errors.New("no")
		}, nil, held, driver.CauseStillHeld},
	} {
		for _, nobody := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				w := newSleeper(t).up()
				w.bench.set(func(b *bench) { b.nobody = nobody })
				if _, err := w.Sleep(t.Context(), w.s, Act{Confirm: willing}); err != nil {
					t.Fatal(err)
				}
				w.model.warmErr, w.s.StartTimeoutS = errors.New("no"), 1
				if c.wakes != nil {
					w.cfg.Engine = hooked{model: w.model, wakes: func() error { return c.wakes(w) }}
				}
				if _, err := w.Wake(t.Context(), w.s, Act{Confirm: willing}); err == nil {
					t.Errorf("%s: it woke", name)
				}
				if v := w.Status(w.s); v.State != c.want || v.Cause != c.cause {
					t.Errorf("%s, not attributed %t: %+v", name, nobody, v)
				}
			})
		}
	}
}

// TestALieIsRemembered: where the GPU does not tell whose memory it is, what was seen when it went to sleep counts.
func TestALieIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSleeper(t).up()
		w.bench.set(func(b *bench) { b.nobody = true })
		w.model.lies = true
		if _, err := w.Sleep(t.Context(), w.s, Act{Confirm: willing}); Cause(err) != driver.CauseStillHeld {
			t.Errorf("%v", err)
		}
		for range 3 {
			w.check(t.Context(), w.s, w.instance(w.s.ID))
			if v := w.Status(w.s); v.Asleep() || v.Cause != driver.CauseStillHeld || w.Claims()[0].MiB != w.s.VRAMMiB {
				t.Errorf("%+v, %+v", v, w.Claims())
			}
		}
		if _, err := w.SleepService(t.Context(), w.s); Cause(err) != driver.CauseStillHeld {
			t.Errorf("asked again: %v", err)
		}
		// Memory that is seen to be free is free; one that was found asleep beside a small stranger sleeps.
		w.bench.hold(100)
		w.check(t.Context(), w.s, w.instance(w.s.ID))
		if !w.Status(w.s).Asleep() {
			t.Errorf("%+v", w.Status(w.s))
		}
		w.set(w.s, w.instance(w.s.ID), func(u *instance) { u.asleep, u.held = false, false })
		w.bench.set(func(b *bench) { b.mib, b.others = 0, 600 })
		w.check(t.Context(), w.s, w.instance(w.s.ID))
		if !w.Status(w.s).Asleep() {
			t.Errorf("beside a stranger: %+v", w.Status(w.s))
		}
	})
}

func TestWhoeverNeedsCredentialsDoesNotStart(t *testing.T) {
	p := &program{after: driver.Running}
	m, s := manager(t, p, &answers{}, 0)
	s.Credentials, s.Driver = []string{"hf-token"}, catalog.DriverNull
	m.cfg.Drivers[s.Driver] = m.cfg.Drivers[catalog.DriverProcess]
	_, err := m.Start(t.Context(), s)
	wantFault(t, err, callv1.Code_CODE_FAILED, "chat was not started: its catalogue entry names credentials, which the null driver gives to no service")
	if starts, _ := p.count(); starts != 0 {
		t.Errorf("%d starts", starts)
	}
}
