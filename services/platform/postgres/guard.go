package postgres

// Fence is the condition on the row of sequencer under which a process may write: the epoch is the one that it gave itself, $1. Its
// twin in deploy/e2e/weak shows what happens without it.
func Fence() string { return "epoch = $1" }
