package reserve

import "sync/atomic"

// This file makes the negative control of deploy/e2e: a reserve that anything may use up.

// GuardReserve is the name of the guard that WeakenReserve removes.
const GuardReserve = "reserve"

var anyWrite atomic.Bool

// WeakenReserve lets every write use the reserve.
func WeakenReserve() { anyWrite.Store(true) }

func mayWrite(entitled bool) bool { return entitled || anyWrite.Load() }
