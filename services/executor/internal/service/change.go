package service

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/sink"
)

const (
	// beginPatience is how long a start may keep a halt waiting.
	beginPatience = 300 * time.Millisecond
	// drainPatience bounds how long a service may finish what it is busy with before it is stopped or sleeps.
	drainPatience = 15 * time.Second
	// sleepPatience bounds how long an engine may take to go to sleep: it copies its weights to the host's memory.
	sleepPatience = 2 * time.Minute
	// lostPatience is how long a start whose answer is lost is watched once it was stopped.
	lostPatience = 5 * time.Second
)

// Act is how a change is carried out.
type Act struct {
	// Confirm begins the change, or refuses it.
	Confirm Confirm
	// Late lets a program begin whose driver was not that far when Confirm could wait no longer, or refuses it: then nothing was
	// begun. nil: Confirm, once more. sink.Late is one.
	Late Confirm
	// Phase, if not nil, is told what is being done: the progress package's words.
	Phase func(phase string)
	// Definition is the driver's digest of what may be started; "": what the call's approval names.
	Definition string
}

// again is Late, or Confirm where there is none.
func (a Act) again() Confirm {
	if a.Late == nil {
		return a.Confirm
	}
	return a.Late
}

func (a Act) phase(name string) {
	if a.Phase != nil {
		a.Phase(name)
	}
}

// failure is why a change did not go well: a fixed sentence, and what is behind it.
type failure struct {
	cause string
	err   error
}

func (f *failure) Error() string { return f.cause + ": " + f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// Cause returns the driver package's sentence for an error of StartLocked, StopLocked, Sleep or Wake; "" for one that is no failure of the
// service, such as a change that was not confirmed.
func Cause(err error) string {
	if f := new(failure); errors.As(err, &f) {
		return f.cause
	}
	if fault.Is(err, callv1.Code_CODE_HALTED) {
		return driver.CauseHalted
	}
	return ""
}

var (
	errTimeout = &failure{driver.CauseTimeout, errors.New("start_timeout_s is over")}
	// errNoHealth takes errTimeout's place where something else than the health check answered until then.
	errNoHealth = &failure{driver.CauseNoHealth, errTimeout.err}
	errStalled  = &failure{driver.CauseStalled, errors.New("stall_timeout_s is over")}
	// errUnbegun: a Confirm is broken.
	errUnbegun = errors.New("a confirmation that began nothing and refused nothing")
	// errPanic: a driver or an engine has a fault.
	errPanic = errors.New("a panic")
	// errStopped ends a start because somebody wants the service stopped.
	errStopped = &failure{driver.CauseStopped, errors.New("a stop was asked for")}
	// errLeft: this process ends before a service that it started is ready.
	errLeft = &failure{driver.CauseLeft, errors.New("the executor ends")}
)

// failed is err as a failure; what is none already is the driver's.
func failed(err error) *failure {
	if f := new(failure); errors.As(err, &f) {
		return f
	}
	return &failure{driver.Cause(err), err}
}

// StartLocked makes a service run and returns when it is healthy and warm; one that sleeps is woken. It reports whether that changed
// anything. Errors are faults: CODE_CONFLICT when a stranger holds the port or the service's turn does not come, CODE_FAILED
// with a fixed cause otherwise; then a service that was started is stopped again. What is not confirmed is not begun.
func (m *Manager) StartLocked(ctx context.Context, s *catalog.Service, a Act) (bool, error) {
	return m.startLocked(ctx, s, a, nil)
}

// admission decides whether a service may take its GPU memory now; its error is a fault. nil: nobody asks.
type admission func(ctx context.Context, s *catalog.Service) error

// startLocked is StartLocked, with an admission that is asked once nothing but the confirmation is left to wait for.
func (m *Manager) startLocked(ctx context.Context, s *catalog.Service, a Act, admit admission) (changed bool, err error) {
	u := m.instance(s.ID)
	if err := u.take(ctx, s); err != nil {
		return false, err
	}
	defer u.release()
	defer m.survive(ctx, s, u, driver.CauseNotStarted, &err)
	d := m.driver(s)
	for {
		status := d.Status(s)
		running := status.State == driver.Running
		if running && m.asleep(ctx, s, u, status) {
			return m.wakeUp(ctx, s, u, a, admit)
		}
		if !running && admit != nil {
			if err := admit(ctx, s); err != nil {
				return false, err
			}
		}
		definition := ""
		if !running {
			if definition, err = m.mayRun(ctx, s, a); err != nil {
				return false, err
			}
		}
		started := make(chan error, 1)
		begun, died, done := false, false, false
		var ended error
		last := &beginning{m: m, ctx: ctx, service: s, late: a.again()}
		refused := a.Confirm(ctx, func() {
			begun = true
			if now := d.Status(s).State == driver.Running; now || running {
				// What ended since it was seen to run has neither been admitted nor compared with what was approved.
				running, died = now, !now
				return
			}
			if ended = ctx.Err(); ended != nil {
				return
			}
			m.set(s, u, func(u *instance) {
				u.phase, u.failure = executorv1.ServiceState_SERVICE_STATE_STARTING, ""
				u.verdict, u.asleep, u.held, u.doubt = verdict{}, false, false, false
			})
			a.phase(progress.PhaseStart)
			go func() { started <- m.launch(ctx, d, s, definition, last.begin) }()
			done = last.wait(started, &err)
		})
		switch {
		case refused != nil:
			return false, refused
		case !begun:
			return false, fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(errUnbegun))
		case died:
			continue
		case running:
			m.check(ctx, s, u)
			return false, nil
		case ended != nil:
			return false, ended
		}
		if !done {
			err = <-started
		}
		if last.refused != nil && ctx.Err() == nil {
			m.set(s, u, func(u *instance) { u.phase = executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED })
			return false, last.refused
		}
		return m.settled(ctx, d, s, u, a, definition, err)
	}
}

