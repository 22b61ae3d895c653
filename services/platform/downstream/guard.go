package downstream

// The guard has a twin in deploy/e2e/weak, with which drills show what happens without it.

// accepted reports whether what is there is what an operator signed, by their digests.
func accepted[T comparable](is, signed T) bool { return is == signed }
