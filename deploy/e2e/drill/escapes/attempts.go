package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// processes reaches for processes that are not the child's own.
func (r *report) processes(at targets) {
	r.tryIf(syscall.Kill(at.pid, 0) == nil, "signals a process of the host")
	r.tryIf(syscall.Kill(at.pid, syscall.SIGSTOP) == nil, "stops a process of the host")
	_ = syscall.Kill(at.pid, syscall.SIGCONT)
	entries, _ := os.ReadDir("/proc")
	seen := 0
	for _, e := range entries {
		if strings.Trim(e.Name(), "0123456789") == "" {
			seen++
		}
	}
	r.tryIf(seen > 8, fmt.Sprintf("sees %d processes", seen))
	for _, pid := range []int{1, os.Getppid(), at.pid} {
		r.call(fmt.Sprintf("ptrace %d", pid), unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0)
		var word [8]byte
		local, remote := unix.Iovec{Base: &word[0], Len: 8}, unix.RemoteIovec{Base: 0x400000, Len: 8}
		r.call(fmt.Sprintf("process_vm_readv %d", pid), unix.SYS_PROCESS_VM_READV, uintptr(pid), ptr(&local), 1, ptr(&remote), 1)
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			r.call(fmt.Sprintf("pidfd_getfd %d", pid), unix.SYS_PIDFD_GETFD, uintptr(fd), 0, 0)
			r.call(fmt.Sprintf("setns %d", pid), unix.SYS_SETNS, uintptr(fd), unix.CLONE_NEWNET|unix.CLONE_NEWNS)
		}
	}
	for _, space := range []string{"net", "mnt", "user", "pid"} {
		if f, err := os.Open("/proc/1/ns/" + space); err == nil {
			r.call("setns "+space, unix.SYS_SETNS, f.Fd(), 0)
		}
	}
	r.tryIf(unix.Setpriority(unix.PRIO_PROCESS, 0, -5) == nil, "goes before others")
	r.tryIf(unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}) == nil, "raises its limits")
}

// network reaches for what listens on the host, and for ways to the network.
func (r *report) network(at targets) {
	dial := func(network, address string) bool {
		conn, err := net.DialTimeout(network, address, time.Second)
		if err != nil {
			return false
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		if _, err := conn.Write([]byte("out")); err != nil {
			return false
		}
		n, err := conn.Read(make([]byte, 1))
		return err == nil && n > 0
	}
	r.tryIf(dial("tcp", at.tcp), "reaches "+at.tcp)
	_, port, _ := net.SplitHostPort(at.tcp)
	r.tryIf(dial("tcp", "[::1]:"+port), "reaches loopback over IPv6")
	r.tryIf(dial("tcp", "0.0.0.0:"+port), "reaches loopback at 0.0.0.0")
	r.tryIf(dial("tcp", "[::ffff:127.0.0.1]:"+port), "reaches loopback by an address within IPv6")
	r.tryIf(dial("udp", at.udp), "reaches "+at.udp+" by UDP")
	r.tryIf(dial("unix", "@"+at.abstract), "reaches an abstract socket")
	for _, path := range append(strings.Split(at.sockets, ","), "/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/egress.sock") {
		conn, err := net.DialTimeout("unix", path, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		r.tryIf(err == nil, "reaches "+path)
	}
	names, err := net.LookupHost("localhost.localdomain.test")
	r.tryIf(err == nil && len(names) > 0, "looks names up")
	interfaces, _ := net.Interfaces()
	r.tryIf(len(interfaces) > 1, fmt.Sprintf("has %d network interfaces", len(interfaces)))
	for name, s := range map[string][3]int{
		"vsock": {unix.AF_VSOCK, unix.SOCK_STREAM}, "packet": {unix.AF_PACKET, unix.SOCK_RAW}, "netlink audit": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT},
		"netlink netfilter": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, "netlink uevent": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT},
		"alg": {unix.AF_ALG, unix.SOCK_SEQPACKET}, "bluetooth": {unix.AF_BLUETOOTH, unix.SOCK_RAW}, "key": {unix.AF_KEY, unix.SOCK_RAW, 2},
		"tipc": {unix.AF_TIPC, unix.SOCK_RDM}, "xdp": {unix.AF_XDP, unix.SOCK_RAW}, "can": {unix.AF_CAN, unix.SOCK_RAW, 1}, "rds": {unix.AF_RDS, unix.SOCK_SEQPACKET},
		"smc": {unix.AF_SMC, unix.SOCK_STREAM}, "kcm": {unix.AF_KCM, unix.SOCK_DGRAM},
	} {
		fd, err := unix.Socket(s[0], s[1], s[2])
		if err == nil {
			_ = unix.Close(fd)
			r.Calls++
		}
		r.tryIf(err == nil, "opens a socket: "+name)
	}
	for name, s := range map[string][3]int{"IPv4": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, "IPv6": {unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6}} {
		fd, err := unix.Socket(s[0], s[1], s[2])
		if err == nil {
			_ = unix.Close(fd)
		}
		r.tryIf(err == nil, "opens a raw socket: "+name)
	}
	// The high half of the word is none of the kernel's business; a filter that compares it whole lets AF_VSOCK through.
	r.call("socket with a high half", unix.SYS_SOCKET, 1<<32|unix.AF_VSOCK, unix.SOCK_STREAM, 0)
}