// wanting carries a start or wake out until the next stop of the service, which ends it even where it has not had its turn yet.
func (m *Manager) wanting(ctx context.Context, s *catalog.Service, what string, act func(context.Context) (bool, error)) (bool, error) {
	u := m.instance(s.ID)
	ctx, end := context.WithCancelCause(ctx)
	u.mu.Lock()
	u.wanted[ctx] = end
	u.mu.Unlock()
	defer func() {
		u.mu.Lock()
		delete(u.wanted, ctx)
		u.mu.Unlock()
		end(nil)
	}()
	changed, err := act(ctx)
	if err != nil && Cause(err) == "" && errors.Is(context.Cause(ctx), errStopped) {
		err = fault.New(callv1.Code_CODE_FAILED, s.ID+" did not "+what+": "+errStopped.cause, fault.WithCause(errStopped))
	}
	return changed, err
}

// settled follows a start that was begun to its end. err is the driver's answer.
func (m *Manager) settled(ctx context.Context, d Driver, s *catalog.Service, u *instance, a Act, definition string, err error) (bool, error) {
	switch {
	case err == nil:
		err = m.ready(ctx, d, s, a)
	case ctx.Err() != nil || !definite(err):
		err = m.undo(ctx, d, s, err)
	}
	cause := ""
	if err != nil {
		cause = failed(err).cause
	}
	doubt := errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrNotStopped)
	m.set(s, u, func(u *instance) {
		u.phase, u.failure = executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED, cause
		u.verdict = verdict{known: err == nil, healthy: err == nil}
		u.doubt = doubt
		u.rules.ran(err == nil, time.Now())
		if err == nil {
			u.rules.learn(s, definition)
		}
	})
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, driver.ErrChanged):
		return false, changedSince(s)
	case errors.Is(err, driver.ErrPortInUse) && !errors.Is(err, errEarly):
		return false, fault.New(callv1.Code_CODE_CONFLICT, s.ID+" was not started: "+cause, fault.WithCause(failed(err)))
	case errors.Is(err, driver.ErrSealed):
		return false, fault.New(callv1.Code_CODE_SEALED, s.ID+" was not started: "+cause, fault.WithCause(failed(err)))
	default:
		return false, fault.New(callv1.Code_CODE_FAILED, s.ID+" did not start: "+cause, fault.WithCause(failed(err)))
	}
}

// definite reports whether a driver's error says that nothing was started, and nothing will be.
func definite(err error) bool {
	for _, known := range []error{
		driver.ErrChanged, driver.ErrPortInUse, driver.ErrProgramMissing, driver.ErrNotPermitted, driver.ErrUnitMissing,
		driver.ErrImageMissing, driver.ErrContainer, driver.ErrNoManager,
		driver.ErrSealed, driver.ErrNoCredential, driver.ErrOnlyByCall,
	} {
		if errors.Is(err, known) {
			return !errors.Is(err, driver.ErrUnknown) && !errors.Is(err, errTimeout)
		}
	}
	return false
}

