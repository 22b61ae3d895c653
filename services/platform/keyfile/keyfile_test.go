package keyfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"durward.internal/services/platform/platformtest/testfile"
)

// TestKeysThatOthersCanReadAreRefused: a key may be readable by root's group, and one of root's by this process's.
func TestKeysThatOthersCanReadAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	testfile.Write(t, path, "secret")
	root := os.Getuid() == 0 && os.Getgid() == 0
	for mode, want := range map[os.FileMode]bool{
		0o600: true, 0o400: true, 0o440: root, 0o640: root, 0o660: false, 0o444: false, 0o604: false, 0o610: false, 0o602: false,
	} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if b, err := Read(path); (err == nil) != want || want && string(b) != "secret" || !want && !errors.Is(err, ErrOpen) {
			t.Errorf("mode %o: %q, %v", mode, b, err)
		}
		if err := Check(path, path+".none"); (err == nil) != want {
			t.Errorf("mode %o: Check %v", mode, err)
		}
	}
	if !root {
		return
	}
	if err := os.Chmod(path, 0o440); err != nil {
		t.Fatal(err)
	}
	for owner, want := range map[[2]int]bool{{0, 64001}: false, {64001, 64001}: false, {64001, 0}: true} {
		if err := os.Chown(path, owner[0], owner[1]); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); (err == nil) != want || !want && !errors.Is(err, ErrOpen) {
			t.Errorf("a key of %v that its group can read: %v", owner, err)
		}
	}
}

func TestWhatIsNoKeyFile(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	testfile.Write(t, large, make([]byte, maxSize+1))
	for _, path := range []string{dir, large, filepath.Join(dir, "none"), "/dev/null"} {
		if _, err := Read(path); err == nil {
			t.Errorf("%s was read", path)
		}
	}
}
