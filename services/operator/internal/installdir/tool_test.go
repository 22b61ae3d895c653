package installdir

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestToolOfAnotherUser: who runs an internal program reaches its files, and nobody else its key, whatever root's umask is.
func TestToolOfAnotherUser(t *testing.T) {
	h := Home{Dir: filepath.Join(t.TempDir(), "home")}
	if _, err := h.Init(Options{Development: true, Operator: "alice"}); err != nil {
		t.Fatal(err)
	}
	cfg, err := h.Load()
	must(t, err)
	tls := t.TempDir()
	tool, err := ToolAt(h.PKI(), tls, "reporter")
	must(t, err)
	defer syscall.Umask(syscall.Umask(0o077))
	must(t, tool.Create(cfg, nil))
	for name, want := range map[string]os.FileMode{"": 0o755, "reporter": 0o755, "reporter/" + FileConnect: 0o644, "reporter/key.pem": 0o600} {
		if info, err := os.Stat(filepath.Join(tls, toolsDir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: not %v; %v", name, want, err)
		}
	}
}