// survive makes a panic of a driver, an engine or whoever confirms an error of this change, and ends its phase: what the service
// does by then is as it is seen, and in doubt until it is.
func (m *Manager) survive(ctx context.Context, s *catalog.Service, u *instance, cause string, err *error) {
	p := recover()
	if p == nil {
		return
	}
	m.panicked(ctx, s, p)
	u.mu.Lock()
	if u.phase != executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED {
		u.phase, u.doubt = executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED, true
		u.held = u.asleep
	}
	u.turns++
	u.mu.Unlock()
	m.soon(u)
	*err = fault.New(callv1.Code_CODE_FAILED, "the change of "+s.ID+" broke off: "+cause, fault.WithCause(&failure{cause, errPanic}))
}

// guarded is what act returns; a panic is an error.
func (m *Manager) guarded(ctx context.Context, s *catalog.Service, act func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			m.panicked(ctx, s, p)
			err = errPanic
		}
	}()
	return act()
}

func (m *Manager) panicked(ctx context.Context, s *catalog.Service, p any) {
	m.cfg.Logger.ErrorContext(ctx, "a driver or engine panicked", "service_id", s.ID, "driver", s.Driver, "panic", fmt.Sprint(p),
		"stack", string(debug.Stack()))
}

// mayRun returns the definition of what would be started, if that is what may be.
func (m *Manager) mayRun(ctx context.Context, s *catalog.Service, a Act) (string, error) {
	if len(s.Credentials) > 0 && s.Driver == catalog.DriverNull {
		return "", fault.New(callv1.Code_CODE_FAILED, s.ID+" was not started: its catalogue entry names credentials, which the "+s.Driver+" driver gives to no service")
	}
	definition, err := m.Definition(ctx, s)
	if err != nil {
		return "", fault.New(callv1.Code_CODE_FAILED, s.ID+" did not start: "+driver.Cause(err), fault.WithCause(failed(err)))
	}
	approved := sink.Subject(ctx)
	same := true
	switch {
	case a.Definition != "":
		same = a.Definition == definition
	case definition != "" && approved != nil:
		entry, err := s.Subject(definition)
		if err != nil {
			return "", err
		}
		digest := sha256.Sum256(entry)
		same = bytes.Equal(approved, digest[:])
	}
	if !same {
		return "", changedSince(s)
	}
	return definition, nil
}

// changedSince is the fault of a start of what nobody approved.
func changedSince(s *catalog.Service) error {
	return fault.New(callv1.Code_CODE_CONFLICT, s.ID+" was not started: "+driver.CauseChanged,
		fault.WithCause(&failure{driver.CauseChanged, driver.ErrChanged}))
}

// launch starts the service unless its manager is at that already. A panic of the driver is a failure of this start. A manager may wait
// without end: systemd does for what a unit needs first.
func (m *Manager) launch(ctx context.Context, d Driver, s *catalog.Service, definition string, begin driver.Begin) error {
	return m.guarded(ctx, s, func() error {
		if d.Status(s).State == driver.Starting {
			return nil
		}
		bounded, cancel := context.WithTimeout(ctx, s.StartTimeout())
		defer cancel()
		err := start(bounded, d, s, definition, begin)
		if err != nil && bounded.Err() != nil && ctx.Err() == nil {
			return &failure{errTimeout.cause, fmt.Errorf("%w: %w", errTimeout, err)}
		}
		return err
	})
}

// undo stops what a start left, and returns why it failed: because somebody wanted it stopped, if so. A start whose answer is
// lost may come up after it was stopped, so that it is watched for a while; one that nobody has seen down by then is in doubt.
func (m *Manager) undo(ctx context.Context, d Driver, s *catalog.Service, why error) error {
	stopped := errors.Is(context.Cause(ctx), errStopped)
	ctx = context.WithoutCancel(ctx)
	if err := m.down(ctx, d, s); err != nil {
		return err
	}
	if errors.Is(why, driver.ErrUnknown) {
		for deadline := time.Now().Add(lostPatience); time.Now().Before(deadline); time.Sleep(startPoll) {
			switch d.Status(s).State {
			case driver.Running, driver.Starting:
				if err := m.down(ctx, d, s); err != nil {
					return err
				}
			}
		}
		switch d.Status(s).State {
		case driver.Stopped, driver.Ended:
			// It was seen down for as long as a lost start may take.
			why = &failure{driver.CauseUnknown, errors.New("it was stopped again")}
		default:
			return &failure{driver.CauseUnknown, why}
		}
	}
	if stopped {
		return errStopped
	}
	return why
}

