package process_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"durward.internal/services/platform/process"
)

// A second process finds the folder taken, whatever it is called and whatever was removed from it, and says whose it is.
func TestOneProcessPerStateFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	release, err := process.LockState(dir)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v %v", info, err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{dir, link} {
		if _, err := process.LockState(name); err == nil || !strings.Contains(err.Error(), "another running process keeps its state in "+name) {
			t.Errorf("a second start in %s: %v", name, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("the lock left %v behind, %v", entries, err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	release, err = process.LockState(dir)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := process.LockState(file); err == nil {
		t.Error("a file was taken for a folder")
	}
}

// A process that was killed while it started a program leaves its lock with that program for a moment: who comes next waits so long.
func TestALockIsWaitedForForAMoment(t *testing.T) {
	dir := t.TempDir()
	release, err := process.LockState(dir)
	if err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	time.AfterFunc(100*time.Millisecond, func() { released <- release() })
	again, err := process.LockState(dir)
	if err != nil {
		t.Fatalf("with the lock given back after 100 ms: %v", err)
	}
	if err := errors.Join(<-released, again()); err != nil {
		t.Error(err)
	}
}
