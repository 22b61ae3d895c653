package service

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
)

// What is done by rule, as records say it.
const (
	RuleRestart   = "restart: it ended by itself"
	RuleIdleSleep = "sleep: nobody used it"
	RuleIdleStop  = "stop: nobody used it"
)

const (
	// ruleBackoff is how long a rule that could not act waits, doubled each time up to maxRuleBackoff.
	ruleBackoff    = time.Second
	maxRuleBackoff = time.Minute
	// minUseInterval and maxUseInterval bound how often it is looked whether anybody uses a service with an idle rule: ten times
	// within what its entry calls idle.
	minUseInterval = time.Second
	maxUseInterval = 5 * time.Second
)

// ruling is what the rules remember of a service.
type ruling struct {
	// acting: a rule is changing it.
	acting bool
	// live: it was seen to run, or was started, and nobody stopped it since. What ended before anybody saw it run is left alone.
	live bool
	// times are the newest restarts within the entry's window, the oldest first.
	times    []time.Time
	restarts uint32
	// again: the newest restart failed, so that there is nothing left that could end; another may be tried.
	again bool
	// definition is what was started when it was started last, or found when it was first seen to run, and runs what its entry said of
	// it then; known: they are.
	definition, runs string
	known            bool
	// began is when it was started or woken.
	began time.Time
	// spent: it ended more often than the entry allows. changed: the newest restart was refused, since the entry says something else now.
	spent, changed bool
	// next is when a rule may act again, and wait how long it waited before that.
	next time.Time
	wait time.Duration

	// used is when the service was last seen in use, served the engine's own count then, and asked when it was looked for.
	used, asked time.Time
	served      float64
}

// ran notes that a start ended; one that went well makes the service live.
func (r *ruling) ran(well bool, now time.Time) {
	switch {
	case r.acting:
		r.again = !well
	case well:
		r.live, r.again, r.spent, r.times = true, false, false, nil
	default:
		r.live, r.again = false, false
	}
	r.changed = false
	if well {
		r.used, r.began, r.wait, r.next = now, now, 0, time.Time{}
	}
}

// learn notes what may be started again.
func (r *ruling) learn(s *catalog.Service, definition string) {
	r.definition, r.runs, r.known = definition, s.Runs(), true
}

// stopped notes that somebody stopped the service.
func (r *ruling) stopped() { *r = ruling{acting: r.acting, restarts: r.restarts} }

// later puts the rule off.
func (r *ruling) later(now time.Time) {
	r.wait = min(max(r.wait*2, ruleBackoff), maxRuleBackoff)
	r.next = now.Add(r.wait)
}

// follow begins what the entry's rules say of a service that looks so. It does not wait.
func (m *Manager) follow(ctx context.Context, s *catalog.Service, u *instance, status driver.Status) {
	if m.cfg.Rule == nil || m.cfg.Proceed == nil {
		return
	}
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	r := &u.rules
	if r.acting || u.phase != executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED || ctx.Err() != nil {
		return
	}
	waits := now.Before(r.next)
	switch {
	case status.State == driver.Running:
		if !r.live {
			r.live, r.used, r.began = true, now, status.Since
		}
		if s.Idle == nil || s.Pin || u.sleeps(status) && s.Idle.Action != "stop" {
			r.used = now // nobody looks whether it is used, so that it was idle is known from here on
			return
		}
		if now.Before(r.asked.Add(useInterval(s.Idle))) {
			return
		}
		r.asked, r.acting = now, true
		m.acts.Go(func() { m.release(ctx, s, u, waits) })
	case status.State == driver.Ended, status.State == driver.Stopped && r.again:
		if !r.live || s.Restart.Max == 0 || r.spent || waits {
			return
		}
		r.acting = true
		m.acts.Go(func() { m.restart(ctx, s, u) })
	}
}

func useInterval(i *catalog.Idle) time.Duration {
	return min(max(time.Duration(i.AfterS)*time.Second/10, minUseInterval), maxUseInterval)
}

// rest ends a rule's turn. later: it could not act and waits.
func (u *instance) rest(later bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rules.acting = false
	if later {
		u.rules.later(time.Now())
	}
}

// live reports whether the service was seen to run, or was started, and nobody stopped it since.
func (u *instance) live() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.rules.live
}

