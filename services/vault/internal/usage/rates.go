package usage

import (
	"sync"
	"time"
)

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
