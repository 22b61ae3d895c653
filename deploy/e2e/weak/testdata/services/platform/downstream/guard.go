package downstream

import "sync/atomic"

// This file makes a negative control of deploy/e2e: servers and entries count that nobody signed.

// GuardAccepted is the name of the guard that WeakenAccepted removes.
const GuardAccepted = "accepted"

var anything atomic.Bool

// WeakenAccepted takes what is there for what was signed.
func WeakenAccepted() { anything.Store(true) }

func accepted[T comparable](is, signed T) bool { return is == signed || anything.Load() }
