package database

// This file makes a negative control of deploy/e2e: a process that serves rows whoever wrote them.

var unsealed bool

// WeakenSeals lets rows go without their seals.
func WeakenSeals() { unsealed = true }

func sealsHold() bool { return !unsealed }
