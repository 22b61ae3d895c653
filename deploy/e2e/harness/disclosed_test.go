package harness

import (
	"os"
	"path/filepath"
	"testing"
)

// TestWalk: a file that goes while the folder is searched hides none of those behind it.
func TestWalk(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := ""
	if err := walk(dir, func(path string, raw []byte) {
		if read += string(raw); read == "a" {
			if err := os.Remove(filepath.Join(filepath.Dir(path), "b")); err != nil {
				t.Error(err)
			}
		}
	}); err != nil || read != "ac" {
		t.Errorf("read %q, %v", read, err)
	}
}
