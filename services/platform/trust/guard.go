package trust

// The guard has a twin in deploy/e2e/weak, with which drills show what happens without it.

// formHolds passes on what speaks against a line of allowed_signers whose key can be read.
func formHolds(problem error) error { return problem }