// down stops what may run. Its error wraps driver.ErrNotStopped.
func (m *Manager) down(ctx context.Context, d Driver, s *catalog.Service) error {
	err := m.guarded(ctx, s, func() error {
		_, err := stop(ctx, d, s)
		return err
	})
	if err == nil {
		return nil
	}
	cause := driver.Cause(err)
	if cause == driver.CauseNotStarted {
		cause = driver.CauseNotStopped
	}
	return &failure{cause, fmt.Errorf("%w: %w", driver.ErrNotStopped, err)}
}

// StopLocked makes a service not run. One that is busy with requests, and tells of them, may finish them first for a while. It reports
// whether that changed anything. Errors are faults; what is not confirmed is not begun.
func (m *Manager) StopLocked(ctx context.Context, s *catalog.Service, a Act) (bool, error) {
	return m.stopLocked(ctx, s, a, false)
}

// stopLocked is StopLocked. abandoned: it was confirmed once, and ended starts or wakes.
func (m *Manager) stopLocked(ctx context.Context, s *catalog.Service, a Act, abandoned bool) (changed bool, err error) {
	u := m.instance(s.ID)
	d := m.driver(s)
	if err := u.take(ctx, s); err != nil {
		return false, err
	}
	defer u.release()
	defer m.survive(ctx, s, u, driver.CauseNotStopped, &err)
	busy := m.serving(s)
	// Ending a program takes as long as it takes, so only the decision is made while a halt would wait.
	refused := a.Confirm(ctx, func() {
		m.set(s, u, func(u *instance) { u.phase = executorv1.ServiceState_SERVICE_STATE_STOPPING })
	})
	switch {
	case refused != nil && !abandoned:
		return false, refused
	case refused != nil && d.Status(s).State == driver.Running:
		return false, fault.New(callv1.Code_CODE_FAILED, s.ID+" was stopped while it was starting, and another start came before the rest",
			fault.WithCause(refused))
	case refused != nil:
		m.set(s, u, func(u *instance) { u.rules.stopped() })
		return true, nil
	}
	if busy {
		m.drain(ctx, s, a)
	}
	if d.Status(s).State != driver.Stopped { // the driver is asked all the same, as it may know better by then
		a.phase(progress.PhaseStop)
	}
	changed, err = stop(ctx, d, s)
	m.set(s, u, func(u *instance) {
		u.phase = executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED
		if err == nil {
			u.failure, u.verdict, u.asleep, u.held, u.doubt, u.models = "", verdict{}, false, false, false, nil
			u.rules.stopped()
		}
	})
	if err != nil {
		return false, fault.New(callv1.Code_CODE_FAILED, s.ID+" did not stop: "+driver.Cause(err), fault.WithCause(failed(err)))
	}
	return changed || abandoned, nil
}

// serving reports whether a service may be busy with requests that it can tell of.
func (m *Manager) serving(s *catalog.Service) bool {
	return m.cfg.Engine != nil && talks(s) && m.Status(s).Healthy
}

// talks reports whether the entry's program is a model server, which may be asked what such servers are asked.
func talks(s *catalog.Service) bool {
	return s.Port != 0 && (s.OpenAI || sleeps(s) || s.ExtraConfig["engine"] != "")
}

// drain lets a service finish what it is busy with.
func (m *Manager) drain(ctx context.Context, s *catalog.Service, a Act) {
	if u := m.cfg.Engine.Usage(ctx, s); !u.Told || u.Requests == 0 {
		return
	}
	a.phase(progress.PhaseDrain)
	if !m.cfg.Engine.Drain(ctx, s, drainPatience) {
		m.cfg.Logger.WarnContext(ctx, "a service is still busy with requests, which end now", "service_id", s.ID)
	}
}

// starting reports whether somebody waits for a start or wake.
func (u *instance) starting() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.wanted) > 0
}

// abandon ends the starts and wakes that somebody waits for, and reports whether there were any.
func (u *instance) abandon() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, end := range u.wanted {
		end(errStopped)
	}
	return len(u.wanted) > 0
}

// take waits for the service's turn, at most as long as one start or stop of it may last.
func (u *instance) take(ctx context.Context, s *catalog.Service) error {
	patience := time.NewTimer(max(s.StartTimeout(), s.StopTimeout()))
	defer patience.Stop()
	select {
	case u.turn <- struct{}{}:
		return nil
	case <-patience.C:
		return fault.New(callv1.Code_CODE_CONFLICT, s.ID+" is in the middle of another change; look at it before you ask again")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (u *instance) release() { <-u.turn }
