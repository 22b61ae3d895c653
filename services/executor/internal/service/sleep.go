package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/engine"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/platform/catalogue"
	"durward.internal/services/platform/fault"
)

const (
	// verifyPatience is how long GPU memory may take to be free after an engine said that it sleeps; a driver gives it back in
	// 0.5 to 1.5 s.
	verifyPatience = 10 * time.Second
	verifyInterval = 250 * time.Millisecond
)

// errHeld: the engine says that it sleeps, and its memory says otherwise.
var errHeld = &failure{driver.CauseStillHeld, errors.New("measured after the engine said that it sleeps")}

func sleeps(s *catalogue.Service) bool { return engine.Sleeps(s) }

// asleep asks whether the service's engine sleeps; one that does not answer is as it was last.
func (m *Manager) asleep(ctx context.Context, s *catalogue.Service, u *unit) bool {
	if m.cfg.Engine == nil || !sleeps(s) {
		return false
	}
	asleep, err := m.cfg.Engine.Asleep(ctx, s)
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil && u.phase == executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED {
		u.asleep = asleep
	}
	return u.asleep
}

// Sleep puts a running service to sleep, by the way that its entry says, and returns when its memory was seen to be free on
// every one of its GPUs: what it keeps there is at most what it declares for its sleep and the margin. It reports whether that
// changed anything. Errors are faults; one with the cause CauseStillHeld means that the engine says that it sleeps and keeps
// its memory, and whoever needs that memory has to stop the service. What is not confirmed is not begun.
func (m *Manager) Sleep(ctx context.Context, s *catalogue.Service, a Act) (bool, error) {
	if m.cfg.Engine == nil || !sleeps(s) {
		return false, fault.New(callv1.Code_CODE_FAILED, s.ID+" cannot sleep: its catalogue entry says no way to")
	}
	u := m.unit(s.ID)
	if err := u.take(ctx, s); err != nil {
		return false, err
	}
	defer u.release()
	d := m.driver(s)
	if d.Look(s).State != driver.Running {
		return false, fault.New(callv1.Code_CODE_CONFLICT, s.ID+" does not run, so it cannot be put to sleep")
	}
	slept := m.asleep(ctx, s, u)
	// What it held before says what there is to see afterwards.
	before := m.measure(ctx)
	if refused := a.Confirm(ctx, func() {
		if !slept {
			m.set(s, u, func(u *unit) { u.phase = executorv1.ServiceState_SERVICE_STATE_STOPPING })
		}
	}); refused != nil {
		return false, refused
	}
	if slept {
		// It slept before anybody measured, or it was seen to hold its memory: now it is measured.
		held := !m.released(s, before, nil)
		m.set(s, u, func(u *unit) { u.held = held })
		if held {
			return false, notAsleep(s, errHeld)
		}
		return false, nil
	}
	m.drain(ctx, s, a)
	models, err := m.slumber(ctx, s, a, before)
	said := err == nil || errors.Is(err, errHeld)
	m.set(s, u, func(u *unit) {
		u.phase = executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED
		u.asleep, u.held = said, errors.Is(err, errHeld)
		if said && len(models) > 0 {
			u.models = models
		}
	})
	if err != nil {
		m.soon(u)
		return false, notAsleep(s, err)
	}
	return true, nil
}

func notAsleep(s *catalogue.Service, err error) error {
	why := failed(err)
	if why.cause != driver.CauseStillHeld {
		why = &failure{driver.CauseNoSleep, err}
	}
	return fault.New(callv1.Code_CODE_FAILED, s.ID+" did not go to sleep: "+why.cause, fault.WithCause(why))
}

// slumber asks the engine and measures.
func (m *Manager) slumber(ctx context.Context, s *catalogue.Service, a Act, before gpu.Host) ([]string, error) {
	a.phase(progress.PhaseSleep)
	asking, cancel := context.WithTimeout(ctx, sleepPatience)
	defer cancel()
	models, err := m.cfg.Engine.Sleep(asking, s)
	if err != nil {
		return nil, err
	}
	a.phase(progress.PhaseVerify)
	for deadline := time.Now().Add(verifyPatience); ; {
		if m.released(s, m.measure(ctx), &before) {
			return models, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return models, errHeld
		}
		select {
		case <-ctx.Done():
		case <-time.After(verifyInterval):
		}
	}
}

