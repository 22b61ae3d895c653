package recorder

// The guard has a twin in deploy/e2e/weak, with which drills show what happens without it.

// lossTold reports whether the log is told of a spool that was lost, or that somebody else changed.
func lossTold(lost bool) bool { return lost }
