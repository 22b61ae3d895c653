package root

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/installdir"
)

// TestInstallNeedsNoHome: an upgrade of the package that systemd starts, such as an unattended one, has no HOME.
func TestInstallNeedsNoHome(t *testing.T) {
	programs, root := t.TempDir(), t.TempDir()
	for _, name := range append(installdir.Roles(), "durward", "durward-inspect", "durward-list", "durward-notify") {
		if err := os.WriteFile(filepath.Join(programs, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("alice:x:1000:1000::/home/alice:/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	code := Main(t.Context(), []string{"install", "--dry-run", "--root", root, "--programs", programs, "--operator", "alice"},
		cli.Streams{In: strings.NewReader(""), Out: &out, Err: &out, Getenv: func(string) string { return "" }})
	if code != cli.ExitOK || !strings.Contains(out.String(), "/etc/durward/trust") {
		t.Errorf("exit code %d:\n%s", code, &out)
	}
}

// TestInstallWithoutTheKey: a key file that is not there is told before anything is made: join, which needs it, is among the last steps.
func TestInstallWithoutTheKey(t *testing.T) {
	var out bytes.Buffer
	code := Main(t.Context(), []string{"install", "--dry-run", "--operator", "nobody", "--signing-key", filepath.Join(t.TempDir(), "key.pub")},
		cli.Streams{In: strings.NewReader(""), Out: &out, Err: &out, Getenv: func(string) string { return "" }})
	if code != cli.ExitUsage || !strings.Contains(out.String(), "there is no key file") {
		t.Errorf("exit code %d:\n%s", code, &out)
	}
}
