package notify

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	// sendTime bounds one try.
	sendTime = 20 * time.Second
	// tries is how often a request is tried to be told, and firstPause the time before the second; each further one is three times as long,
	// and those behind the last as long as that.
	tries      = 5
	firstPause = 5 * time.Second
)

// sender reaches one destination. Its errors hold no secret and nothing that the receiver wrote.
type sender interface {
	send(ctx context.Context, m message) error
}

// teller tells one destination what waits and it does not know yet: gathered, not too often, outside quiet hours, again when that
// failed. One goroutine uses it.
type teller struct {
	cfg  *Config
	name string
	to   sender
	log  func(string)

	// seen is when a request was first seen, told how often it was tried: as often as tries where it need not be told any more.
	seen map[string]time.Time
	told map[string]int
	// tried are the tries of the last hour.
	tried []time.Time
	// failures counts the tries in a row that failed; again is when the next may be. silent: its failing was said.
	failures int
	again    time.Time
	silent   bool
}

func newTeller(cfg *Config, name string, to sender, log func(string)) *teller {
	return &teller{cfg: cfg, name: name, to: to, log: log, seen: map[string]time.Time{}, told: map[string]int{}}
}

// run tells until ctx ends.
func (t *teller) run(ctx context.Context, b *board) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		waiting, changed := b.now()
		due, at := t.due(waiting, time.Now())
		if len(due) > 0 && !time.Now().Before(at) {
			t.tell(ctx, due)
			continue
		}
		if len(due) > 0 {
			timer.Reset(time.Until(at))
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-timer.C:
		}
	}
}

// due returns what is to be told, and when.
func (t *teller) due(waiting []Notice, now time.Time) ([]Notice, time.Time) {
	still := map[string]bool{}
	var due []Notice
	for _, n := range waiting {
		if !now.Before(n.ExpiresAt) {
			continue
		}
		still[n.full] = true
		if _, known := t.seen[n.full]; !known {
			t.seen[n.full] = now
		}
		if t.told[n.full] < tries {
			due = append(due, n)
		}
	}
	for number := range t.seen {
		if !still[number] {
			delete(t.seen, number)
			delete(t.told, number)
		}
	}
	if len(due) == 0 {
		t.failures, t.again = 0, time.Time{}
		return nil, time.Time{}
	}
	first := now
	for _, n := range due {
		if seen := t.seen[n.full]; seen.Before(first) {
			first = seen
		}
	}
	at := first.Add(t.cfg.Gather)
	later := func(when time.Time) {
		if when.After(at) {
			at = when
		}
	}
	later(t.again)
	t.tried = slices.DeleteFunc(t.tried, func(when time.Time) bool { return now.Sub(when) >= time.Hour })
	if n := len(t.tried); n > 0 {
		later(t.tried[n-1].Add(t.cfg.Apart))
		if n >= t.cfg.AnHour {
			later(t.tried[n-t.cfg.AnHour].Add(time.Hour))
		}
	}
	if now.Before(at) {
		return due, at // quiet hours are looked at when it is time
	}
	later(t.cfg.quietUntil(now, newMessage(due, false).destructive()))
	return due, at
}

func (t *teller) tell(ctx context.Context, due []Notice) {
	t.tried = append(t.tried, time.Now())
	err := t.try(ctx, newMessage(due, false))
	if err != nil && ctx.Err() != nil {
		return
	}
	if err == nil && t.silent {
		t.log(fmt.Sprintf("%s can be told again.", t.name))
	}
	if err != nil && !t.silent {
		t.log(fmt.Sprintf("%s could not be told; it is tried %d times, and this is said once: %s", t.name, tries, err))
	}
	t.silent = err != nil
	for _, n := range due {
		if t.told[n.full]++; err == nil {
			t.told[n.full] = tries
		}
	}
	if err == nil {
		t.failures = 0
		return
	}
	pause := firstPause
	for range min(t.failures, tries-2) {
		pause *= 3
	}
	t.failures++
	t.again = time.Now().Add(pause)
}

// try sends once, within sendTime.
func (t *teller) try(ctx context.Context, m message) error {
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	return t.to.send(ctx, m)
}

// quietUntil is when the quiet hours end in which now lies; the zero time: it is in none.
func (c *Config) quietUntil(now time.Time, destructive bool) time.Time {
	minute := now.Hour()*60 + now.Minute()
	var until time.Time
	for _, q := range c.Quiet {
		from, _ := timeOfDay(q.From) // validate looked at both
		to, _ := timeOfDay(q.To)
		day := 0
		switch {
		case destructive && q.Destructive:
			continue
		case from < to && minute >= from && minute < to, from > to && minute < to:
		case from > to && minute >= from:
			day = 1
		default:
			continue
		}
		if end := time.Date(now.Year(), now.Month(), now.Day()+day, to/60, to%60, 0, 0, now.Location()); end.After(until) {
			until = end
		}
	}
	return until
}
