package service

import (
	"context"
	"math/rand/v2"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalogue"
)

const (
	// tick is how often the drivers are looked at for what ended by itself.
	tick = 500 * time.Millisecond
	// healthInterval is how often services are asked whether they answer, unless their entry says otherwise.
	healthInterval = 2 * time.Second
	// maxBackoff is how many times longer a service that does not answer waits to be asked again, at most.
	maxBackoff = 8
	// maxChecks bounds health checks at a time.
	maxChecks = 8
)

// verdict is what the checks say of a service.
type verdict struct {
	// known: enough checks went the same way.
	known, healthy bool
	// row is how many checks in a row went against the verdict, failed how many failed in a row.
	row, failed uint32
}

func (v verdict) good() bool { return v.known && v.healthy }
func (v verdict) bad() bool  { return v.known && !v.healthy }

// hear takes in one check. The first one is the verdict; afterwards as many in a row as the entry says change it.
func (v *verdict) hear(ok bool, h *catalogue.Health) {
	if v.failed++; ok {
		v.failed = 0
	}
	switch {
	case !v.known:
		v.known, v.healthy, v.row = true, ok, 0
		return
	case ok == v.healthy:
		v.row = 0
		return
	}
	need := uint32(1)
	if h != nil {
		need = max(h.UnhealthyAfter, 1)
		if ok {
			need = max(h.HealthyAfter, 1)
		}
	}
	if v.row++; v.row >= need {
		v.healthy, v.row = ok, 0
	}
}

// Run checks services and follows the catalogue's rules for them until ctx ends. It returns when nothing of it is under way.
func (m *Manager) Run(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		m.observe(ctx)
		select {
		case <-ctx.Done():
			m.checks.Wait()
			m.acts.Wait()
			return
		case <-ticker.C:
		}
	}
}

// Settle checks every running service once and returns when that is done: after a restart, what sleeps is known then.
func (m *Manager) Settle(ctx context.Context) {
	for _, s := range m.All() {
		u := m.unit(s.ID)
		m.slots <- struct{}{}
		m.checks.Go(func() {
			defer func() { <-m.slots }()
			m.check(ctx, s, u)
		})
	}
	m.checks.Wait()
}

// observe looks at every service once, begins the checks that are due and the rules that apply.
func (m *Manager) observe(ctx context.Context) {
	for _, s := range m.All() {
		u := m.unit(s.ID)
		u.mu.Lock()
		turn := u.turns
		u.mu.Unlock()
		sight := m.driver(s).Look(s)
		m.tell(s, u, turn, sight)
		if sight.State == driver.Running && m.claim(u) {
			m.checks.Go(func() {
				defer func() { <-m.slots }()
				m.check(ctx, s, u)
				m.schedule(s, u)
			})
		}
		m.follow(ctx, s, u, sight)
	}
	m.tellGone()
}

// claim takes the right to check a service that is due, and a slot for it.
func (m *Manager) claim(u *unit) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.checking || time.Now().Before(u.due) {
		return false
	}
	select {
	case m.slots <- struct{}{}:
		u.checking = true
		return true
	default:
		return false
	}
}

// schedule says when a service is checked next: one that does not answer waits ever longer, and no two at the same moment.
func (m *Manager) schedule(s *catalogue.Service, u *unit) {
	interval := healthInterval
	if s.Health != nil && s.Health.IntervalS > 0 {
		interval = time.Duration(s.Health.IntervalS) * time.Second
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if s.Health != nil && u.verdict.bad() && u.verdict.failed > max(s.Health.UnhealthyAfter, 1) {
		interval *= time.Duration(min(1<<min(u.verdict.failed-max(s.Health.UnhealthyAfter, 1), 10), maxBackoff))
	}
	// A tenth to either side.
	interval += time.Duration((rand.Float64() - 0.5) * 0.2 * float64(interval)) //nolint:gosec // it spreads load and keeps no secret
	u.checking, u.due = false, time.Now().Add(interval)
}

// soon makes the next check due.
func (m *Manager) soon(u *unit) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.due = time.Time{}
}

// check asks a running service whether it answers and whether it sleeps, remembers it, and tells watchers of what changed.
func (m *Manager) check(ctx context.Context, s *catalogue.Service, u *unit) {
	u.mu.Lock()
	turn := u.turns
	u.mu.Unlock()
	sight := m.driver(s).Look(s)
	if sight.State != driver.Running {
		m.tell(s, u, turn, sight)
		return
	}
	asleep, held, asked := false, false, true
	if m.cfg.Engine != nil && sleeps(s) {
		var err error
		if asleep, err = m.cfg.Engine.Asleep(ctx, s); err != nil {
			asked = false
		} else if asleep {
			held = !m.released(s, m.measure(ctx), nil)
		}
	}
	var err error
	if s.Health != nil && !asleep {
		_, err = m.cfg.Health.Check(ctx, s.Port, s.Health)
	}
	if ctx.Err() != nil {
		return
	}
	u.mu.Lock()
	if u.phase == executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED && u.turns == turn {
		if asked {
			u.asleep, u.held = asleep, held
		}
		if !asleep {
			u.verdict.hear(err == nil, s.Health)
		}
	}
	u.mu.Unlock()
	m.tell(s, u, turn, sight)
}
