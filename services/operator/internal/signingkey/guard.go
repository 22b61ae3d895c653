package signingkey

import "time"

// expired reports whether a key's time is over.
func expired(until, now time.Time) bool { return !now.Round(0).Before(until) }
