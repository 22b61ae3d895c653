package statement

// The guard has a twin in deploy/e2e/weak, with which drills show what happens without it.

// spelled reports whether a signature counts, of which is says whether it is in a spelling that ssh-keygen takes too.
func spelled(is bool) bool { return is }
