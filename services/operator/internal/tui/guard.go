package tui

import "time"

// settleTime is how long a document is on the screen before it can be signed.
const settleTime = 400 * time.Millisecond

// seen reports whether a document can be signed: all of it was on the screen, and long enough that the key answers it.
func seen(shownFor time.Duration, end bool) bool { return end && shownFor >= settleTime }

// awaited reports whether what a look brought is shown: it answers the last look, and the cursor is still there.
func awaited(last, there bool) bool { return last && there }

// swallowing is the mode that typing ends up in whose request is gone.
func swallowing() mode { return modeGone }
