package database

// This file makes a negative control of deploy/e2e: a process that serves rows whoever wrote them, of whatever file.

var unsealed bool

// WeakenSeals lets rows go without their seals, and files without being looked through.
func WeakenSeals() { unsealed = true }

func soundnessRequired() bool { return !unsealed }

func sealsHold() bool { return !unsealed }
