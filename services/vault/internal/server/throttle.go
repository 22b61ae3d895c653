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

// throttle lets so many records through in a period and counts the rest, so that a flood of failures cannot fill the log
// and is still told. Its zero value is ready; it is safe for concurrent use.
type throttle struct {
	mu         sync.Mutex
	since      time.Time
	used       int
	suppressed int
}

// allow reports whether one more may be recorded, and how many were left out since the last one that was.
func (t *throttle) allow(now time.Time) (ok bool, suppressed int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.since) >= throttlePeriod {
		t.since, t.used = now, 0
	}
	if t.used >= throttleBurst {
		t.suppressed++
		return false, 0
	}
	t.used++
	suppressed, t.suppressed = t.suppressed, 0
	return true, suppressed
}
