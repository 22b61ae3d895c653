package service

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clock"
)

const (
	// tick is how often the drivers are looked at for what ended by itself.
	tick = 500 * time.Millisecond
	// healthInterval is how often services are asked whether they answer, unless their entry says otherwise.
	healthInterval = 2 * time.Second
	// maxBackoff is how many times longer a service that does not answer waits to be asked again, at most.
	maxBackoff = 8
	// minChecks and maxChecks bound health checks at a time.
	minChecks = 8
	maxChecks = 256
	// settleChecks bounds checks at a time before anything is served, and settlePatience how long that waits for them: what an
	// ended unit's log says of it takes a while to read.
	settleChecks   = 64
	settlePatience = 5 * time.Second
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
func (v *verdict) hear(ok bool, h *catalog.Health) {
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

// Run checks services and follows the catalog's rules for them until ctx ends. It returns when nothing of it is under way.
func (m *Manager) Run(ctx context.Context) {
	for m.observe(ctx); clock.Every(ctx, tick); m.observe(ctx) {
	}
	m.checks.Wait()
	m.acts.Wait()
}

// Settle checks every running service once: after a restart, what sleeps is known then. It returns when that is done or has
// taken long enough; then the rest of it goes on.
func (m *Manager) Settle(ctx context.Context) {
	slots, settled := make(chan struct{}, settleChecks), make(chan struct{})
	var all sync.WaitGroup
	for _, s := range m.All() {
		u := m.instance(s.ID)
		all.Add(1)
		m.checks.Go(func() {
			defer all.Done()
			slots <- struct{}{}
			defer func() { <-slots }()
			_ = m.guarded(ctx, s, func() error { m.check(ctx, s, u); return nil })
		})
	}
	m.checks.Go(func() { all.Wait(); close(settled) })
	select {
	case <-settled:
	case <-time.After(settlePatience):
		m.cfg.Logger.WarnContext(ctx, "not every service has been looked at yet")
	}
}

// observe looks at every service once, begins the checks that are due and the rules that apply.
func (m *Manager) observe(ctx context.Context) {
	var due []overdue
	slots := 0.0
	now := time.Now()
	for _, s := range m.All() {
		u := m.instance(s.ID)
		u.mu.Lock()
		turn := u.turns
		u.mu.Unlock()
		status := m.driver(s).Status(s)
		m.tell(s, u, turn, status)
		if status.State == driver.Running {
			slots += timeout(s).Seconds() / interval(s).Seconds()
			u.mu.Lock()
			if !u.checking && !now.Before(u.due) {
				due = append(due, overdue{s, u, u.due})
			}
			u.mu.Unlock()
		}
		m.follow(ctx, s, u, status)
	}
	// As many as are under way at a time if every service takes as long as it may.
	m.queue.fill(due, min(max(int(slots)+1, minChecks), maxChecks), func(one overdue) {
		m.checks.Go(func() { m.work(ctx, one) })
	})
	m.tellGone()
}

// overdue is a service whose check is due since a moment.
type overdue struct {
	s     *catalog.Service
	u     *instance
	since time.Time
}

// queue holds the services whose checks are due, the one that has waited longest first.
type queue struct {
	mu      sync.Mutex
	waiting []overdue
	working int
}

// fill puts other services in the queue, and starts workers until there are slots of them or nothing waits.
func (q *queue) fill(due []overdue, slots int, start func(overdue)) {
	slices.SortStableFunc(due, func(a, b overdue) int { return a.since.Compare(b.since) })
	q.mu.Lock()
	q.waiting = due
	q.mu.Unlock()
	for {
		q.mu.Lock()
		full := q.working >= slots
		if !full {
			q.working++
		}
		q.mu.Unlock()
		if full {
			return
		}
		one, ok := q.next()
		if !ok {
			return
		}
		start(one)
	}
}

// next takes the next service for a worker; without one, the worker is done.
func (q *queue) next() (overdue, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) > 0 {
		one := q.waiting[0]
		q.waiting = q.waiting[1:]
		one.u.mu.Lock()
		free := !one.u.checking
		one.u.checking = true
		one.u.mu.Unlock()
		if free {
			return one, true
		}
	}
	q.working--
	return overdue{}, false
}

// work checks one service and then whatever is due.
func (m *Manager) work(ctx context.Context, one overdue) {
	for ok := true; ok; one, ok = m.queue.next() {
		_ = m.guarded(ctx, one.s, func() error { m.check(ctx, one.s, one.u); return nil })
		m.schedule(one.s, one.u)
	}
}

// interval is how often a service is asked, and timeout how long its answer may take.
func interval(s *catalog.Service) time.Duration {
	if s.Health != nil && s.Health.IntervalS > 0 {
		return time.Duration(s.Health.IntervalS) * time.Second
	}
	return healthInterval
}

func timeout(s *catalog.Service) time.Duration {
	if s.Health != nil && s.Health.TimeoutS > 0 {
		return time.Duration(s.Health.TimeoutS) * time.Second
	}
	return healthInterval
}

// schedule says when a service is checked next: one that does not answer waits ever longer, and no two at the same moment.
func (m *Manager) schedule(s *catalog.Service, u *instance) {
	pause := interval(s)
	u.mu.Lock()
	defer u.mu.Unlock()
	if s.Health != nil && u.verdict.bad() && u.verdict.failed > max(s.Health.UnhealthyAfter, 1) {
		pause *= time.Duration(min(1<<min(u.verdict.failed-max(s.Health.UnhealthyAfter, 1), 10), maxBackoff))
	}
	// A tenth to either side.
	pause += time.Duration((rand.Float64() - 0.5) * 0.2 * float64(pause)) //nolint:gosec // it spreads load and keeps no secret
	u.checking, u.due = false, time.Now().Add(pause)
}

// soon makes the next check due.
func (m *Manager) soon(u *instance) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.due = time.Time{}
}

// check asks a running service whether it answers and whether it sleeps, remembers it, and tells watchers of what changed.
func (m *Manager) check(ctx context.Context, s *catalog.Service, u *instance) {
	u.mu.Lock()
	turn := u.turns
	u.mu.Unlock()
	status := m.driver(s).Status(s)
	if status.State != driver.Running {
		m.tell(s, u, turn, status)
		return
	}
	asleep, held, asked := false, false, true
	if m.cfg.Engine != nil && sleeps(s) {
		var err error
		asleep, held, err = m.ask(ctx, s, u, status)
		asked = err == nil
	}
	definition, known := m.found(ctx, s, u)
	var err error
	if s.Health != nil && !asleep {
		_, err = m.cfg.Health.Check(ctx, s.Address(), s.Health)
	}
	if ctx.Err() != nil {
		return
	}
	u.mu.Lock()
	if u.phase == executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED && u.turns == turn {
		u.doubt = false
		if known {
			u.rules.learn(s, definition)
		}
		if asked {
			u.asleep, u.held, u.slept = asleep, held, status.Since
		}
		if !asleep {
			u.verdict.hear(err == nil, s.Health)
		}
	}
	u.mu.Unlock()
	m.tell(s, u, turn, status)
}

// found is the definition of a running service that this executor did not start: what its rule may start again. known is false
// where that is known already, or cannot be read.
func (m *Manager) found(ctx context.Context, s *catalog.Service, u *instance) (definition string, known bool) {
	u.mu.Lock()
	wanted := !u.rules.known && s.Restart.Max > 0
	u.mu.Unlock()
	if !wanted {
		return "", false
	}
	definition, err := m.Definition(ctx, s)
	return definition, err == nil
}
