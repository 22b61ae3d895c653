package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/engine"
	"durward.internal/services/executor/internal/health"
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clock"
)

const (
	// startPoll and maxStartPoll are the pace at which a starting service is asked.
	startPoll    = 25 * time.Millisecond
	maxStartPoll = 250 * time.Millisecond
)

// errEarly marks a program that ended while it was starting.
var errEarly = errors.New(driver.CauseExited)

// ready waits until a started service answers and is warm. One that does not is stopped again; one that still may when this process ends
// is left to the next.
func (m *Manager) ready(ctx context.Context, d Driver, s *catalog.Service, a Act) error {
	err := m.guarded(ctx, s, func() error { return m.answers(ctx, d, s, a, whole) })
	if err == nil {
		return nil
	}
	if errors.Is(err, errLeft) {
		return err
	}
	if errors.Is(err, errEarly) {
		// What is left of it is cleared away; why it ended is known already.
		if serr := m.down(context.WithoutCancel(ctx), d, s); serr != nil {
			m.cfg.Logger.ErrorContext(ctx, "what is left of a service could not be cleared", "service_id", s.ID, "error", serr)
		}
		return err
	}
	return m.undo(ctx, d, s, err)
}

// fresh is what a service that answers still lacks.
type fresh struct {
	// load: a router has loaded nothing. warm: the entry's model has answered nothing.
	load, warm bool
}

// whole is a service that was just started.
var whole = fresh{load: true, warm: true}

// answers waits until a service is healthy, has its model loaded and is warm. It ends nothing.
//
// A big model loads for minutes, so that no fixed time tells a slow start from one that hangs: a start fails when it shows no
// progress for the entry's stall_timeout_s, and in any case after start_timeout_s.
func (m *Manager) answers(ctx context.Context, d Driver, s *catalog.Service, a Act, lacks fresh) error {
	// Whoever waits is told that the start is past the driver even where there is nothing to ask.
	a.phase(progress.PhaseReady)
	ctx, cancel := context.WithDeadlineCause(ctx, time.Now().Add(s.StartTimeout()), errTimeout)
	defer cancel()
	if err := m.awaitHealth(ctx, d, s); err != nil {
		return err
	}
	if m.cfg.Engine == nil || s.Health == nil {
		return nil
	}
	if lacks.load && s.Sleep == catalog.SleepLlamaRouter && s.ServedModel() != "" {
		// A router answers with nothing loaded; it is ready when its model is.
		err := m.ours(s)
		if err == nil {
			err = m.cfg.Engine.Wake(ctx, s, nil)
		}
		if err != nil {
			return m.gaveUp(ctx, d, s, &failure{driver.CauseNoModel, err})
		}
	}
	if !lacks.warm || !s.OpenAI || s.ServedModel() == "" {
		return nil
	}
	a.phase(progress.PhaseWarm)
	return m.warm(ctx, d, s)
}

// awaitHealth waits until a service answers as often in a row as its entry wants.
func (m *Manager) awaitHealth(ctx context.Context, d Driver, s *catalog.Service) error {
	signs := m.signs(s)
	stalled := time.Now().Add(s.StallTimeout())
	pause := startPoll
	good := uint32(0)
	var last error
	for {
		status := d.Status(s)
		var mark string
		switch status.State {
		case driver.Running:
			if s.Health == nil {
				return nil
			}
			var err error
			if mark, err = m.cfg.Health.Check(ctx, s.Address(), s.Health); err == nil {
				err = m.ours(s) // a stranger's answer is none
			}
			if good++; err != nil {
				good = 0
			}
			if ctx.Err() == nil { // one that was cut off says nothing of the service
				last = err
			}
			// The answer counts only if our program is still there: it, and not a stranger, gave it.
			if good >= max(s.Health.HealthyAfter, 1) && d.Status(s).State == driver.Running {
				return nil
			}
		case driver.Starting, driver.Unknown:
			good = 0
		default:
			return ended(s, status)
		}
		if ctx.Err() == nil && signs.moved(ctx, status, mark) {
			stalled = time.Now().Add(s.StallTimeout())
		}
		switch {
		case ctx.Err() != nil:
			return over(ctx, last)
		case s.StallTimeoutS > 0 && s.StallTimeoutS < s.StartTimeoutS && time.Now().After(stalled):
			return &failure{driver.CauseStalled, fmt.Errorf("%w: %w", errStalled, orNothing(last))}
		}
		clock.Sleep(ctx, pause)
		pause = min(pause*2, maxStartPoll)
	}
}

// warm asks for one token until it comes.
func (m *Manager) warm(ctx context.Context, d Driver, s *catalog.Service) error {
	for {
		err := m.ours(s)
		if err == nil {
			err = m.cfg.Engine.Warm(ctx, s)
		}
		switch {
		case err == nil && d.Status(s).State == driver.Running:
			return nil
		case errors.Is(err, engine.ErrRefused):
			return &failure{driver.CauseNoModel, err}
		case ctx.Err() != nil, d.Status(s).State != driver.Running:
			return m.gaveUp(ctx, d, s, &failure{driver.CauseNoModel, orNothing(err)})
		}
		clock.Sleep(ctx, maxStartPoll)
	}
}

// gaveUp is why an engine did not do what was asked of it: its program may have ended, or the time is over.
func (m *Manager) gaveUp(ctx context.Context, d Driver, s *catalog.Service, why *failure) error {
	switch status := d.Status(s); {
	case status.State != driver.Running && status.State != driver.Unknown:
		return ended(s, status)
	case ctx.Err() != nil:
		return over(ctx, why)
	}
	return why
}

// over is why a start that was cut short has failed.
func over(ctx context.Context, last error) error {
	why := errLeft
	if f := new(failure); errors.As(context.Cause(ctx), &f) {
		why = f
	}
	if why == errTimeout && (errors.Is(last, health.ErrNotServed) || errors.Is(last, health.ErrContentType)) {
		why = errNoHealth
	}
	return &failure{why.cause, fmt.Errorf("%w: %w", why, orNothing(last))}
}

// ended is why a program that was starting is not there any more.
func ended(s *catalog.Service, status driver.Status) error {
	cause, err := status.Cause, errEarly
	if cause == "" || cause == driver.CauseExited {
		cause = driver.CauseExited
		if busy := driver.PortFree(s.Address()); busy != nil {
			cause, err = driver.CausePortInUse, fmt.Errorf("%w: %w", errEarly, driver.ErrPortInUse)
		}
	}
	return &failure{cause, err}
}

// errNothing stands where nothing was asked before the time was over.
var errNothing = errors.New("it was not asked yet")

func orNothing(err error) error {
	if err == nil {
		return errNothing
	}
	return err
}
