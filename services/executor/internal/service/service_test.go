package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/health"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
)

// program is a driver with one program that a test moves.
type program struct {
	mu            sync.Mutex
	status        driver.Status
	starts, stops int
	busy, most    int
	startErr      error
	stopErr       error
	// after is what the program does once started.
	after driver.State
	// sightAfter, unless it is empty, is what is seen of it then.
	sightAfter driver.Status
	// took and begins are how long a start takes before it begins and while it does; a stop takes took.
	took, begins time.Duration
	// hangs, if not nil, is what a start fails with when its time is over, and not before.
	hangs error
	// said is how much it has logged.
	said          int
	definitionErr error
	panics        bool
	stopPanics    bool
	// definition is what it is now; without one it is "sha256:1". started are those that it was told to start.
	definition string
	started    []string
}

func (p *program) Status(*catalog.Service) driver.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

func (p *program) enter() {
	p.mu.Lock()
	p.busy++
	p.most = max(p.most, p.busy)
	p.mu.Unlock()
	time.Sleep(p.took) // in a bubble of synctest, which takes no time
}

func (p *program) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy--
}

func (p *program) Start(ctx context.Context, _ *catalog.Service, definition string, begin driver.Begin) error {
	if p.panics {
		panic("a fault in a driver")
	}
	if p.hangs != nil {
		p.set(driver.Status{State: driver.Starting})
		<-ctx.Done()
		return fmt.Errorf("%w: %w", p.hangs, context.Cause(ctx))
	}
	p.enter()
	defer p.leave()
	return begin(func() error {
		time.Sleep(p.begins) // in a bubble of synctest, which takes no time
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.startErr != nil {
			return p.startErr
		}
		p.starts++
		p.started = append(p.started, definition)
		p.status = driver.Status{State: p.after, Since: time.Now()}
		if p.sightAfter != (driver.Status{}) {
			p.status = p.sightAfter
		}
		return nil
	})
}

func (p *program) Stop(context.Context, *catalog.Service) (bool, error) {
	if p.stopPanics {
		panic("a fault in a driver")
	}
	p.enter()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy--
	if p.stopErr != nil {
		return false, p.stopErr
	}
	was := p.status.State == driver.Running
	if was {
		p.stops++
	}
	p.status = driver.Status{State: driver.Stopped}
	return was, nil
}

func (p *program) Definition(context.Context, *catalog.Service) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return cmp.Or(p.definition, "sha256:1"), p.definitionErr
}

func (p *program) Logs(_ context.Context, _ *catalog.Service, cursor string, lines int) (driver.Page, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	end := p.said
	if cursor != "" {
		place, err := strconv.Atoi(cursor)
		if err != nil {
			return driver.Page{}, err
		}
		end = min(place+lines, p.said)
	}
	return driver.Page{Cursor: strconv.Itoa(end), More: end < p.said}, nil
}

func (p *program) set(status driver.Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status = status
}

func (p *program) count() (starts, stops int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starts, p.stops
}

// answers is a Checker that answers healthy from a moment on.
type answers struct {
	mu    sync.Mutex
	ready time.Time
	err   error
	mark  string
	asked int
	at    netip.AddrPort
}

func (a *answers) set(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

func (a *answers) Check(ctx context.Context, at netip.AddrPort, _ *catalog.Health) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	a.at = at
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case a.err != nil:
		return a.mark, a.err
	case time.Now().Before(a.ready):
		return a.mark, errors.New("not yet")
	}
	return a.mark, nil
}

func manager(t *testing.T, p *program, a *answers, port uint32) (*Manager, *catalog.Service) {
	t.Helper()
	c, err := catalog.Parse("c.yaml", []byte("version: 1\nservices: [{id: chat, driver: process, argv: [/usr/bin/true], port: 17999, start_timeout_s: 5, health: {unhealthy_after: 1}}]\n"),
		catalog.Options{Development: true})
	must(t, err)
	s, _ := c.Lookup("chat")
	s.Port = port
	return New(Config{
		Catalog: func() *catalog.Catalog { return c }, Drivers: map[string]func() Driver{"process": Is(p)}, Health: a, Confirm: willing, Logger: slog.New(slog.DiscardHandler),
	}), s
}

