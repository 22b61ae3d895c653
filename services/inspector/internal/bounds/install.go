package bounds

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// allThreads calls prctl on every thread of the process. A thread that is made later has what its maker has.
func allThreads(option, value int, pointer uintptr) error {
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, uintptr(option), uintptr(value), pointer)
	if errno != 0 {
		return errno
	}
	return nil
}

// install puts a filter on every thread of the process. The units of systemd that start this one may forbid seccomp, the call, to
// what runs in them; prctl does the same, thread by thread.
func install(program []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	pointer := uintptr(unsafe.Pointer(&prog)) //nolint:gosec // G103: the call takes a pointer, and nothing in x/sys makes it
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, pointer)
	var err error
	if errno != 0 {
		err = allThreads(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, pointer)
	}
	runtime.KeepAlive(&prog)
	runtime.KeepAlive(program)
	return err
}
