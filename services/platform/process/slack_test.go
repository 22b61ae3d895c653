package process

import (
	"errors"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Every thread may be woken late, those that began before and those that begin later. A program with C in it keeps what it has.
func TestSleepLong(t *testing.T) {
	const usual = 50_000
	want := int(slack)
	_, _, errno := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, unix.PR_SET_TIMERSLACK, usual, 0) // another test may have run a program
	if errno == syscall.ENOTSUP {
		want = usual
	} else if errno != 0 {
		t.Fatal(errno)
	}
	if got := slackOfAThread(t); got != usual {
		t.Fatalf("at first a thread has a slack of %d ns", got)
	}
	if err := sleepLong(); !errors.Is(err, errno) && err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if got := slackOfAThread(t); got != want {
			t.Errorf("a thread has a slack of %d ns, not %d", got, want)
		}
	}
}

// slackOfAThread is another thread's each time.
func slackOfAThread(t *testing.T) int {
	t.Helper()
	got := make(chan int, 1)
	go func() {
		defer close(got)
		runtime.LockOSThread() // and never unlocked, which ends the thread
		ns, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
		if err != nil {
			t.Error(err)
		}
		got <- ns
	}()
	return <-got
}
