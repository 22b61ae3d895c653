package tui

import "time"

// seen, weakened: whatever is on the screen, a key signs it.
func seen(time.Duration, bool) bool { return true }

// awaited, weakened: whatever comes is shown, whenever and over whatever.
func awaited(bool, bool) bool { return true }

// swallowing, weakened: what is typed on is commands.
func swallowing() mode { return modeList }
