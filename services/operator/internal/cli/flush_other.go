//go:build !linux

package cli

// ForgetTyped does nothing where there is no way that is known.
func ForgetTyped(any) {}
