package database

// sealsHold reports whether a row that does not bear its seal is damage. Its twin in deploy/e2e/weak shows what happens without it.
func sealsHold() bool { return true }

// soundnessRequired reports whether a database is looked through before it serves.
func soundnessRequired() bool { return true }

// synchronous is how SQLite writes: a commit is on the disk when it returns.
func synchronous() string { return "synchronous(FULL)" }
