package keyfile

// This file makes a negative control of deploy/e2e: keys that everybody can read.

// GuardMode is the guard's name.
const GuardMode = "key-mode"

var open bool

// WeakenMode uses keys whoever can read them.
func WeakenMode() { open = true }

func modeHolds(private bool) bool { return private || open }
