package systemd

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/driver/cause"
	"durward.internal/services/platform/clock"
)

const (
	// comparing is how often all units are compared with what was heard of them: no signal should be missed, and one may be.
	comparing = 10 * time.Second
	// forgotten is when a unit that nobody looks at is observed no more.
	forgotten = time.Hour
	// explaining is how long the log may take to tell why a unit ended.
	explaining = time.Second
	// settling is how long the journal is given for lines that are under way.
	settling = 150 * time.Millisecond

	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second
)

// unit is what is known of one unit. The driver's mutex guards it.
type unit struct {
	name string
	path string
	// known: facts were true on this connection.
	known bool
	facts facts
	// heard is the activation that signals told of last, or the first reply if none did yet: systemd forgets an activation when it
	// unloads the unit. signalled: a signal came on this connection, and is newer than any reply may be.
	heard     run
	signalled bool
	// settled is the activation whose end is nobody's concern any more.
	settled string
	// cause is why the activation explained ended.
	explained, cause string
	// asked and answered count questions, so that an older answer never replaces a newer one.
	asked, answered uint64
	// news is raised with each answer.
	news   clock.Signal
	looked time.Time
	// warned: that systemd restarts it by itself was logged; complained: that systemd says nothing of it was.
	warned, complained bool
	// busy and again: a refresh is under way, and another is wanted after it.
	busy, again bool
}

// unit returns what is known of a unit; the mutex must be held.
func (d *Driver) unit(name string) *unit {
	u, ok := d.units[name]
	if !ok {
		u = &unit{name: name, path: unitPaths + sd.PathBusEscape(name), looked: time.Now()}
		d.units[name] = u
	}
	return u
}

// sight is the unit as the driver package sees it; the mutex must be held.
func (u *unit) status() driver.Status {
	f := u.facts
	status := driver.Status{Restarts: f.restarts}
	switch f.active {
	case active, reloading, refreshing, activating, deactivating:
		status.PID, status.CGroup, status.Since = f.mainPID, f.cgroup, f.since
	}
	switch f.active {
	case active, reloading, refreshing:
		status.State = driver.Running
	case activating:
		status.State = driver.Starting
	case deactivating:
		status.State = driver.Stopping
	case inactive, failed:
		status.State = driver.Stopped
		switch {
		case f.ended() && (f.run.invocation == "" || f.run.invocation != u.settled):
			status.State, status.Cause = driver.Ended, u.cause
		case f.load == notFound:
			status.Cause = driver.CauseUnitMissing
		}
	default:
		status.State, status.Cause = driver.Unknown, driver.CauseNoManager
	}
	return status
}

// observe follows units until Close, over one connection after another. b is the first one, nil if there is none yet.
func (d *Driver) observe(b manager) {
	defer d.done.Done()
	for backoff := minBackoff; ; {
		if b != nil {
			backoff = minBackoff
			d.follow(b)
			d.drop(b)
		}
		if d.ctx.Err() != nil {
			return
		}
		if !clock.Sleep(d.ctx, backoff/2+rand.N(backoff/2)) { //nolint:gosec // whoever foresees it gains nothing
			return
		}
		backoff = min(backoff*2, maxBackoff)
		var err error
		if b, err = d.connect(d.ctx); err != nil {
			d.cfg.Logger.Debug("systemd does not answer", "error", err)
			b = nil
			continue
		}
		d.cfg.Logger.Info("systemd answers")
		d.mu.Lock()
		d.bus = b
		d.mu.Unlock()
	}
}

// follow takes one connection's signals until it is lost.
func (d *Driver) follow(b manager) {
	tick := time.NewTicker(comparing)
	defer tick.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case c, ok := <-b.changes():
			if !ok {
				return
			}
			d.hear(c)
		case <-tick.C:
			if err := d.compare(b); errors.Is(err, driver.ErrNoManager) {
				return
			}
		}
	}
}

// drop ends a connection: nothing that was heard over it counts any more.
func (d *Driver) drop(b manager) {
	b.close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bus = nil
	for _, u := range d.units {
		u.known, u.signalled = false, false
		u.news.Raise()
	}
	if d.ctx.Err() == nil {
		d.cfg.Logger.Warn("the connection to systemd is lost; the state of its units is unknown")
	}
}

// hear notes what a signal says, and has systemd asked for the rest.
func (d *Driver) hear(c change) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, u := range d.units {
		if u.path == c.path {
			u.heard.merge(c.props)
			u.signalled = true
			d.renew(u)
			return
		}
	}
}

