package consent

// The guard of this package, so that the drills can show what happens without it: their builds have the
// twin in deploy/e2e/weak instead.

// selfApproval returns what was found of a requester who signs for themself.
func selfApproval(found error) error { return found }

// sameKey reports whether an operator of one name is that of another, of which is says whether they have a key in common.
func sameKey(is bool) bool { return is }
