// Package bounds takes from the process that it runs in everything that reading a model's files does not need, before a byte of
// them is read. What it trusts is the kernel alone; what a kernel cannot do is left out and said. It works in programs without
// cgo, as all of ours are that link it.
package bounds

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	abi "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// The limits. A header of 64 MiB, the largest that is read, takes some 150 MiB of memory.
const (
	// Data bounds what the process can write to (RLIMIT_DATA): memory beyond it ends the process. The address space
	// (RLIMIT_AS) is bounded wider, since Go's runtime reserves 1.2 GiB of it that no memory stands behind.
	Data         = 512 << 20
	AddressSpace = 4 << 30
	// softMemory is where the garbage collector begins to work harder.
	softMemory = 256 << 20
	// CPUSeconds is time on processors, of all threads together.
	CPUSeconds = 8
	// Files is how many may be open: the parts of a split model, and the runtime's own.
	Files = 300
	stack = 8 << 20
)

// Limit sets limits on memory, processor time and files, empties the environment and gives up ever gaining a privilege. It must
// be the first thing that a process does. Every part of it works on every Linux, so an error is a reason not to go on.
func Limit() error {
	os.Clearenv()
	debug.SetMemoryLimit(softMemory)
	debug.SetMaxStack(stack)
	debug.SetTraceback("none")
	for _, l := range []struct {
		what  int
		limit uint64
	}{
		{unix.RLIMIT_CORE, 0},
		{unix.RLIMIT_FSIZE, 0},
		{unix.RLIMIT_NOFILE, Files},
		{unix.RLIMIT_CPU, CPUSeconds},
		{unix.RLIMIT_DATA, Data},
		{unix.RLIMIT_AS, AddressSpace},
	} {
		if err := lower(l.what, l.limit); err != nil {
			return fmt.Errorf("limit %d: %w", l.what, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("dumpable: %w", err)
	}
	if err := allThreads(unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	return nil
}

// lower sets a limit, hard and soft, to n or to what it already is, if that is less.
func lower(what int, n uint64) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(what, &now); err != nil {
		return err
	}
	n = min(n, now.Max)
	return unix.Setrlimit(what, &unix.Rlimit{Cur: n, Max: n})
}

// Seal leaves the process what it has open and nothing more: no path can be opened or changed (Landlock), no socket made, no
// program started and no process traced (seccomp). Both are best effort: a kernel without them is as if Seal had not been called,
// and missing says which part that is.
func Seal() (missing error) {
	// The filter comes last: it forbids what Landlock is set up with.
	if err := confine(); err != nil {
		missing = fmt.Errorf("landlock: %w", err)
	}
	if err := filter(); err != nil {
		missing = errors.Join(missing, fmt.Errorf("seccomp: %w", err))
	}
	return missing
}

// confine lets no path be opened and, from Linux 6.7 on, no TCP port be bound or dialled.
func confine() error {
	if _, err := abi.LandlockGetABIVersion(); err != nil {
		return err
	}
	return landlock.V5.BestEffort().Restrict()
}

// filter lets only those calls through that a Go program makes which reads open files and writes its answer: any other one fails
// with EPERM. It is a list of what is allowed, so a call that a later kernel adds is not.
func filter() error {
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("not known on %s", runtime.GOARCH)
	}
	program := []unix.SockFilter{
		{Code: load, K: archAt},
		{Code: equal, K: arch, Jt: 1},
		{Code: answer, K: unix.SECCOMP_RET_KILL_PROCESS},
		{Code: load, K: number},
	}
	for _, call := range allowed {
		program = append(program,
			unix.SockFilter{Code: equal, K: uint32(call), Jf: 1},
			unix.SockFilter{Code: answer, K: unix.SECCOMP_RET_ALLOW})
	}
	for _, c := range conditions(os.Getpid()) {
		program = append(program, c.filter()...)
	}
	program = append(program, unix.SockFilter{Code: answer, K: refused})
	return install(program)
}

const (
	load    = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	equal   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	bits    = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	answer  = unix.BPF_RET | unix.BPF_K
	refused = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)

	// Offsets in struct seccomp_data. Of an argument the lower half is looked at, which comes first on both processors; the kernel
	// itself takes no more of those that conditions are about.
	number   = 0
	archAt   = 4
	argument = 16
)

// condition lets a call through whose argument is one of some values, or has one of them in its bits.
type condition struct {
	call, argument int
	values         []uint32
	asBits         bool
}

func (c condition) filter() []unix.SockFilter {
	body := []unix.SockFilter{{Code: load, K: argument + 8*uint32(c.argument)}}
	test := uint16(equal)
	if c.asBits {
		test = bits
	}
	for _, v := range c.values {
		body = append(body, unix.SockFilter{Code: test, K: v, Jf: 1}, unix.SockFilter{Code: answer, K: unix.SECCOMP_RET_ALLOW})
	}
	body = append(body, unix.SockFilter{Code: answer, K: refused})
	return append([]unix.SockFilter{{Code: equal, K: uint32(c.call), Jf: uint8(len(body))}}, body...)
}

// conditions are of calls that Go's runtime makes in one way and that would do harm in another.
func conditions(pid int) []condition {
	return []condition{
		// It wakes its own threads by signals. Any other process of the same user could be killed so.
		{call: unix.SYS_TGKILL, argument: 0, values: []uint32{uint32(pid)}},
		// It makes threads. A process of its own would have processor time of its own.
		{call: unix.SYS_CLONE, argument: 0, values: []uint32{unix.CLONE_THREAD}, asBits: true},
		// Not F_SETOWN with F_SETSIG, by which the kernel sends any signal to any process of the same user.
		{call: unix.SYS_FCNTL, argument: 1, values: []uint32{unix.F_GETFD, unix.F_GETFL, unix.F_SETFL}},
		// It names its memory.
		{call: unix.SYS_PRCTL, argument: 0, values: []uint32{unix.PR_SET_VMA}},
	}
}

// allowed is what Go's runtime and reads and writes of open files need, whatever the arguments.
var allowed = []int{
	unix.SYS_READ, unix.SYS_PREAD64, unix.SYS_WRITE, unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_LSEEK,
	unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_MPROTECT, unix.SYS_BRK, unix.SYS_MINCORE,
	unix.SYS_FUTEX, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_GETTID, unix.SYS_GETPID,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK,
	unix.SYS_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_RESTART_SYSCALL,
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2,
	unix.SYS_SETITIMER, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_DELETE,
	unix.SYS_RSEQ, unix.SYS_SET_ROBUST_LIST, unix.SYS_GETRANDOM,
	unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
}

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
