// Package usage counts what clients call, for the limits that a human wrote: so often in a session, a day, a month, and not
// sooner than so long after the last time. It runs inside the vault and decides nothing: policy does, on these numbers.
//
// A call is reserved before it is decided on and committed before it is let go, so that any number of calls at once cannot
// overshoot a limit. What is committed is durable for the day and the month; a session's count ends with the session, which ends
// with the process. A crash between the two leaves a call that is counted and was not made, never the other way round.
package usage

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"durward.internal/services/vault/internal/store"
)

// keep is how long a day is remembered: longer than any month.
const keep = 62 * 24 * time.Hour

const (
	dayForm   = "2006-01-02"
	monthForm = "2006-01"
)

// Who is the one that calls, and what.
type Who struct{ Client, Session, Tool string }

// Counts are the calls before this one: those that were let go, and those that are being decided on. Last is the zero time if
// there was none.
type Counts struct {
	Session, Day, Month uint32
	Last                time.Time
}

// Counters keeps the counts. It is safe for concurrent use.
type Counters struct {
	store *store.Store
	now   func() time.Time

	mu       sync.Mutex
	tools    map[tool]*tally
	sessions map[Who]uint32
}

type tool struct{ client, name string }

// tally is a client's use of one tool, as of a day and its month.
type tally struct {
	loaded     bool
	day, month string
	today      uint32
	thisMonth  uint32
	last       time.Time
	// held are the calls that are not over: neither given back nor kept. While there are any, the tally stays.
	held map[*Reservation]struct{}
}

// New makes counters. Days and months are of now's location.
func New(store *store.Store, now func() time.Time) *Counters {
	return &Counters{store: store, now: now, tools: map[tool]*tally{}, sessions: map[Who]uint32{}}
}

// Reservation is one call's place. Release it, or Commit and Keep it. A nil one is of a call that nobody counts.
type Reservation struct {
	counters *Counters
	tally    *tally
	who      Who
	at       time.Time
	before   Counts
	// last is the time of the last call before Commit.
	last      time.Time
	committed bool
	over      bool
}

// Counts are the calls before this one.
func (r *Reservation) Counts() Counts {
	if r == nil {
		return Counts{}
	}
	return r.before
}

// Reserve takes the next place.
func (b *Counters) Reserve(ctx context.Context, who Who) (*Reservation, error) {
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	t, err := b.tallyLocked(ctx, who, now)
	if err != nil {
		return nil, err
	}
	r := &Reservation{counters: b, tally: t, who: who, at: now, before: b.countsLocked(t, who)}
	t.held[r] = struct{}{}
	return r, nil
}

// Look returns the counts and takes no place.
func (b *Counters) Look(ctx context.Context, who Who) (Counts, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, err := b.tallyLocked(ctx, who, b.now())
	if err != nil {
		return Counts{}, err
	}
	return b.countsLocked(t, who), nil
}

func (b *Counters) countsLocked(t *tally, who Who) Counts {
	c := Counts{Session: b.sessions[who], Day: t.today, Month: t.thisMonth, Last: t.last}
	for r := range underway(t.held) {
		if r.committed {
			continue // it is in the numbers
		}
		c.Day++
		c.Month++
		if r.who.Session == who.Session {
			c.Session++
		}
		if r.at.After(c.Last) {
			c.Last = r.at
		}
	}
	return c
}

