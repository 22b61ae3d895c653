//go:build !linux

package command

// forgetTyped does nothing where there is no way that is known.
func forgetTyped(any) {}
