package clients

import "time"

// stillTaken reports whether a credential that a rotation replaced still lets its client in.
func stillTaken(now, until time.Time) bool { return now.Before(until) }