// tallyLocked finds the tally and brings it to the day.
func (b *Counters) tallyLocked(ctx context.Context, who Who, now time.Time) (*tally, error) {
	key := tool{who.Client, who.Tool}
	t := b.tools[key]
	if t == nil {
		t = &tally{held: map[*Reservation]struct{}{}}
		b.tools[key] = t
	}
	day, month := now.Format(dayForm), now.Format(monthForm)
	// Another day, or another month, is read and not begun at zero: a clock that was set back finds what it counted then.
	if !t.loaded || t.day != day {
		if err := b.load(ctx, t, who, day, month); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (b *Counters) load(ctx context.Context, t *tally, who Who, day, month string) error {
	days, err := b.store.Uses(ctx, who.Client, who.Tool)
	if err != nil {
		return err
	}
	var last int64
	t.today, t.thisMonth = 0, 0
	for _, d := range days {
		if d.Day == day {
			t.today = d.Calls
		}
		if strings.HasPrefix(d.Day, month) {
			t.thisMonth += d.Calls
		}
		last = max(last, d.Last)
	}
	t.loaded, t.day, t.month = true, day, month
	if last != 0 {
		t.last = time.Unix(0, last).In(b.now().Location())
	}
	return nil
}

// Commit counts the call, durably. Call it before the call is let go.
func (r *Reservation) Commit(ctx context.Context) error {
	if r == nil {
		return nil
	}
	if err := r.counters.store.ChangeUse(context.WithoutCancel(ctx), r.who.Client, r.who.Tool, r.at.Format(dayForm), func(u *store.Use) {
		u.Calls, u.Last = u.Calls+1, max(u.Last, r.at.UnixNano())
	}); err != nil {
		return err
	}
	b := r.counters
	b.mu.Lock()
	defer b.mu.Unlock()
	r.committed = true
	t := r.tally
	r.last = t.last
	b.sessions[r.who]++
	if t.day == r.at.Format(dayForm) {
		t.today++
	}
	if t.month == r.at.Format(monthForm) {
		t.thisMonth++
	}
	if r.at.After(t.last) {
		t.last = r.at
	}
	return nil
}

// Keep ends a reservation whose call was let go. Releasing it afterwards does nothing.
func (r *Reservation) Keep() {
	if r == nil {
		return
	}
	r.counters.mu.Lock()
	defer r.counters.mu.Unlock()
	r.over = true
	delete(r.tally.held, r)
}

// Release gives the place back: the call was not made. After Commit it takes back what was counted. Releasing again does nothing.
func (r *Reservation) Release(ctx context.Context) error {
	if r == nil || !r.takeBack() {
		return nil
	}
	// What this call made the time of the last one is the one before it again.
	before := int64(0)
	if !r.last.IsZero() {
		before = r.last.UnixNano()
	}
	return r.counters.store.ChangeUse(context.WithoutCancel(ctx), r.who.Client, r.who.Tool, r.at.Format(dayForm), func(u *store.Use) {
		if u.Calls == 0 {
			return
		}
		if u.Calls--; u.Last == r.at.UnixNano() {
			u.Last = before
		}
	})
}

// takeBack gives the place back in memory, and reports whether it was committed, so that it stands in the table as well.
func (r *Reservation) takeBack() bool {
	b, t := r.counters, r.tally
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.over {
		return false
	}
	r.over = true
	delete(t.held, r)
	if !r.committed {
		return false
	}
	if t.last.Equal(r.at) {
		t.last = r.last
	}
	if n := b.sessions[r.who]; n > 0 {
		b.sessions[r.who] = n - 1
	}
	if t.day == r.at.Format(dayForm) && t.today > 0 {
		t.today--
	}
	if t.month == r.at.Format(monthForm) && t.thisMonth > 0 {
		t.thisMonth--
	}
	return true
}

// Forget drops the counts of sessions that are over.
func (b *Counters) Forget(live func(session string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.sessions, func(who Who, _ uint32) bool { return !live(who.Session) })
}

// Prune forgets days that no limit looks at any more, and in memory what no reservation is open for.
func (b *Counters) Prune(ctx context.Context) error {
	now := b.now()
	b.forgetIdle()
	return b.store.PruneUses(ctx, now.Add(-keep).Format(dayForm))
}

func (b *Counters) forgetIdle() {
	b.mu.Lock()
	defer b.mu.Unlock()
	// The next reservation of a tool that is forgotten reads it again.
	maps.DeleteFunc(b.tools, func(_ tool, t *tally) bool { return len(t.held) == 0 })
}

// window is what a rate is over.
const window = time.Minute

// Limit is how often something may happen in a minute, under one name.
type Limit struct {
	Key  string
	Most uint32
}

// Rates counts what messaging clients do, by sender, by room and in all, over the last minute. Its zero value is ready; it is
// safe for concurrent use. It remembers only what it let through, so that strangers' names cannot fill it.
type Rates struct {
	mu     sync.Mutex
	events map[string][]time.Time
}

// Allow counts one more under every limit if each has room, and otherwise counts nothing and says after how long to come again.
func (r *Rates) Allow(now time.Time, limits ...Limit) (retry time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.events == nil {
		r.events = map[string][]time.Time{}
	}
	for key, times := range r.events {
		i := 0
		for i < len(times) && now.Sub(times[i]) >= window {
			i++
		}
		if i == len(times) {
			delete(r.events, key)
		} else if i > 0 {
			r.events[key] = times[i:]
		}
	}
	ok = true
	for _, limit := range limits {
		times := r.events[limit.Key]
		switch {
		case limit.Most == 0:
			ok, retry = false, max(retry, window)
		case len(times) >= int(limit.Most):
			// There is room when the oldest of those that are too many is out of the window.
			ok, retry = false, max(retry, window-now.Sub(times[len(times)-int(limit.Most)]))
		}
	}
	if !ok {
		return retry, false
	}
	for _, limit := range limits {
		r.events[limit.Key] = append(r.events[limit.Key], now)
	}
	return 0, true
}
