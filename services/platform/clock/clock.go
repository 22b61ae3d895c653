// Package clock waits, and says how much time went by. Every process links it; it holds nothing.
package clock

import (
	"context"
	"time"
)

// Sleep waits for d, or until ctx ends. It reports whether d passed.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// looks is how often SleepAwake looks at the wall clock.
const looks = 30 * time.Second

// SleepAwake is Sleep for what is due however the time passed: while a machine is suspended, what Sleep waits by stands still, and the wall
// clock, which is now, goes on.
func SleepAwake(ctx context.Context, d time.Duration, now func() time.Time) bool {
	for end, left := now().Round(0).Add(d), d; left > 0; left = min(left-looks, end.Sub(now().Round(0))) {
		if !Sleep(ctx, min(left, looks)) {
			return false
		}
	}
	return true
}

// Passed is how much time went by between two readings of the clock: by the wall clock or by the monotonic one, whichever says more. While a
// machine is suspended the monotonic clock stands still, and a wall clock that is set back prolongs nothing.
func Passed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// Every waits until the next whole multiple of d since the epoch, or until ctx ends, for what looks at something again and again: all that
// look so often do it at one moment, and the processor sleeps in between. It reports whether the time came.
func Every(ctx context.Context, d time.Duration) bool {
	return Sleep(ctx, d-time.Duration(time.Now().UnixNano()%int64(d)))
}
