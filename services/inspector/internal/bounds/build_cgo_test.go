//go:build cgo || race

package bounds

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// built is this test's program without cgo and the race detector, as programs are shipped.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "bounds")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "bounds.test")
	cmd := exec.Command("go", "test", "-c", "-o", path, ".")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

func discard() {
	if path, err := built(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path)) // a temporary folder is a nuisance and no more
	}
}