// willing is a Confirm.
func willing(_ context.Context, begin func()) error {
	begin()
	return nil
}

func wantFault(t *testing.T, err error, code callv1.Code, sentence string) {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != code || f.Message != sentence {
		t.Errorf("error is %v, want %s %q", err, code, sentence)
	}
}

func TestStartWaitsForHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, a := &program{after: driver.Running}, &answers{ready: time.Now().Add(3 * time.Second)}
		m, s := manager(t, p, a, 0)
		s.BaseURL = "http://[::1]:17999/v1"
		done := make(chan error, 1)
		go func() {
			changed, err := m.Start(t.Context(), s)
			if !changed {
				err = errors.Join(err, errors.New("nothing was changed"))
			}
			done <- err
		}()
		time.Sleep(time.Second)
		if v := m.Status(s); v.State != executorv1.ServiceState_SERVICE_STATE_STARTING || !v.Running() {
			t.Errorf("meanwhile it is %v", v)
		}
		must(t, <-done)
		if v := m.Status(s); v.State != executorv1.ServiceState_SERVICE_STATE_RUNNING || !v.Healthy {
			t.Errorf("then it is %v", v)
		}
		if a.at.Addr() != netip.IPv6Loopback() {
			t.Errorf("it was asked at %s", a.at)
		}
		if changed, err := m.Start(t.Context(), s); changed || err != nil || p.starts != 1 {
			t.Errorf("starting it again: %v, %v, %d starts", changed, err, p.starts)
		}
	})
}

func TestAStartThatFailsIsUndone(t *testing.T) {
	t.Run("timeout", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, a := &program{after: driver.Running}, &answers{ready: time.Now().Add(time.Hour)}
			m, s := manager(t, p, a, 0)
			_, err := m.Start(t.Context(), s)
			wantFault(t, err, callv1.Code_CODE_FAILED, "chat did not start: the service did not become healthy in time")
			if v := m.Status(s); p.stops != 1 || v.State != executorv1.ServiceState_SERVICE_STATE_FAILED || v.Cause != driver.CauseTimeout {
				t.Errorf("%d stops, %v", p.stops, v)
			}
		})
	})
	for _, last := range []error{health.ErrNotServed, health.ErrContentType} {
		t.Run("no health check: "+last.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, a := &program{after: driver.Running}, &answers{err: fmt.Errorf("%w: %w", health.ErrStatus, last)}
				m, s := manager(t, p, a, 0)
				_, err := m.Start(t.Context(), s)
				wantFault(t, err, callv1.Code_CODE_FAILED, "chat did not start: "+driver.CauseNoHealth)
			})
		})
	}
	t.Run("stopped meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, a := &program{after: driver.Running}, &answers{ready: time.Now().Add(time.Hour)}
			m, s := manager(t, p, a, 0)
			failed := make(chan error)
			go func() {
				_, err := m.Start(t.Context(), s)
				failed <- err
			}()
			time.Sleep(time.Second)
			synctest.Wait()
			stopped := make(chan bool)
			go func() {
				changed, err := m.Stop(t.Context(), s)
				stopped <- changed && err == nil
			}()
			wantFault(t, <-failed, callv1.Code_CODE_FAILED, "chat did not start: it was stopped while it was starting")
			if !<-stopped {
				t.Error("the stop failed or says that it changed nothing")
			}
			if v := m.Status(s); v.State != executorv1.ServiceState_SERVICE_STATE_STOPPED {
				t.Errorf("afterwards: %v", v)
			}
		})
	})
	t.Run("exit", func(t *testing.T) {
		m, s := manager(t, &program{after: driver.Ended}, &answers{}, 0)
		_, err := m.Start(t.Context(), s)
		wantFault(t, err, callv1.Code_CODE_FAILED, "chat did not start: the program ended by itself")
	})
	t.Run("exit because a stranger took the port", func(t *testing.T) {
		stranger, err := net.Listen("tcp4", "127.0.0.1:0")
		must(t, err)
		defer stranger.Close()
		m, s := manager(t, &program{after: driver.Ended}, &answers{}, uint32(stranger.Addr().(*net.TCPAddr).Port))
		_, err = m.Start(t.Context(), s)
		wantFault(t, err, callv1.Code_CODE_FAILED, "chat did not start: another program listens on the service's port")
	})
	t.Run("the port was taken before", func(t *testing.T) {
		m, s := manager(t, &program{startErr: driver.ErrPortInUse}, &answers{}, 0)
		_, err := m.Start(t.Context(), s)
		wantFault(t, err, callv1.Code_CODE_CONFLICT, "chat was not started: another program listens on the service's port")
	})
	t.Run("no program", func(t *testing.T) {
		m, s := manager(t, &program{startErr: driver.ErrProgramMissing}, &answers{}, 0)
		_, err := m.Start(t.Context(), s)
		wantFault(t, err, callv1.Code_CODE_FAILED, "chat did not start: the program file is missing")
	})
	t.Run("an unexpected error stays inside", func(t *testing.T) {
		m, s := manager(t, &program{startErr: errors.New("open /secret/path: denied")}, &answers{}, 0)
		_, err := m.Start(t.Context(), s)
		wantFault(t, err, callv1.Code_CODE_FAILED, "chat did not start: the program could not be started")
	})
}

