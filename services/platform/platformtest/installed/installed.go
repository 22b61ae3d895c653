// Package installed says what a test needs of the host beside Go. It links nothing, so that every package's tests may use it.
package installed

import (
	"os"
	"os/exec"
	"testing"
)

// Program returns the path of a program. Where the host has none the test is skipped; under `make real`, which installs it, it fails.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("DURWARD_REAL") != "" { // scripts/real.sh has installed it
			t.Fatal(err)
		}
		t.Skipf("there is no %s; make real installs it and runs this", name)
	}
	return path
}
