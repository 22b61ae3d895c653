package live

import (
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"durward.internal/services/platform/procfs"
)

// Suspensions tells when a person presses Ctrl-Z, which Suspend is the answer to; without one this process goes on. end ends that.
func Suspensions() (asked <-chan os.Signal, end func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTSTP)
	return c, func() { signal.Stop(c) }
}

// Suspend gives the terminal back and stops this process until its shell continues it. What is drawn then opens the area anew.
func (a *Area) Suspend() {
	if !HasShell() {
		return // nobody would continue it
	}
	a.Close()
	// Not SIGTSTP: Go gives a signal that was asked for no default action any more.
	_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
}

// HasShell reports whether this process's group has a parent in another one of the session: a shell that controls jobs. The kernel asks the
// same before it stops a process for Ctrl-Z.
func HasShell() bool {
	session, _ := unix.Getsid(0)
	for pid := os.Getppid(); pid > 0; {
		if of, err := unix.Getsid(pid); err != nil || of != session {
			return false
		}
		if group, err := unix.Getpgid(pid); err != nil || group != unix.Getpgrp() {
			return err == nil
		}
		raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat") // one of the same group, as sudo and a script's shell are
		fields := procfs.Stat(raw)
		if err != nil || len(fields) < 2 {
			return false
		}
		pid, _ = strconv.Atoi(fields[1])
	}
	return false
}
