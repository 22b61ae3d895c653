// Package share keeps one party from using up what all of them share: places to work, room in the log, streams of a process.
package share

import (
	"context"
	"sync"
	"time"
)

// Turns lets so many work at a time, and of each principal one: whoever asks for much waits for himself, and not others for him.
type Turns struct {
	places chan struct{}

	mu  sync.Mutex
	own map[string]*turn // of principals that work or wait
}

type turn struct {
	place chan struct{}
	users int
}

// NewTurns returns turns of which so many last at a time.
func NewTurns(atOnce int) *Turns {
	return &Turns{places: make(chan struct{}, atOnce), own: map[string]*turn{}}
}

// Take waits for the principal's turn, which lasts until done, or for the end of ctx.
func (q *Turns) Take(ctx context.Context, principal string) (done func(), err error) {
	q.mu.Lock()
	own := q.own[principal]
	if own == nil {
		own = &turn{place: make(chan struct{}, 1)}
		q.own[principal] = own
	}
	own.users++
	q.mu.Unlock()
	leave := func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(q.own, principal)
		}
	}
	select {
	case own.place <- struct{}{}:
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
	select {
	case q.places <- struct{}{}:
		return func() { <-q.places; <-own.place; leave() }, nil
	case <-ctx.Done():
		<-own.place
		leave()
		return nil, ctx.Err()
	}
}

// How many records of each principal a Throttle lets through in a period.
const (
	Burst  = 20
	Period = 10 * time.Second
)

// Throttle lets so many records of each principal through in a period and counts the rest, so that a flood of failures cannot
// fill the log, is still told, and hides nobody else's. Its zero value is ready; it is safe for concurrent use.
type Throttle struct {
	mu sync.Mutex
	// windows are by principal: the clients that there are, and "" for everybody unknown.
	windows map[string]*window
}

type window struct {
	since      time.Time
	used       int
	suppressed int
}

// Allow reports whether one more of that principal may be recorded, and how many were left out since the last one that was.
// Principals must be authenticated ones, so that nobody fills the memory with names.
func (t *Throttle) Allow(principal string, now time.Time) (ok bool, suppressed int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.windows[principal]
	if w == nil {
		if t.windows == nil {
			t.windows = map[string]*window{}
		}
		w = &window{}
		t.windows[principal] = w
	}
	if now.Sub(w.since) >= Period {
		w.since, w.used = now, 0
	}
	if w.used >= Burst {
		w.suppressed++
		return false, 0
	}
	w.used++
	suppressed, w.suppressed = w.suppressed, 0
	return true, suppressed
}

// Places counts what each party holds of something, such as streams, and what all hold together; Each and All are the most, and All is
// without bound at 0. It is safe for concurrent use.
type Places struct {
	Each, All int

	mu  sync.Mutex
	of  map[string]int
	all int
}

// Enter takes a place for a party until leave is called, which is nil where there is none left.
func (p *Places) Enter(party string) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[party] >= p.Each || p.All > 0 && p.all >= p.All {
		return nil
	}
	if p.of == nil {
		p.of = map[string]int{}
	}
	p.of[party]++
	p.all++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.all--
		if p.of[party]--; p.of[party] == 0 {
			delete(p.of, party)
		}
	}
}

// Held is how many places are taken.
func (p *Places) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}