func TestStop(t *testing.T) {
	p := &program{status: driver.Status{State: driver.Running}, stopErr: driver.ErrNotStopped}
	m, s := manager(t, p, &answers{}, 0)
	_, err := m.Stop(t.Context(), s)
	wantFault(t, err, callv1.Code_CODE_FAILED, "chat did not stop: the program could not be ended")
	p.stopErr = nil
	if changed, err := m.Stop(t.Context(), s); !changed || err != nil {
		t.Errorf("stop: %v, %v", changed, err)
	}
	if changed, err := m.Stop(t.Context(), s); changed || err != nil {
		t.Errorf("stop again: %v, %v", changed, err)
	}
}

func TestStartsAndStopsOfOneServiceFollowEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{after: driver.Running, took: time.Second}
		m, s := manager(t, p, &answers{}, 0)
		var calls sync.WaitGroup
		for range 4 {
			calls.Go(func() {
				if _, err := m.Start(t.Context(), s); err != nil && Cause(err) != driver.CauseStopped {
					t.Error(err)
				}
			})
			calls.Go(func() {
				if _, err := m.Stop(t.Context(), s); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		if p.most != 1 {
			t.Errorf("%d at a time", p.most)
		}
	})
}

func TestATurnThatDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{after: driver.Running, took: time.Hour}
		m, s := manager(t, p, &answers{}, 0)
		// It holds the turn until the bubble ends; its own answer does not matter.
		go func() { _, _ = m.Start(t.Context(), s) }()
		synctest.Wait()
		began := time.Now()
		_, err := m.Start(t.Context(), s)
		wantFault(t, err, callv1.Code_CODE_CONFLICT, "chat is in the middle of another change; look at it before you ask again")
		if waited := time.Since(began); waited != max(s.StartTimeout(), s.StopTimeout()) {
			t.Errorf("it waited %s", waited)
		}
		time.Sleep(2 * time.Hour)
	})
}

