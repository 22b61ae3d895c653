package platformtest

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
)

// SmallDisk gives a test a file system of its own that holds so many bytes, so that it can really be full. The test is run
// again in a process with its own user and mount namespaces: there SmallDisk returns the folder; here it returns "" when that
// process is done, and the test returns. It skips where the system forbids namespaces.
func SmallDisk(t *testing.T, bytes int64) string {
	t.Helper()
	if !apart(t, syscall.CLONE_NEWNS) {
		return ""
	}
	return mount(t, bytes, 0o700)
}

// SmallDiskForAll is SmallDisk without a user namespace, for programs of other users: root alone has it.
func SmallDiskForAll(t *testing.T, bytes int64) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a disk that other users write to takes root")
	}
	if !again(t, &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}) {
		return ""
	}
	return mount(t, bytes, 0o755)
}

func mount(t *testing.T, bytes int64, mode int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "disk") // others enter it, and its path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) }) // it is empty once nothing is mounted there
	if err := syscall.Mount("durward-test", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=%#o", bytes, mode)); err != nil {
		t.Fatalf("mount a small disk: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }) // it ends with its namespace anyway
	return dir
}

// Fill writes to the end of a file until its disk is full.
func Fill(t testing.TB, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 16; size > 0; size /= 2 {
		chunk := make([]byte, size)
		for {
			if n, err := f.Write(chunk); err != nil {
				if !errors.Is(err, syscall.ENOSPC) {
					t.Fatalf("fill the disk: %v after %d bytes", err, n)
				}
				break
			}
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
