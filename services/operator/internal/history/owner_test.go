package history

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestRootWorksForAnOperator: what root makes in an operator's folder is the operator's, and a link of theirs leads root nowhere that they
// could not go. Afterwards root is root again.
func TestRootWorksForAnOperator(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root works for others")
	}
	const operator = 65534
	home, err := os.MkdirTemp("", "operator") //nolint:usetesting // above a test's own folder nobody else may go
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) }) // a few empty files
	if err := os.Chown(home, operator, operator); err != nil {
		t.Fatal(err)
	}
	lock, err := lockFolder(t.Context(), filepath.Join(home, "state", "operator"))
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"state", "state/operator", "state/operator/lock"} {
		info, err := os.Lstat(filepath.Join(home, path))
		if err != nil {
			t.Fatal(err)
		}
		if owner := info.Sys().(*syscall.Stat_t); owner.Uid != operator || owner.Gid != operator {
			t.Errorf("%s belongs to %d:%d", path, owner.Uid, owner.Gid)
		}
	}

	roots := filepath.Join(t.TempDir(), "roots")
	if err := os.Mkdir(roots, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(roots, filepath.Join(home, "planted")); err != nil {
		t.Fatal(err)
	}
	if err := os.Lchown(filepath.Join(home, "planted"), operator, operator); err != nil {
		t.Fatal(err)
	}
	if _, err := lockFolder(t.Context(), filepath.Join(home, "planted", "operator")); err == nil {
		t.Error("root went through the operator's link")
	}
	if found, err := os.ReadDir(roots); err != nil || len(found) > 0 { // root's alone: that it can be read shows who we are again
		t.Errorf("root's folder: %v, %v", found, err)
	}
}
