package log

// The guard has a twin in deploy/e2e/weak, with which drills show what happens without it.

// written returns when the transaction is on the disk: nothing is acknowledged before.
func written(commit func() error) error { return commit() }
