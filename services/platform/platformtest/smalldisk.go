package platformtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"testing"
	"time"
)

// smallDiskAt names the folder to mount on, for the process that SmallDisk starts.
const smallDiskAt = "DURWARD_TEST_SMALL_DISK"

// SmallDisk gives a test a file system of its own that holds so many bytes, so that it can really be full. The test is run
// again in a process with its own user and mount namespaces: there SmallDisk returns the folder; here it returns "" when that
// process is done, and the test returns. It skips where the system forbids namespaces.
func SmallDisk(t *testing.T, bytes int64) string {
	t.Helper()
	if dir := os.Getenv(smallDiskAt); dir != "" {
		if err := syscall.Mount("durward-test", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", bytes)); err != nil {
			t.Fatalf("mount a small disk: %v", err)
		}
		return dir
	}
	timeout := 2 * time.Minute
	if deadline, ok := t.Deadline(); ok {
		timeout = max(time.Until(deadline)-5*time.Second, time.Second) // it ends before this process, and says where it was
	}
	// #nosec G204 G702 -- this very test again
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+regexp.QuoteMeta(t.Name())+"$", "-test.v", "-test.timeout="+timeout.String())
	cmd.Env = append(os.Environ(), smallDiskAt+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		t.Logf("%s", out)
	case errors.As(err, &exit):
		t.Errorf("on the small disk: %v\n%s", err, out)
	default:
		t.Skipf("the system lets this test have no file system of its own: %v", err)
	}
	return ""
}

// Fill writes a file until its disk is full.
func Fill(t testing.TB, path string) {
	t.Helper()
	f, err := os.Create(path)
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
