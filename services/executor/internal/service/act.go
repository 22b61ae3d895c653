package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/lease"
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/telemetry/span"
)

// Start is what start_service does: StartLocked under a lease of the service's GPUs, if it fits and what it depends on runs.
func (m *Manager) Start(ctx context.Context, s *catalog.Service) (bool, error) {
	of := 2
	if s.OpenAI && m.cfg.Engine != nil {
		of = 3
	}
	return m.tracked(ctx, s, of, func(a Act) (bool, error) {
		return m.wanting(ctx, s, "start", func(ctx context.Context) (bool, error) {
			return m.loading(ctx, s, func() (bool, error) { return m.startLocked(ctx, s, a, m.Admissible) })
		})
	})
}

// Stop is what stop_service does: it ends starts and wakes of the service that were asked for before, wherever they are, and then is
// StopLocked, unless a switch has the host.
func (m *Manager) Stop(ctx context.Context, s *catalog.Service) (bool, error) {
	return m.tracked(ctx, s, 0, func(a Act) (bool, error) {
		// While it waits nothing begins to load on the service's GPUs, and no switch begins.
		release, err := m.cfg.Leases.Releasing(s, false)
		if err != nil {
			return false, notNow(s, err)
		}
		defer release()
		u, abandoned := m.instance(s.ID), false
		if u.starting() {
			if refused := a.Confirm(ctx, func() { abandoned = u.abandon() }); refused != nil {
				return false, refused
			}
		}
		// It waits for another service's load on the same GPU, whose measurement a release would spoil, but no longer than a stop may last:
		// whoever wants a service stopped gets it.
		take := func(patient bool) (func(), error) { return m.cfg.Leases.Releasing(s, patient) }
		return m.leased(ctx, s, s.StopTimeout(), take, func() (bool, error) { return m.stopLocked(ctx, s, a, abandoned) })
	})
}

// SleepService is what sleep_service does: Sleep under a lease of the service's GPUs.
func (m *Manager) SleepService(ctx context.Context, s *catalog.Service) (bool, error) {
	return m.tracked(ctx, s, 0, func(a Act) (bool, error) {
		return m.loading(ctx, s, func() (bool, error) { return m.Sleep(ctx, s, a) })
	})
}

// WakeService is what wake_service does: Wake under a lease of the service's GPUs, if it fits.
func (m *Manager) WakeService(ctx context.Context, s *catalog.Service) (bool, error) {
	return m.tracked(ctx, s, 0, func(a Act) (bool, error) {
		return m.wanting(ctx, s, "wake", func(ctx context.Context) (bool, error) {
			return m.loading(ctx, s, func() (bool, error) { return m.wake(ctx, s, a, m.Admissible) })
		})
	})
}

// Admissible is why a service cannot be started or woken now; nil: it can. Starting and waking ask it, and so do approvers beforehand.
func (m *Manager) Admissible(ctx context.Context, s *catalog.Service) error {
	for _, id := range s.DependsOn {
		needed, ok := m.cfg.Catalog().Lookup(id)
		if !ok || !m.Status(needed).Up() {
			return fault.New(callv1.Code_CODE_CONFLICT, s.ID+" was not started: it depends on "+id+", which does not run")
		}
	}
	for _, other := range m.All() {
		if s.SharesPort(other) && m.Status(other).Holds() {
			return fault.New(callv1.Code_CODE_CONFLICT, fmt.Sprintf("%s was not started: its port, %d, is that of %s, which is not stopped", s.ID, s.Port, other.ID))
		}
	}
	if m.cfg.Admit == nil {
		return nil
	}
	return m.cfg.Admit(ctx, s)
}

// Dependents returns the ids of running services that depend on the service.
func (m *Manager) Dependents(s *catalog.Service) []string {
	var out []string
	for _, other := range m.All() {
		if slices.Contains(other.DependsOn, s.ID) && m.Status(other).Running() {
			out = append(out, other.ID)
		}
	}
	return out
}

// loading acts under a lease of the service's GPUs, for which it waits as long as a load on them may last.
func (m *Manager) loading(ctx context.Context, s *catalog.Service, act func() (bool, error)) (bool, error) {
	return m.leased(ctx, s, s.StartTimeout(), func(bool) (func(), error) { return m.cfg.Leases.Loading(s) }, act)
}

// leased acts under a lease. While take says that something else has it, it waits; when patience is over it asks once more, and
// says so.
func (m *Manager) leased(
	ctx context.Context, s *catalog.Service, patience time.Duration, take func(patient bool) (func(), error), act func() (bool, error),
) (bool, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for patient := true; ; {
		changed := m.cfg.Leases.Changed()
		release, err := take(patient)
		switch {
		case err == nil:
			defer release()
			return act()
		case !patient || !errors.Is(err, lease.ErrBusy):
			return false, notNow(s, err)
		}
		select {
		case <-changed:
		case <-timer.C:
			patient = false
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

func notNow(s *catalog.Service, err error) error {
	sentence := "nothing was done to " + s.ID + ": another service is being started on one of its GPUs"
	if errors.Is(err, lease.ErrSwitching) {
		sentence = "nothing was done to " + s.ID + ": a switch of modes is going on"
	}
	return fault.New(callv1.Code_CODE_CONFLICT, sentence, fault.WithCause(err), fault.WithRetry(10*time.Second))
}

// tracked carries a change out under the tools' confirmation, and reports its phases to those who watch the operation; of is how many there
// are if all goes well, 0 where that is not known before.
func (m *Manager) tracked(ctx context.Context, s *catalog.Service, of int, act func(Act) (bool, error)) (bool, error) {
	var step progress.Step
	var began time.Time
	end := func(cause string) {
		if step.Number > 0 {
			step.Elapsed, step.Ended, step.Cause = time.Since(began), true, cause
			progress.Tell(ctx, step)
		}
	}
	changed, err := act(Act{Confirm: m.cfg.Confirm, Late: m.cfg.Late, Phase: func(phase string) {
		end("")
		began = time.Now()
		step = progress.Step{Number: step.Number + 1, Of: max(of, step.Number+1), Phase: phase, Service: s.ID}
		if of == 0 {
			step.Of = 0
		}
		progress.Tell(ctx, step)
	}})
	end(Cause(err))
	return changed, err
}

// start is the driver's Start with its span: what touches the host.
func start(ctx context.Context, d Driver, s *catalog.Service, definition string, begin driver.Begin) error {
	ctx, traced := span.Start(ctx, span.DriverStart, trace.SpanKindInternal)
	err := d.Start(ctx, s, definition, begin)
	span.End(traced, err)
	return err
}

// stop is the driver's Stop with its span.
func stop(ctx context.Context, d Driver, s *catalog.Service) (bool, error) {
	ctx, traced := span.Start(ctx, span.DriverStop, trace.SpanKindInternal)
	changed, err := d.Stop(ctx, s)
	span.End(traced, err)
	return changed, err
}
