package recorder

// This file makes a negative control of deploy/e2e: a process that takes a lost spool for a new one.

// GuardSpool is the guard's name.
const GuardSpool = "spool"

var silent bool

// WeakenSpool says nothing of a spool that was lost.
func WeakenSpool() { silent = true }

func lossTold(lost bool) bool { return lost && !silent }
