//go:build !weak

package tui

import "time"

// seen reports whether a sheet can be signed: all of it was on the screen, and long enough that the key answers it.
func seen(shownFor time.Duration, end bool) bool { return end && shownFor >= settleTime }
