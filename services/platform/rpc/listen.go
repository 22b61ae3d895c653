package rpc

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/procfs"
)

// Listen listens on a TCP address. It refuses one that is not loopback unless allowRemote (NET-1), and says who holds a
// port that is taken, where /proc shows it. The caller closes the listener.
//
// On a Unix socket (config.Unix) it returns the connections of those alone whom the address names, of root and of our own
// user, as the kernel says who they are. Its folder must be ours or root's, and nobody else may write there. A socket that
// a killed process left behind is replaced; closing the listener removes the socket.
//
// Where systemd holds a socket for this process that is bound to this very address (sd_listen_fds(3)), that one is taken.
func Listen(addr string, allowRemote bool) (net.Listener, error) {
	if config.IsUnix(addr) {
		return listenUnix(addr)
	}
	if err := config.CheckListen(addr, allowRemote); err != nil {
		return nil, fmt.Errorf("listen address %q %w", addr, err)
	}
	if lis, err := passed(addr); lis != nil || err != nil {
		return lis, err
	}
	lis, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s is in use by %s", addr, holder(addr))
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return lis, nil
}

// passed returns the socket at addr that systemd has handed to this process; nil: it has handed over none.
func passed(addr string) (net.Listener, error) {
	const first = 3 // SD_LISTEN_FDS_START
	pid, err := strconv.Atoi(os.Getenv("LISTEN_PID"))
	count, countErr := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	want, wantErr := netip.ParseAddrPort(addr)
	if errors.Join(err, countErr, wantErr) != nil || pid != os.Getpid() || count > 16 {
		return nil, nil //nolint:nilnil // nothing was handed over, which is no error
	}
	for fd := first; fd < first+count; fd++ {
		if boundTo(fd) != want {
			continue
		}
		// A second descriptor: this one stays what it is, whoever asks next.
		syscall.CloseOnExec(fd)
		own, err := syscall.Dup(fd)
		if err != nil {
			return nil, fmt.Errorf("listen on %s, as systemd hands it over: %w", addr, err)
		}
		file := os.NewFile(uintptr(own), addr)
		lis, err := net.FileListener(file)
		if err = errors.Join(err, file.Close()); err != nil {
			return nil, fmt.Errorf("listen on %s, as systemd hands it over: %w", addr, err)
		}
		return lis, nil
	}
	return nil, nil //nolint:nilnil // as above
}

// boundTo is the address at which a descriptor listens; zero: at none.
func boundTo(fd int) netip.AddrPort {
	if listens, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN); err != nil || listens != 1 {
		return netip.AddrPort{}
	}
	local, err := syscall.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}
	}
	switch at := local.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port))
	case *syscall.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(at.Addr), uint16(at.Port))
	}
	return netip.AddrPort{}
}

// holder names the process that listens on addr: "vault (pid 4711)". It reads /proc and does its best.
func holder(addr string) string {
	const unknown = "another process"
	target, err := netip.ParseAddrPort(addr)
	if err != nil {
		return unknown
	}
	sockets, err := procfs.Listeners("/proc")
	if err != nil {
		return unknown
	}
	for _, s := range sockets {
		at := s.Local.Addr()
		if s.Local.Port() != target.Port() || at != target.Addr() && !at.IsUnspecified() && !target.Addr().IsUnspecified() {
			continue
		}
		if pid, name := socketOwner(s.Inode); pid != "" {
			return fmt.Sprintf("%s (pid %s)", clean.Line(name, 64), pid)
		}
	}
	return unknown
}

// socketOwner finds a process that has the socket open, among those that we may look into.
func socketOwner(inode string) (pid, name string) {
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return "", ""
	}
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || target != "socket:["+inode+"]" {
			continue
		}
		pid = strings.Split(link, "/")[2]
		comm, err := os.ReadFile("/proc/" + pid + "/comm")
		if err != nil {
			return pid, "a process"
		}
		return pid, strings.TrimSpace(string(comm))
	}
	return "", ""
}
