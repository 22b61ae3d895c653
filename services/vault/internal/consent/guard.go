//go:build !weak

package consent

// The guard of this package, so that the drills can show what happens without it: a build with the tag weak, which no product
// has, replaces this file.

// selfApproval returns what was found of a requester who signs for themself.
func selfApproval(found error) error { return found }
