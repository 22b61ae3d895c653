//go:build !cgo && !race

package bounds

import "os"

// built is this test's program: it is without cgo, as programs are shipped.
func built() (string, error) { return os.Executable() }

func discard() {}