// renew refreshes a unit soon; the mutex must be held.
func (d *Driver) renew(u *unit) {
	if u.again = u.busy; u.busy {
		return
	}
	u.busy = true
	d.done.Go(func() {
		for {
			_, err := d.refresh(d.ctx, u)
			d.mu.Lock()
			if !u.again || err != nil {
				u.busy, u.again = false, false
				d.mu.Unlock()
				return
			}
			u.again = false
			d.mu.Unlock()
		}
	})
}

// compare asks for all units at once, renews those of which something was missed, and forgets those that nobody asks for.
func (d *Driver) compare(b manager) error {
	d.mu.Lock()
	var names []string
	for name, u := range d.units {
		if time.Since(u.looked) > forgotten && !u.busy {
			delete(d.units, name)
			continue
		}
		names = append(names, name)
	}
	d.mu.Unlock()
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	states, err := b.states(d.ctx, names)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		if u := d.units[name]; u != nil && (!u.known || states[name] != u.facts.active) {
			d.renew(u)
		}
	}
	return nil
}

// refresh asks systemd how a unit is, and why it ended if it did.
func (d *Driver) refresh(ctx context.Context, u *unit) (facts, error) {
	d.mu.Lock()
	b := d.bus
	u.asked++
	question := u.asked
	d.mu.Unlock()
	if b == nil {
		return facts{}, driver.ErrNoManager
	}
	p, err := b.properties(ctx, u.name)
	if err != nil {
		return facts{}, err
	}
	f := read(p)
	d.mu.Lock()
	switch {
	case f.run.invocation == "" && f.active == inactive:
		f.run = u.heard
	case f.run.invocation != "" && !u.signalled:
		u.heard = f.run
	}
	explained, why := u.explained, u.cause
	d.mu.Unlock()
	if !f.ended() {
		explained, why = "", ""
	} else if f.run.invocation != explained || why == "" {
		explained, why = f.run.invocation, d.explain(ctx, u.name, f)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if question < u.answered || d.bus != b {
		return f, nil
	}
	u.answered, u.known, u.facts, u.explained, u.cause = question, true, f, explained, why
	u.complained = false
	if restarts(f) && !u.warned {
		u.warned = true
		d.cfg.Logger.Warn(WarnRestart, "unit", u.name)
	}
	u.news.Raise()
	return f, nil
}

// explain is why a unit ended: what systemd knows for certain, else what its last lines tell, else that it ended.
func (d *Driver) explain(ctx context.Context, unit string, f facts) string {
	blunt := f.bluntCause(d.v1)
	switch blunt {
	case driver.CauseExited, driver.CauseNotStarted, driver.CauseOutOfMemory:
		// A log may know better: memory that ran out may have been the GPU's.
	default:
		return blunt
	}
	if f.run.begin == 0 {
		return blunt
	}
	ctx, cancel := context.WithTimeout(ctx, explaining)
	defer cancel()
	// The journal may be behind systemd: it is read until it holds something and is the same twice.
	for before := []string(nil); ; {
		lines, err := d.journal.since(ctx, unit, f.run.begin, cause.Lines)
		if err != nil {
			if ctx.Err() != nil {
				return blunt
			}
			d.cfg.Logger.Warn("the journal did not tell why a unit ended", "error", err)
			return blunt
		}
		if told := cause.FromLog(lines); told != "" {
			return told
		}
		if len(lines) > 0 && slices.Equal(lines, before) {
			return blunt
		}
		before = lines
		if !clock.Sleep(ctx, settling) {
			return blunt
		}
	}
}

// hold returns the connection and what is known of a unit.
func (d *Driver) hold(name string) (manager, *unit, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bus == nil {
		return nil, nil, driver.ErrNoManager
	}
	return d.bus, d.unit(name), nil
}

// await waits for a job's result. Once patience is over it also returns, with "", as soon as the unit is as enough wants it. It
// fails when ctx ends or systemd is lost.
func (d *Driver) await(ctx context.Context, u *unit, result <-chan string, patience time.Duration, enough func(facts) bool) (string, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for late := false; ; {
		d.mu.Lock()
		news, f, known, lost := u.news.Wait(), u.facts, u.known, d.bus == nil
		d.mu.Unlock()
		if lost {
			return "", driver.ErrNoManager
		}
		if late && known && enough(f) {
			return "", nil
		}
		select {
		case verdict := <-result:
			return verdict, nil
		case <-timer.C:
			late = true
		case <-news:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}
