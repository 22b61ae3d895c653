package halt

import "sync/atomic"

// GuardHalted is the name under which drills remove the guard.
const GuardHalted = "halted"

var weakened atomic.Bool

// Weaken lets grants through a halt. It exists in drill builds alone.
func Weaken() { weakened.Store(true) }

func holds(inTheWay bool) bool { return inTheWay && !weakened.Load() }
