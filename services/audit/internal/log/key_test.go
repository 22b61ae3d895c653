package log_test

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"durward.internal/services/audit/internal/log"
)

// TestLoadSignerRefusesOpenFiles is about who else could read the key. A credential that systemd hands over may be root's, with
// our user in an access control list, which shows as a group that can read it.
func TestLoadSignerRefusesOpenFiles(t *testing.T) {
	secret, _, err := note.GenerateKey(rand.Reader, "durward.local/audit/main")
	must(t, err)
	path := filepath.Join(t.TempDir(), "log.key")
	must(t, os.WriteFile(path, []byte(secret), 0o600))
	credential := os.Getuid() == 0 && os.Getgid() == 0
	for mode, want := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o440: credential, 0o640: credential, 0o660: false, 0o444: false, 0o604: false, 0o610: false} {
		must(t, os.Chmod(path, mode))
		if _, err := log.LoadSigner(path); (err == nil) != want {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if !credential {
		return
	}
	must(t, os.Chmod(path, 0o440))
	for _, owner := range [][2]int{{0, 64001}, {64001, 64001}} {
		must(t, os.Chown(path, owner[0], owner[1]))
		if _, err := log.LoadSigner(path); err == nil {
			t.Errorf("a key of %v that its group can read is accepted", owner)
		}
	}
}
