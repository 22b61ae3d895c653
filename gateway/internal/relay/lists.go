package relay

import (
	"sync/atomic"
	"time"

	"durward.internal/services/platform/clock"
)

// lists is when what clients may call may have changed last: by what humans pin, or by rules. The zero value is ready.
type lists struct {
	changed atomic.Pointer[time.Time]
	moved   clock.Signal
}

// since is when that was; the zero time: it was not.
func (l *lists) since() time.Time {
	if at := l.changed.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// ListsChanged says that what clients may call may have changed: what is listed next is what the vault says then.
func (r *Relay) ListsChanged() {
	now := time.Now()
	r.lists.changed.Store(&now)
	r.lists.moved.Raise()
}

// ListsMoved returns a channel that is closed when that happens next.
func (r *Relay) ListsMoved() <-chan struct{} { return r.lists.moved.Wait() }
