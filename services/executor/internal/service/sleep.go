package service

import (
	"cmp"
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
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clock"
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

func sleeps(s *catalog.Service) bool { return engine.Sleeps(s) }

// asleep asks whether the engine of what was seen to run sleeps; one that does not answer is as it was last in the same run.
func (m *Manager) asleep(ctx context.Context, s *catalog.Service, u *instance, status driver.Status) bool {
	if m.cfg.Engine == nil || !sleeps(s) {
		return false
	}
	asleep, held, err := m.ask(ctx, s, u, status)
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil && u.phase == executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED {
		u.asleep, u.held, u.slept = asleep, held, status.Since
	}
	return u.sleeps(status)
}

// ask asks the engine whether it sleeps and measures whether it holds its memory all the same.
func (m *Manager) ask(ctx context.Context, s *catalog.Service, u *instance, status driver.Status) (asleep, held bool, err error) {
	if err := m.ours(s); err != nil {
		return false, false, err
	}
	if asleep, err = m.cfg.Engine.Asleep(ctx, s); err != nil || !asleep {
		return false, false, err
	}
	now := m.measure(ctx)
	u.mu.Lock()
	believed, known := u.held, u.sleeps(status)
	u.mu.Unlock()
	free, seen := m.released(s, now, nil)
	switch {
	case seen:
		return true, !free, nil
	case known:
		return true, believed, nil
	}
	return true, m.mayHold(s, now), nil
}

// Sleep puts a running service to sleep, by the way that its entry says, and returns when its memory was seen to be free on
// every one of its GPUs: what it keeps there is at most what its sleep is counted for, or declared, and the margin. It reports whether that
// changed anything. Errors are faults; one with the cause CauseStillHeld means that the engine says that it sleeps and keeps
// its memory, and whoever needs that memory has to stop the service. What is not confirmed is not begun.
func (m *Manager) Sleep(ctx context.Context, s *catalog.Service, a Act) (changed bool, err error) {
	if m.cfg.Engine == nil || !sleeps(s) {
		return false, fault.New(callv1.Code_CODE_FAILED, s.ID+" cannot sleep: its catalogue entry says no way to")
	}
	u := m.instance(s.ID)
	if err := u.take(ctx, s); err != nil {
		return false, err
	}
	defer u.release()
	defer m.survive(ctx, s, u, driver.CauseNoSleep, &err)
	status := m.driver(s).Status(s)
	if status.State != driver.Running {
		return false, fault.New(callv1.Code_CODE_CONFLICT, s.ID+" does not run, so it cannot be put to sleep")
	}
	slept := m.asleep(ctx, s, u, status)
	// What it held before says what there is to see afterwards.
	before := m.measure(ctx)
	if !slept {
		if err := m.ours(s); err != nil {
			return false, notAsleep(s, err)
		}
		if err := m.roomInHost(s, before); err != nil {
			return false, notAsleep(s, err)
		}
	}
	if refused := a.Confirm(ctx, func() {
		if !slept {
			m.set(s, u, func(u *instance) { u.phase = executorv1.ServiceState_SERVICE_STATE_STOPPING })
		}
	}); refused != nil {
		return false, refused
	}
	if slept {
		// It slept before anybody measured, or it was seen to hold its memory: now it was measured.
		held := false
		m.set(s, u, func(u *instance) { held = u.held })
		if held {
			return false, notAsleep(s, errHeld)
		}
		return false, nil
	}
	m.drain(ctx, s, a)
	models, err := m.sleepLocked(ctx, s, a, before)
	said := err == nil || errors.Is(err, errHeld)
	m.set(s, u, func(u *instance) {
		u.phase = executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED
		u.asleep, u.held, u.slept = said, errors.Is(err, errHeld), status.Since
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

func notAsleep(s *catalog.Service, err error) error {
	why := failed(err)
	if why.cause != driver.CauseStillHeld && why.cause != driver.CauseHostMemory && why.cause != driver.CausePortInUse {
		why = &failure{driver.CauseNoSleep, err}
	}
	return fault.New(callv1.Code_CODE_FAILED, s.ID+" did not go to sleep: "+why.cause, fault.WithCause(why))
}

// sleepLocked asks the engine and measures.
func (m *Manager) sleepLocked(ctx context.Context, s *catalog.Service, a Act, before gpu.Host) ([]string, error) {
	a.phase(progress.PhaseSleep)
	asking, cancel := context.WithTimeout(ctx, sleepPatience)
	defer cancel()
	models, err := m.cfg.Engine.Sleep(asking, s)
	if err != nil {
		return nil, err
	}
	a.phase(progress.PhaseVerify)
	for deadline := time.Now().Add(verifyPatience); ; {
		if free, _ := m.released(s, m.measure(ctx), &before); free {
			return models, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return models, errHeld
		}
		clock.Sleep(ctx, verifyInterval)
	}
}

func (m *Manager) measure(ctx context.Context) gpu.Host {
	if m.cfg.GPUs == nil {
		return gpu.Host{}
	}
	return m.cfg.GPUs.Read(ctx)
}

// released reports whether the service is seen to hold no more, on any of its GPUs, than a sleeping one may (keeps). Where the GPU
// driver does not tell which program holds what, the GPU as a whole must have become freer than before by what the service gave
// up (awake less keeps); without a measurement from before nothing is seen, and free is true. A simulated GPU holds what is declared, so there is
// nothing to see. On a GPU that its engine does not see it holds what its programs are told to hold, and nothing else there is its own.
func (m *Manager) released(s *catalog.Service, now gpu.Host, before *gpu.Host) (free, seen bool) {
	seen = true
	visible := s.Visible()
	for _, index := range s.GPUs {
		awake, asleep := m.awake(s, index), m.keeps(s, index)
		g, ok := now.Find(index)
		switch {
		case !ok || g.Problem != "":
			return false, true
		case g.Simulated:
			continue
		}
		switch held := g.ServiceMiB(s.ID); {
		case held > asleep+m.cfg.MarginMiB:
			return false, true
		case held > 0, !slices.Contains(visible, index), unclaimed(g, s.ID) <= asleep+m.cfg.MarginMiB:
			continue
		case before == nil:
			seen = false
			continue
		}
		was, ok := before.Find(index)
		switch {
		case !ok || was.Problem != "":
			return false, true
		case was.ServiceMiB(s.ID) > 0:
			continue // it is attributed, and is seen to hold little now
		case awake == 0 && g.Used+m.cfg.MarginMiB >= was.Used:
			return false, true // nobody knows how much there is to see, and there is nothing
		case g.Used+awake > was.Used+asleep+m.cfg.MarginMiB:
			return false, true
		}
	}
	return true, seen
}

// awake is what the service takes of a GPU while it runs, in MiB, as everybody counts it; 0: nobody knows.
func (m *Manager) awake(s *catalog.Service, index uint32) uint32 {
	if m.cfg.Sizes == nil {
		return catalog.Share(s.VRAMMiB, len(s.GPUs))
	}
	return m.cfg.Sizes.Awake(s)[index]
}

// keeps is the most that it may keep of a GPU in its sleep, in MiB: what is declared, or what everybody counts it for, if that is more.
func (m *Manager) keeps(s *catalog.Service, index uint32) uint32 {
	declared := catalog.Share(s.SleepMiB, len(s.Visible()))
	if m.cfg.Sizes == nil {
		return declared
	}
	return max(declared, m.cfg.Sizes.Asleep(s)[index])
}

// unclaimed is what is used on the GPU beyond what other services' programs are measured to use.
func unclaimed(g gpu.Device, id string) uint32 {
	used := g.Used
	for _, p := range g.Processes {
		if p.Service != "" && p.Service != id {
			used -= min(used, p.MiB)
		}
	}
	return used
}

// mayHold reports whether a service that was found asleep may hold all that it holds awake, by what nobody else is known to.
func (m *Manager) mayHold(s *catalog.Service, now gpu.Host) bool {
	return slices.ContainsFunc(s.Visible(), func(index uint32) bool {
		g, ok := now.Find(index)
		return !ok || !g.Simulated && g.ServiceMiB(s.ID) == 0 && unclaimed(g, s.ID) >= m.awake(s, index)
	})
}

// grown reports whether memory is used on the service's GPUs that was not, and that may be the service's.
func (m *Manager) grown(s *catalog.Service, was, now gpu.Host) bool {
	return slices.ContainsFunc(s.Visible(), func(index uint32) bool {
		before, ok := was.Find(index)
		after, still := now.Find(index)
		if !ok || !still {
			return true
		}
		return !after.Simulated && after.ServiceMiB(s.ID) == 0 && unclaimed(after, s.ID) > unclaimed(before, s.ID)+m.cfg.MarginMiB
	})
}

// roomInHost reports as an error that the host's memory does not hold what vLLM's level 1 copies there, its weights, which may be less
// than what it gives up: a host without memory ends programs of its own choice. Weights that are only estimated are taken for a
// quarter of that at least. Level 2 and a llama-server forget instead.
func (m *Manager) roomInHost(s *catalog.Service, now gpu.Host) error {
	if s.Sleep != catalog.SleepVLLM1 {
		return nil
	}
	var moves uint64
	for _, index := range s.GPUs {
		g, ok := now.Find(index)
		if !ok || g.Simulated {
			continue
		}
		holds := cmp.Or(g.ServiceMiB(s.ID), m.awake(s, index))
		moves += uint64(holds - min(holds, m.keeps(s, index)))
	}
	if moves == 0 {
		return nil
	}
	if m.cfg.HostAsleep != nil {
		if known := uint64(m.cfg.HostAsleep(s)); known > 0 {
			moves = min(moves, max(known, moves/4))
		}
	}
	available, err := m.host.available()
	if err != nil || available < moves {
		return &failure{driver.CauseHostMemory, fmt.Errorf("%d MiB are available of %d: %w", available, moves, orNothing(err))}
	}
	return nil
}

// Wake wakes a sleeping service, by the way that its entry says, and returns when it is healthy and warm. It reports whether that
// changed anything. Errors are faults; a service that could not be woken is left as it is. What is not confirmed is not begun.
func (m *Manager) Wake(ctx context.Context, s *catalog.Service, a Act) (bool, error) {
	return m.wake(ctx, s, a, nil)
}

func (m *Manager) wake(ctx context.Context, s *catalog.Service, a Act, admit admission) (changed bool, err error) {
	if m.cfg.Engine == nil || !sleeps(s) {
		return false, fault.New(callv1.Code_CODE_FAILED, s.ID+" does not sleep: its catalogue entry says no way to")
	}
	u := m.instance(s.ID)
	if err := u.take(ctx, s); err != nil {
		return false, err
	}
	defer u.release()
	defer m.survive(ctx, s, u, driver.CauseNoWake, &err)
	status := m.driver(s).Status(s)
	if status.State != driver.Running {
		return false, fault.New(callv1.Code_CODE_CONFLICT, s.ID+" does not run, so it cannot be woken; start it")
	}
	if !m.asleep(ctx, s, u, status) {
		return false, a.Confirm(ctx, func() {})
	}
	return m.wakeUp(ctx, s, u, a, admit)
}

// wakeUp wakes a service whose turn is taken and that sleeps.
func (m *Manager) wakeUp(ctx context.Context, s *catalog.Service, u *instance, a Act, admit admission) (bool, error) {
	if admit != nil {
		if err := admit(ctx, s); err != nil {
			return false, err
		}
	}
	if err := m.ours(s); err != nil {
		return false, notAwake(s, failed(err))
	}
	before := m.measure(ctx)
	var models []string
	var ended error
	if refused := a.Confirm(ctx, func() {
		if ended = ctx.Err(); ended != nil {
			return
		}
		m.set(s, u, func(u *instance) {
			u.phase, u.verdict, models = executorv1.ServiceState_SERVICE_STATE_STARTING, verdict{}, u.models
		})
	}); cmp.Or(refused, ended) != nil {
		return false, cmp.Or(refused, ended)
	}
	a.phase(progress.PhaseWake)
	asking, cancel := context.WithTimeout(ctx, s.StartTimeout())
	err := m.guarded(ctx, s, func() error {
		if err := m.cfg.Engine.Wake(asking, s, models); err != nil {
			return err
		}
		// A router loads what it had loaded, which may not be the entry's own model.
		return m.answers(ctx, m.driver(s), s, a, fresh{warm: len(models) == 0 || slices.Contains(models, s.ServedModel())})
	})
	cancel()
	asleep, held := false, false
	if err != nil {
		asleep, held = m.halfAwake(ctx, s, u, before)
	}
	m.set(s, u, func(u *instance) {
		u.phase = executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED
		u.verdict = verdict{known: true, healthy: err == nil}
		u.asleep, u.held = asleep, held
		if err == nil {
			u.models = nil
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
	if errors.Is(context.Cause(ctx), errStopped) {
		why = errStopped
	}
	return false, notAwake(s, why)
}

func notAwake(s *catalog.Service, why *failure) error {
	return fault.New(callv1.Code_CODE_FAILED, fmt.Sprintf("%s did not wake: %s", s.ID, why.cause), fault.WithCause(why))
}

// halfAwake says how a service is that did not wake: it sleeps only if its engine says so and its memory does too. An engine that
// does not answer may hold everything by now.
func (m *Manager) halfAwake(ctx context.Context, s *catalog.Service, u *instance, before gpu.Host) (asleep, held bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), verifyPatience)
	defer cancel()
	asleep, held = true, true
	_ = m.guarded(ctx, s, func() error {
		says, holds, err := m.ask(ctx, s, u, m.driver(s).Status(s))
		if err == nil {
			asleep, held = says, says && (holds || m.grown(s, before, m.measure(ctx)))
		}
		return err
	})
	return asleep, held
}