// call makes a system call that the filter is to refuse; whatever else the kernel says of it, it got there.
func (r *report) call(name string, number uintptr, args ...uintptr) {
	var a [6]uintptr
	copy(a[:], args)
	_, _, errno := syscall.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	if there := !errors.Is(errno, syscall.EPERM) && !errors.Is(errno, syscall.ENOSYS) && !errors.Is(errno, syscall.EAFNOSUPPORT); there {
		r.Calls++
		r.try(fmt.Sprintf("gets to the kernel with %s (%v)", name, errno))
		return
	}
	r.try("")
}

func ptr[T any](v *T) uintptr { return uintptr(unsafe.Pointer(v)) }

// kernel makes the calls that have let others out.
func (r *report) kernel(at targets) {
	empty, proc, tmpfs, root := []byte("\x00"), []byte("/proc\x00"), []byte("tmpfs\x00"), []byte("/\x00")
	zero := make([]byte, 256)
	z := ptr(&zero[0])
	for _, c := range []struct {
		name   string
		number uintptr
		args   []uintptr
	}{
		{"bpf", unix.SYS_BPF, []uintptr{0, z, 64}},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, []uintptr{1, z}},
		{"io_uring_enter", unix.SYS_IO_URING_ENTER, []uintptr{0}},
		{"io_uring_register", unix.SYS_IO_URING_REGISTER, []uintptr{0}},
		{"keyctl", unix.SYS_KEYCTL, []uintptr{0, ^uintptr(2), 1}},
		{"add_key", unix.SYS_ADD_KEY, []uintptr{z, z, z, 1, ^uintptr(2)}},
		{"request_key", unix.SYS_REQUEST_KEY, []uintptr{z, z, z, 0}},
		{"userfaultfd", unix.SYS_USERFAULTFD, []uintptr{1}},
		{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, []uintptr{z, 0, 0, 0, 0}},
		{"mount", unix.SYS_MOUNT, []uintptr{ptr(&tmpfs[0]), ptr(&proc[0]), ptr(&tmpfs[0])}},
		{"mount, bound", unix.SYS_MOUNT, []uintptr{ptr(&root[0]), ptr(&proc[0]), 0, unix.MS_BIND}},
		{"mount, written again", unix.SYS_MOUNT, []uintptr{0, ptr(&root[0]), 0, unix.MS_REMOUNT | unix.MS_BIND}},
		{"umount2", unix.SYS_UMOUNT2, []uintptr{ptr(&proc[0]), unix.MNT_DETACH}},
		{"open_tree", unix.SYS_OPEN_TREE, []uintptr{0, ptr(&root[0]), 1}},
		{"move_mount", unix.SYS_MOVE_MOUNT, []uintptr{0, ptr(&empty[0]), 0, ptr(&empty[0]), 0}},
		{"fsopen", unix.SYS_FSOPEN, []uintptr{ptr(&tmpfs[0])}},
		{"fsmount", unix.SYS_FSMOUNT, []uintptr{0}},
		{"mount_setattr", unix.SYS_MOUNT_SETATTR, []uintptr{0, ptr(&root[0]), 0, z, 32}},
		{"pivot_root", unix.SYS_PIVOT_ROOT, []uintptr{ptr(&root[0]), ptr(&root[0])}},
		{"chroot", unix.SYS_CHROOT, []uintptr{ptr(&root[0])}},
		{"unshare user", unix.SYS_UNSHARE, []uintptr{unix.CLONE_NEWUSER}},
		{"unshare network", unix.SYS_UNSHARE, []uintptr{unix.CLONE_NEWNET}},
		{"unshare mounts", unix.SYS_UNSHARE, []uintptr{unix.CLONE_NEWNS}},
		{"clone3", unix.SYS_CLONE3, []uintptr{0, 0}},
		{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, []uintptr{0, z, 0}},
		{"name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, []uintptr{0, ptr(&root[0]), z, z, 0}},
		{"fanotify_init", unix.SYS_FANOTIFY_INIT, []uintptr{0, 0}},
		{"init_module", unix.SYS_INIT_MODULE, []uintptr{z, 8, z}},
		{"kexec_load", unix.SYS_KEXEC_LOAD, []uintptr{0, 0, 0, 0}},
		{"swapon", unix.SYS_SWAPON, []uintptr{ptr(&root[0])}},
		{"settimeofday", unix.SYS_SETTIMEOFDAY, []uintptr{z, 0}},
		{"clock_settime", unix.SYS_CLOCK_SETTIME, []uintptr{0, z}},
		{"sethostname", unix.SYS_SETHOSTNAME, []uintptr{z, 1}},
		{"modify_ldt", unix.SYS_MODIFY_LDT, []uintptr{0, z, 8}},
		{"iopl", unix.SYS_IOPL, []uintptr{3}},
		{"acct", unix.SYS_ACCT, []uintptr{0}},
		{"quotactl", unix.SYS_QUOTACTL, []uintptr{0}},
		{"syslog", unix.SYS_SYSLOG, []uintptr{3, z, 256}},
		{"move_pages", unix.SYS_MOVE_PAGES, []uintptr{0, 0}},
		{"a call of another ABI (x32)", 0x40000000 | unix.SYS_GETPID, nil},
		{"a call that nobody knows", 999, nil},
	} {
		r.call(c.name, c.number, c.args...)
	}
	cmd := exec.Command("/proc/self/exe", "-act", "alive")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	out, _ := cmd.Output()
	r.tryIf(len(out) > 0, "makes a user namespace")
	out, _ = exec.Command(at.foreign, "-act", "alive").Output()
	if len(out) > 0 {
		r.Calls++
	}
	r.tryIf(len(out) > 0, "runs a 32-bit program, whose calls are others")
	r.tryIf(syscall.Setuid(0) == nil && os.Getuid() == 0, "becomes root")
	r.tryIf(syscall.Mknod("/data/device", syscall.S_IFBLK|0o600, 8<<8) == nil, "makes a device")
	// A program of the child's with the bit of another user stays the child's.
	if raw, err := os.ReadFile("/proc/self/exe"); err == nil && os.WriteFile("/data/bit", raw, 0o700) == nil {
		_ = os.Chmod("/data/bit", 0o4755|os.ModeSetuid)
		out, _ := exec.Command("/data/bit", "-act", "alive").Output()
		var st syscall.Stat_t
		r.tryIf(len(out) > 0 && syscall.Stat("/data/bit", &st) == nil && int(st.Uid) != os.Getuid(), "runs as another user")
		_ = os.Remove("/data/bit")
	}
}