func (m *Manager) measure(ctx context.Context) gpu.Host {
	if m.cfg.GPUs == nil {
		return gpu.Host{}
	}
	return m.cfg.GPUs.Read(ctx)
}

// released reports whether the service is seen to hold no more, on any of its GPUs, than a sleeping one may. Where the GPU
// driver does not tell which program holds what, the GPU as a whole must have become freer than before by what the service gave
// up; without a measurement from before, that cannot be seen. A simulated GPU holds what is declared, so there is nothing to see.
func (m *Manager) released(s *catalogue.Service, now gpu.Host, before *gpu.Host) bool {
	awake, asleep := catalogue.Share(s.VRAMMiB, len(s.GPUs)), catalogue.Share(s.SleepMiB, len(s.GPUs))
	for _, index := range s.GPUs {
		g, ok := now.Find(index)
		switch {
		case !ok || g.Problem != "":
			return false
		case g.Simulated:
			continue
		}
		held := g.ServiceMiB(s.ID)
		if held > asleep+m.cfg.MarginMiB {
			return false
		}
		if before == nil {
			continue
		}
		was, ok := before.Find(index)
		switch {
		case !ok || was.Problem != "":
			return false
		case was.ServiceMiB(s.ID) > 0:
			continue // it is attributed, and is seen to hold little now
		case g.Used+awake > was.Used+asleep+m.cfg.MarginMiB:
			return false
		}
	}
	return true
}

// Wake wakes a sleeping service, by the way that its entry says, and returns when it is healthy and warm. It reports whether that
// changed anything. Errors are faults; a service that could not be woken is left as it is. What is not confirmed is not begun.
func (m *Manager) Wake(ctx context.Context, s *catalogue.Service, a Act) (bool, error) {
	return m.wake(ctx, s, a, nil)
}

func (m *Manager) wake(ctx context.Context, s *catalogue.Service, a Act, admit admission) (bool, error) {
	if m.cfg.Engine == nil || !sleeps(s) {
		return false, fault.New(callv1.Code_CODE_FAILED, s.ID+" does not sleep: its catalogue entry says no way to")
	}
	u := m.unit(s.ID)
	if err := u.take(ctx, s); err != nil {
		return false, err
	}
	defer u.release()
	if m.driver(s).Look(s).State != driver.Running {
		return false, fault.New(callv1.Code_CODE_CONFLICT, s.ID+" does not run, so it cannot be woken; start it")
	}
	if !m.asleep(ctx, s, u) {
		return false, a.Confirm(ctx, func() {})
	}
	return m.wakeUp(ctx, s, u, a, admit)
}

// wakeUp wakes a service whose turn is taken and that sleeps.
func (m *Manager) wakeUp(ctx context.Context, s *catalogue.Service, u *unit, a Act, admit admission) (bool, error) {
	if admit != nil {
		if err := admit(ctx, s); err != nil {
			return false, err
		}
	}
	var models []string
	waiting, abandon := context.WithCancelCause(ctx)
	defer abandon(nil)
	if refused := a.Confirm(ctx, func() {
		m.set(s, u, func(u *unit) {
			u.phase, u.verdict, u.abandon, models = executorv1.ServiceState_SERVICE_STATE_STARTING, verdict{}, abandon, u.models
		})
	}); refused != nil {
		return false, refused
	}
	a.phase(progress.PhaseWake)
	asking, cancel := context.WithTimeout(waiting, s.StartTimeout())
	err := m.cfg.Engine.Wake(asking, s, models)
	cancel()
	if err == nil {
		// A router loads what it had loaded, which may not be the entry's own model.
		err = m.answers(waiting, m.driver(s), s, a, fresh{warm: len(models) == 0 || slices.Contains(models, s.ServedModel())})
	}
	m.set(s, u, func(u *unit) {
		u.phase, u.abandon = executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED, nil
		u.verdict = verdict{known: true, healthy: err == nil}
		if err == nil {
			u.asleep, u.held, u.models = false, false, nil
			u.rules.ran(true, time.Now())
		}
	})
	if err == nil {
		return true, nil
	}
	m.soon(u)
	why := &failure{driver.CauseNoWake, err}
	if f := new(failure); errors.As(err, &f) {
		why = f
	}
	if errors.Is(context.Cause(waiting), errStopped) {
		why = errStopped
	}
	return false, fault.New(callv1.Code_CODE_FAILED, fmt.Sprintf("%s did not wake: %s", s.ID, why.cause), fault.WithCause(why))
}
