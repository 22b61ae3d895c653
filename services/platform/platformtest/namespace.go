package platformtest

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"
)

// apartIn says to a process that it is the one which apart started.
const apartIn = "DURWARD_TEST_APART"

// Outer is the standard output of the process that go test started, also in one that apart started.
var Outer = sync.OnceValue(func() *os.File {
	if os.Getenv(apartIn) == "" {
		return os.Stdout
	}
	const inherited = 3
	syscall.CloseOnExec(inherited)
	return os.NewFile(inherited, "stdout")
})

// apart runs the test again in a process with its own user namespace and those that flags name. It returns true in that process;
// here it returns false when that process is done, with the test failed if it failed there. It skips where the system forbids
// namespaces, which it never does in CI.
func apart(t *testing.T, flags uintptr) bool {
	t.Helper()
	return again(t, &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | flags,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	})
}

// again is apart with other namespaces.
func again(t *testing.T, attributes *syscall.SysProcAttr) bool {
	t.Helper()
	if os.Getenv(apartIn) != "" {
		Outer() // no program that the test starts gets it
		return true
	}
	timeout := 2 * time.Minute
	if deadline, ok := t.Deadline(); ok {
		timeout = max(time.Until(deadline)-5*time.Second, time.Second) // it ends before this process, and says where it was
	}
	// #nosec G204 G702 -- this very test again
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+regexp.QuoteMeta(t.Name())+"$", "-test.v", "-test.timeout="+timeout.String())
	cmd.Env = append(os.Environ(), apartIn+"=1")
	cmd.ExtraFiles = []*os.File{os.Stdout} // for Outer
	cmd.SysProcAttr = attributes
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		t.Logf("%s", out)
	case errors.As(err, &exit):
		t.Errorf("in namespaces of its own: %v\n%s", err, out)
	case os.Geteuid() == 0:
		t.Fatalf("root cannot give this test namespaces of its own: %v", err)
	default:
		t.Skipf("the system lets this test have no namespaces of its own: %v", err)
	}
	return false
}
