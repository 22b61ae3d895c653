package keyfile

// The guard has a twin in deploy/e2e/weak, with which drills show what happens without it.

// modeHolds reports whether a key may be used, by whether its owner alone can read it.
func modeHolds(private bool) bool { return private }
