package clients

import "time"

// This file makes a negative control of deploy/e2e: a vault where a rotated credential never ends.

// GuardRotation is the name of the guard that WeakenRotation removes.
const GuardRotation = "rotation-end"

var endless bool

// WeakenRotation takes a rotated credential for ever.
func WeakenRotation() { endless = true }

func stillTaken(now, until time.Time) bool { return endless || now.Before(until) }