// TestWhatIsNotConfirmedIsNotBegun: neither a start, nor a stop, nor the end of a start that waits for health.
func TestWhatIsNotConfirmedIsNotBegun(t *testing.T) {
	no := errors.New("halted")
	synctest.Test(t, func(t *testing.T) {
		p, a := &program{}, &answers{}
		m, s := manager(t, p, a, 0)
		var left atomic.Int32 // how many more are confirmed
		m.cfg.Confirm = func(ctx context.Context, begin func()) error {
			if left.Add(-1) < 0 {
				return no
			}
			return willing(ctx, begin)
		}
		if changed, err := m.Start(t.Context(), s); !errors.Is(err, no) || changed || p.starts != 0 {
			t.Errorf("start: %v, %v, %d starts", changed, err, p.starts)
		}
		if v := m.Status(s); v.State != executorv1.ServiceState_SERVICE_STATE_STOPPED {
			t.Errorf("a start that was not begun leaves it %v", v)
		}
		p.after, a.ready = driver.Running, time.Now().Add(3*time.Second)
		left.Store(1)
		started := make(chan error, 1)
		go func() {
			_, err := m.Start(t.Context(), s)
			started <- err
		}()
		time.Sleep(time.Second)
		if _, err := m.Stop(t.Context(), s); !errors.Is(err, no) {
			t.Errorf("stop of a start: %v", err)
		}
		if err := <-started; err != nil || p.stops != 0 {
			t.Errorf("the start was ended by what was not confirmed: %v, %d stops", err, p.stops)
		}
		if _, err := m.Stop(t.Context(), s); !errors.Is(err, no) || p.stops != 0 || m.Status(s).State != executorv1.ServiceState_SERVICE_STATE_RUNNING {
			t.Errorf("stop: %v, %d stops, %v", err, p.stops, m.Status(s))
		}
	})
}

// TestAStopThatIsHaltedHalfWay: it has ended a start, and a halt keeps it from the rest; it says what it did.
func TestAStopThatIsHaltedHalfWay(t *testing.T) {
	for _, again := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := &program{after: driver.Running}
			m, s := manager(t, p, &answers{ready: time.Now().Add(4 * time.Second)}, 0)
			confirmed := 0
			m.cfg.Confirm = func(ctx context.Context, begin func()) error {
				if confirmed++; confirmed == 3 {
					if again {
						if err := p.Start(ctx, s, "", driver.AtOnce); err != nil {
							return err
						}
					}
					return errors.New("halted")
				}
				return willing(ctx, begin)
			}
			ended := make(chan error, 1)
			go func() {
				_, err := m.Start(t.Context(), s)
				ended <- err
			}()
			time.Sleep(time.Second)
			changed, err := m.Stop(t.Context(), s)
			wantFault(t, <-ended, callv1.Code_CODE_FAILED, "chat did not start: it was stopped while it was starting")
			if again {
				wantFault(t, err, callv1.Code_CODE_FAILED, "chat was stopped while it was starting, and another start came before the rest")
			} else if !changed || err != nil {
				t.Errorf("stop: %v, %v", changed, err)
			}
		})
	}
}

func TestHealthIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, a := &program{status: driver.Status{State: driver.Running}}, &answers{}
		m, s := manager(t, p, a, 0)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { m.Run(ctx); close(ended) }()
		synctest.Wait()
		if v := m.Status(s); v.State != executorv1.ServiceState_SERVICE_STATE_RUNNING || !v.Healthy {
			t.Errorf("at first: %v", v)
		}
		a.mu.Lock()
		a.err = errors.New("refused")
		a.mu.Unlock()
		time.Sleep(healthInterval + time.Second)
		if v := m.Status(s); v.State != executorv1.ServiceState_SERVICE_STATE_UNHEALTHY || v.Cause != driver.CauseUnhealthy {
			t.Errorf("then: %v", v)
		}
		p.mu.Lock()
		p.status = driver.Status{State: driver.Ended, Cause: driver.CauseExited}
		p.mu.Unlock()
		if v := m.Status(s); v.State != executorv1.ServiceState_SERVICE_STATE_FAILED || v.Cause != driver.CauseExited {
			t.Errorf("in the end: %v", v)
		}
		stop()
		<-ended
	})
}

func TestFindAndFound(t *testing.T) {
	p := &program{status: driver.Status{State: driver.Running}}
	m, _ := manager(t, p, &answers{}, 0)
	if _, err := m.Find("chatt"); err == nil || !strings.Contains(err.Error(), "no service") {
		t.Errorf("find: %v", err)
	}
	for arguments, want := range map[string]string{
		`{"service_id":"chat"}`: "running", `{"service_id":"gone"}`: "unknown", `not JSON`: "unknown",
	} {
		if got := m.Found(t.Context(), "start_service", []byte(arguments)); got != want {
			t.Errorf("%s: %q", arguments, got)
		}
	}
}
