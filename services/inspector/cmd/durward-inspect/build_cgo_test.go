//go:build cgo || race

package main

import (
	"fmt"
	"os/exec"
)

// build makes the program without cgo and the race detector, as it is shipped.
func build(path string) error {
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, ".")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
