package history

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/logproof"
)

// TestRootWorksForAnOperator: what root makes in an operator's folder is the operator's, and a link of theirs leads root nowhere that they
// could not go. Afterwards root is root again.
func TestRootWorksForAnOperator(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root works for others")
	}
	const operator = 65534
	home, err := os.MkdirTemp("", "operator") //nolint:usetesting // above a test's own folder nobody else may go
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(home) }) // a few empty files
	must(t, os.Chown(home, operator, operator))
	lock, err := lockFolder(t.Context(), filepath.Join(home, "state", "operator"))
	must(t, err)
	must(t, lock.Close())
	dir := filepath.Join(home, "state", "operator")
	must(t, store{dir}.SaveCheckpoint(t.Context(), logproof.KeptSeen, []byte("a checkpoint")))
	l := Log{cfg: Config{StateDir: dir, Now: func() time.Time { return testNow }}}
	refused, err := l.keepRefused(&auditv1.Record{}, "because", "")
	must(t, err)
	refused, err = filepath.Rel(home, refused)
	must(t, err)
	for _, path := range []string{"state", "state/operator", "state/operator/lock", "state/operator/checkpoint", "state/operator/refused", refused} {
		info, err := os.Lstat(filepath.Join(home, path))
		must(t, err)
		if owner := info.Sys().(*syscall.Stat_t); owner.Uid != operator || owner.Gid != operator {
			t.Errorf("%s belongs to %d:%d", path, owner.Uid, owner.Gid)
		}
	}

	roots := filepath.Join(t.TempDir(), "roots")
	must(t, os.Mkdir(roots, 0o700))
	must(t, os.Symlink(roots, filepath.Join(home, "planted")))
	must(t, os.Lchown(filepath.Join(home, "planted"), operator, operator))
	if _, err := lockFolder(t.Context(), filepath.Join(home, "planted", "operator")); err == nil {
		t.Error("root went through the operator's link")
	}
	if found, err := os.ReadDir(roots); err != nil || len(found) > 0 { // root's alone: that it can be read shows who we are again
		t.Errorf("root's folder: %v, %v", found, err)
	}
}
