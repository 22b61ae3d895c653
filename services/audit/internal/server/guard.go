//go:build !weak

package server

// kindsKept reports whether each role writes its own kinds alone.
func kindsKept() bool { return true }