// restart starts a service that ended by itself, as often as its entry allows.
func (m *Manager) restart(ctx context.Context, s *catalog.Service, u *instance) {
	now := time.Now()
	u.mu.Lock()
	window := time.Duration(s.Restart.WithinS) * time.Second
	u.rules.times = slices.DeleteFunc(u.rules.times, func(t time.Time) bool { return now.Sub(t) > window })
	u.rules.spent = uint32(len(u.rules.times)) >= s.Restart.Max
	spent, ruledOut, definition, runs, known := u.rules.spent, u.rules.changed, u.rules.definition, u.rules.runs, u.rules.known
	u.mu.Unlock()
	if !known {
		u.rest(true)
		return
	}
	if spent {
		m.cfg.Logger.WarnContext(ctx, "a service ended by itself too often and is not started again", "service_id", s.ID)
		m.set(s, u, func(*instance) {})
		u.rest(false)
		return
	}
	release, err := m.cfg.Leases.Loading(s)
	if err != nil {
		u.rest(true)
		return
	}
	defer release()
	r := &byRule{m: m, service: s, what: RuleRestart, begun: func() {
		u.mu.Lock()
		u.rules.times = append(u.rules.times, time.Now())
		u.rules.restarts++
		u.mu.Unlock()
	}}
	if err = changedSince(s); runs == s.Runs() {
		act := Act{Confirm: func(ctx context.Context, begin func()) error {
			// A stop may have had the turn first: what was stopped stays stopped.
			if !u.live() {
				return errStopped
			}
			var lost error
			err := r.confirm(ctx, func() {
				// The catalog may be another since the rule was followed.
				if _, same := leads(m.cfg.Catalog(), s); !same {
					lost = changedSince(s)
					return
				}
				begin()
			})
			return cmp.Or(err, lost)
		}, Late: r.late, Definition: definition}
		_, err = m.wanting(ctx, s, "start", func(ctx context.Context) (bool, error) { return m.startLocked(ctx, s, act, m.Admissible) })
	}
	r.outcome(ctx, err)
	if changed := errors.Is(err, driver.ErrChanged); changed != ruledOut {
		m.set(s, u, func(u *instance) { u.rules.changed = changed })
	}
	u.rest(err != nil)
}

// release puts a service to sleep, or stops it, that nobody has used for as long as its entry says. waits: the rule was put off, and looks
// all the same whether the service is used.
func (m *Manager) release(ctx context.Context, s *catalog.Service, u *instance, waits bool) {
	if !m.idle(ctx, s, u) || waits {
		u.rest(false)
		return
	}
	// Nothing is released on a GPU on which another service loads: it would spoil that one's measurement of free memory.
	release, err := m.cfg.Leases.Loading(s)
	if err != nil {
		u.rest(true)
		return
	}
	defer release()
	what, act := RuleIdleSleep, m.Sleep
	if s.Idle.Action == "stop" {
		what, act = RuleIdleStop, m.StopLocked
	}
	r := &byRule{m: m, service: s, what: what, begun: func() {}}
	_, err = act(ctx, s, Act{Confirm: r.confirm})
	r.outcome(ctx, err)
	u.rest(err != nil)
}

// byRule is how a rule acts: recorded first, unless the sink is halted.
type byRule struct {
	m       *Manager
	service *catalog.Service
	what    string
	// begun is called right before something begins.
	begun    func()
	recorded bool
}

func (r *byRule) confirm(ctx context.Context, begin func()) error {
	// A halted host has nothing to record.
	if err := r.m.cfg.Proceed(func() {}); err != nil {
		return err
	}
	if !r.recorded {
		if err := r.m.cfg.Rule(ctx, r.what, r.service, Intent, nil); err != nil {
			return err
		}
		r.recorded = true
	}
	return r.m.cfg.Proceed(func() {
		r.begun()
		begin()
	})
}

// late is for what was recorded and confirmed.
func (r *byRule) late(_ context.Context, begin func()) error { return r.m.cfg.Proceed(begin) }

// outcome records how it went. What was recorded and never begun has an outcome too.
func (r *byRule) outcome(ctx context.Context, err error) {
	if err != nil {
		r.m.cfg.Logger.WarnContext(ctx, "a rule of the catalogue did not act well", "service_id", r.service.ID, "rule", r.what, "error", err)
	}
	if !r.recorded {
		return
	}
	if rerr := r.m.cfg.Rule(context.WithoutCancel(ctx), r.what, r.service, Outcome, err); rerr != nil {
		r.m.cfg.Logger.ErrorContext(ctx, "how a rule's act went could not be recorded", "service_id", r.service.ID, "rule", r.what, "error", rerr)
	}
}

// idle reports whether nobody has used the service for as long as its entry says. An engine that tells of its requests is
// believed; otherwise whoever is connected uses it. A service uses those that it depends on while it runs, and while it sleeps: it
// would not wake without them.
func (m *Manager) idle(ctx context.Context, s *catalog.Service, u *instance) bool {
	used := slices.ContainsFunc(m.All(), func(other *catalog.Service) bool {
		return slices.Contains(other.DependsOn, s.ID) && m.Status(other).Holds()
	})
	u.mu.Lock()
	served := u.rules.served
	u.mu.Unlock()
	told := false
	if m.cfg.Engine != nil && talks(s) {
		usage := m.cfg.Engine.Usage(ctx, s)
		told = usage.Told
		used = used || told && (usage.Requests > 0 || usage.Served != served)
		served = usage.Served
	}
	if !told && s.Port != 0 {
		connected, err := m.host.connected(s, m.driver(s).Status(s))
		used = used || connected || err != nil // what cannot be seen may be in use
	}
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rules.served = served
	if used || u.rules.used.IsZero() {
		u.rules.used = now
	}
	stays := time.Duration(s.MinResidenceS) * time.Second
	return now.Sub(u.rules.used) >= time.Duration(s.Idle.AfterS)*time.Second && now.Sub(u.rules.began) >= stays
}
