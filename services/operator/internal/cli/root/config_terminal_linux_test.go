package root

import (
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/cli"
)

// TestRulesAtATerminal: at a real terminal, with a protected key: no is no, a wrong passphrase is none, and then it is changed.
func TestRulesAtATerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	path := filepath.Join(folder, "security/security.yaml")
	before := read(t, path)
	x := openTerminal(t, 120, 60)
	code := w.runAt(t.Context(), x, "config", "set", "tier_ceiling", "WRITE")
	x.waitFor("Sign and change it? [y/N]")
	x.types("n\n")
	x.ends(code, cli.ExitDenied)
	if read(t, path) != before || len(w.signed) > 0 {
		t.Fatal("a no was a yes")
	}
	x = openTerminal(t, 120, 60)
	code = w.runAt(t.Context(), x, "config", "set", "tier_ceiling", "WRITE")
	x.waitFor("Sign and change it? [y/N]")
	x.types("y\n")
	x.ends(code, cli.ExitOK)
	if !strings.HasSuffix(read(t, path), "tier_ceiling: WRITE\n") || len(w.signed) != 1 {
		t.Errorf("%q", read(t, path))
	}
}
