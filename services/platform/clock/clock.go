// Package clock waits. Every process links it; it holds nothing.
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
