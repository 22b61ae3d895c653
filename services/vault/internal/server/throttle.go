package server

import (
	"sync"
	"time"
)

// How many failures of one kind are recorded singly.
const (
	throttleBurst  = 20
	throttlePeriod = 10 * time.Second
)

// throttle lets so many records of each principal through in a period and counts the rest, so that a flood of failures cannot
// fill the log, is still told, and hides nobody else's. Its zero value is ready; it is safe for concurrent use.
type throttle struct {
	mu sync.Mutex
	// windows are by principal: the clients that there are, and "" for everybody unknown.
	windows map[string]*window
}

type window struct {
	since      time.Time
	used       int
	suppressed int
}

// allow reports whether one more of that principal may be recorded, and how many were left out since the last one that was.
// Principals must be authenticated ones, so that nobody fills the memory with names.
func (t *throttle) allow(principal string, now time.Time) (ok bool, suppressed int) {
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
	if now.Sub(w.since) >= throttlePeriod {
		w.since, w.used = now, 0
	}
	if w.used >= throttleBurst {
		w.suppressed++
		return false, 0
	}
	w.used++
	suppressed, w.suppressed = w.suppressed, 0
	return true, suppressed
}
