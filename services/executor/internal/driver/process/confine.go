package process

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// slack is how late the kernel may wake a thread that sleeps, by default.
const slack = 50 * time.Microsecond

// punctual runs begin, which starts a program, so that the program's timers are those of any program: the executor's own may be late, and a
// child has those of the thread that starts it.
func punctual(begin func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack.Nanoseconds()), 0, 0, 0)
	}
	if err != nil {
		return fmt.Errorf("slack of timers: %w", err)
	}
	err = begin()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(own), 0, 0, 0) // #nosec G115 -- the kernel's own number; a punctual thread does no harm
	return err
}

// confined runs begin, which starts a program, on a thread that has given away what a program may not inherit. That thread
// ends with it: capabilities are a thread's own, and a child has those of the thread that starts it.
//
// A change of user alone is not enough. From one that is not root to another it clears no capability, and ambient ones outlive
// execve(2), so that a program of an executor that may change users could become root.
func confined(begin func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: Go ends the thread, and makes none from it
		if unix.Gettid() == unix.Getpid() {
			// The process's first thread cannot end. While this goroutine holds it, another one gets another.
			done <- confined(begin)
			runtime.UnlockOSThread()
			return
		}
		err := renounce()
		if err == nil {
			err = begin()
		}
		done <- err
	}()
	return <-done
}

// renounce takes from this thread's children every capability, and every way to get one by running a program. What the thread
// itself may do stays, so that it can change the child's user; the change of program ends that.
func renounce() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("ambient capabilities: %w", err)
	}
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // the kernel knows no more of them
		}
		if errors.Is(err, unix.EPERM) {
			break // without CAP_SETPCAP they stay, and no program can have anything of them without new privileges
		}
		if err != nil {
			return fmt.Errorf("bounding capabilities: %w", err)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	for i := range sets {
		sets[i].Inheritable = 0
	}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("inheritable capabilities: %w", err)
	}
	return nil
}
