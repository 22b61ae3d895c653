package rollback

// The guard has a twin in deploy/e2e/weak, with which drills show what happens without it.

// lostHolds is what the state lost, as the log has it; "" for nothing.
func lostHolds(lost string) string { return lost }
