package catalog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/catalog"
)

// TestReplaceSeesChanges: what somebody wrote meanwhile is not overwritten, and a link stays one.
func TestReplaceSeesChanges(t *testing.T) {
	dir := t.TempDir()
	a := &app{App: &cli.App{Home: installdir.Home{Dir: filepath.Join(dir, "none")}}}
	file, link := filepath.Join(dir, "c.yaml"), filepath.Join(dir, "l.yaml")
	if err := os.WriteFile(file, []byte("theirs"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if err := a.replace(file, []byte("ours"), []byte("new")); err == nil {
		t.Error("a change was overwritten")
	}
	if err := a.replace(file, nil, []byte("new")); err == nil {
		t.Error("a file that was not there was overwritten")
	}
	if err := a.replace(link, []byte("theirs"), []byte("new")); err != nil {
		t.Error(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v now, %v", info, err)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "new" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestWhatNamesItHasItsPlace: who still names an entry is told by the lines of the file as it is, and not as it would be without the entry.
func TestWhatNamesItHasItsPlace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	const text = `version: 1

services:
  - id: first
    driver: process
    argv: [/bin/true]
    port: 8001
    depends_on: [second]
  # The second one.
  - id: second
    driver: process
    argv: [/bin/true]
    port: 8002

modes:
  - id: evening
    services: [second]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	core, _, _ := clitest.Printing(false)
	err := (&app{core}).remove(t.Context(), file, catalog.Options{Lenient: true, Development: true}, "service", "second", true)
	if err == nil || !strings.Contains(err.Error(), file+":8:") || !strings.Contains(err.Error(), file+":17:") {
		t.Errorf("%v", err)
	}
}
