package statecopy

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"filippo.io/age"

	"durward.internal/services/platform/backup"
)

// TestRestoreWithoutTheGuard: what TestCopyAndRestore shows is the guard's doing. Without it the copy's epoch is in force again, and with it
// whatever was granted then.
func TestRestoreWithoutTheGuard(t *testing.T) {
	dir, key := t.TempDir(), identity(t)
	db, p := openAt(t, dir), part(dir)
	copied := write(t, p, key.Recipient())
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for _, weak := range []bool{false, true} {
		if weak {
			if err := os.WriteFile(filepath.Join(dir, AsItWas), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Restore(t.Context(), bufio.NewReader(bytes.NewReader(copied)), backup.Given{Identities: []age.Identity{key}}, time.Now()); err != nil {
			t.Fatal(err)
		}
		if epoch := number(t, dir, `SELECT epoch FROM control`); (epoch == 7) != weak {
			t.Errorf("without the guard %v: epoch %d", weak, epoch)
		}
	}
}
