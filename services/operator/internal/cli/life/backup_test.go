package life

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"filippo.io/age"

	"durward.internal/services/operator/internal/cli/clitest"
)

// TestRecipients: of several recipients the one that is none is named, and an identity never.
func TestRecipients(t *testing.T) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	good := identity.Recipient().String()
	writable := filepath.Join(t.TempDir(), "backup-recipients")
	if err := os.WriteFile(writable, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(writable, 0o660); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		path  string
		given []string
		want  string
	}{
		{"cut off", "", []string{good, good[:40]}, "\"" + good[:40] + "\" is no age recipient"},
		{"empty", "", []string{""}, "\"\" is no age recipient"},
		{"an identity", "", []string{identity.String()}, "an age identity is given, which opens backups"},
		{"others write the file", writable, nil, "\n  chmod go-w " + writable},
	} {
		core, _, errs := clitest.Printing(false)
		_, err := readRecipients(c.path, c.given)
		if core.Explain(err); !strings.Contains(errs.String(), c.want) || strings.Contains(errs.String(), "SECRET") {
			t.Errorf("%s: %q", c.name, errs)
		}
	}
	if got, err := readRecipients("", []string{good, good}); err != nil || got != good+","+good {
		t.Errorf("%q, %v", got, err)
	}
}

// TestUnmade: a full disk is that of the folder that the backup was to lie in, whose part of it was being written.
func TestUnmade(t *testing.T) {
	core, _, errs := clitest.Printing(false)
	core.Explain(unmade("/srv/backups/today", "Nothing was written.", fmt.Errorf("vault: %w", &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC})))
	if want := "durward: the backup was not made: the disk of the folder /srv/backups is full\n  Nothing was written.\n"; errs.String() != want {
		t.Errorf("%q, want %q", errs, want)
	}
}
