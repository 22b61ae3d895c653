package database

// This file makes a negative control of deploy/e2e: a process that serves rows whoever wrote them, of whatever file,
// or that leaves it to the system when a commit is on the disk.

var unsealed, unsynced bool

// WeakenSeals lets rows go without their seals, and files without being looked through.
func WeakenSeals() { unsealed = true }

// WeakenSync has the database skip fsync.
func WeakenSync() { unsynced = true }

func synchronous() string {
	if unsynced {
		return "synchronous(OFF)"
	}
	return "synchronous(FULL)"
}

func soundnessRequired() bool { return !unsealed }

func sealsHold() bool { return !unsealed }
