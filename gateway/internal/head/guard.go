package head

// The guard has a twin in deploy/e2e/weak, with which drills show what happens without it.

// folds reports whether a line of a head that begins so goes on with the line before.
func folds(first byte) bool { return first == ' ' || first == '\t' }
