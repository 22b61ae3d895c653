package sandbox

import (
	"encoding/binary"
	"fmt"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// refused are system calls that no MCP server needs: those that look into other processes, load code into the kernel, change what is
// mounted, make or enter namespaces, keep keys, set the clock, or have had more than their share of the kernel's holes.
var refused = []string{
	"ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd", "perf_event_open",
	"bpf", "io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "modify_ldt", "iopl", "ioperm",
	"add_key", "request_key", "keyctl",
	"mount", "umount", "umount2", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "pivot_root", "chroot",
	"unshare", "setns", "open_by_handle_at", "name_to_handle_at", "fanotify_init",
	"kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot", "swapon", "swapoff", "acct", "quotactl",
	"quotactl_fd", "syslog", "vhangup", "lookup_dcookie", "sethostname", "setdomainname", "settimeofday", "clock_settime", "clock_adjtime",
	"adjtimex", "mbind", "set_mempolicy", "migrate_pages", "move_pages",
}

// namespaces are the flags of clone(2) that make one.
const namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// filter is the seccomp program of every child, as bubblewrap reads it: an array of struct sock_filter.
//
// What is not refused by name is allowed, but for what the table of system calls does not have: a kernel newer than the table has calls
// that nobody judged. Sockets are of Unix, IPv4 and IPv6, and of netlink those that tell a program its own interfaces.
func filter() ([]byte, error) {
	info, err := arch.GetInfo("")
	if err != nil {
		return nil, fmt.Errorf("seccomp: %w", err)
	}
	var known []string
	for _, name := range refused {
		if _, there := info.SyscallNames[name]; there {
			known = append(known, name)
		}
	}
	newest := 0
	for _, number := range info.SyscallNames {
		newest = max(newest, number)
	}
	is := func(argument uint32, op seccomp.Operation, value uint64) seccomp.Condition {
		return seccomp.Condition{Argument: argument, Operation: op, Value: value}
	}
	policy := seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: []seccomp.SyscallGroup{
		// A caller falls back to clone(2), whose flags can be read.
		{Names: []string{"clone3"}, Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS)},
		{Names: known, Action: seccomp.ActionErrno | seccomp.Action(unix.EPERM), NamesWithCondtions: []seccomp.NameWithConditions{
			{Name: "clone", Conditions: seccomp.ArgumentConditions{is(0, seccomp.BitsSet, namespaces)}},
		}},
		{Action: seccomp.ActionErrno | seccomp.Action(unix.EAFNOSUPPORT), NamesWithCondtions: []seccomp.NameWithConditions{
			{Name: "socket", Conditions: seccomp.ArgumentConditions{
				is(0, seccomp.NotEqual, unix.AF_UNIX), is(0, seccomp.NotEqual, unix.AF_INET), is(0, seccomp.NotEqual, unix.AF_INET6),
				is(0, seccomp.NotEqual, unix.AF_NETLINK),
			}},
			{Name: "socket", Conditions: seccomp.ArgumentConditions{
				is(0, seccomp.Equal, unix.AF_NETLINK), is(2, seccomp.NotEqual, unix.NETLINK_ROUTE),
			}},
			{Name: "socketpair", Conditions: seccomp.ArgumentConditions{is(0, seccomp.NotEqual, unix.AF_UNIX)}},
		}},
	}}
	judged, err := policy.Assemble()
	if err != nil {
		return nil, fmt.Errorf("seccomp: %w", err)
	}
	// The library lets calls of another architecture pass: a 32-bit program, or `int 0x80` in a 64-bit one, would be past the list.
	const number, architecture, word = 0, 4, 4
	before := []bpf.Instruction{
		bpf.LoadAbsolute{Off: architecture, Size: word},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(info.ID), SkipTrue: 1},
		bpf.RetConstant{Val: uint32(seccomp.ActionKillProcess)},
		bpf.LoadAbsolute{Off: number, Size: word},
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: uint32(newest), SkipFalse: 1},
		bpf.RetConstant{Val: uint32(seccomp.ActionErrno) | uint32(unix.ENOSYS)},
	}
	raw, err := bpf.Assemble(append(before, judged...))
	if err != nil {
		return nil, fmt.Errorf("seccomp: %w", err)
	}
	var out []byte
	for _, i := range raw {
		out = binary.NativeEndian.AppendUint16(out, i.Op)
		out = append(out, i.Jt, i.Jf)
		out = binary.NativeEndian.AppendUint32(out, i.K)
	}
	return out, nil
}
