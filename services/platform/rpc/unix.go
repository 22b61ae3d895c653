package rpc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/security/ownership"
)

// unixPeer is who is at the other end of a Unix socket, as the kernel noted it when the connection was made (on the side of the
// one who connected) or when the socket began to listen (on the other).
type unixPeer struct {
	pid      int32
	uid, gid uint32
	groups   []uint32
}

// String says who it is, for our own log.
func (p unixPeer) String() string {
	return fmt.Sprintf("user %d (group %d, process %d)", p.uid, p.gid, p.pid)
}

// unixListener lets in whom its address names.
type unixListener struct {
	*net.UnixListener
	users, groups []uint32
	// refused is told of each peer that is turned away; nil: nobody is.
	refused atomic.Pointer[func(peer unixPeer)]
}

// listenUnix makes the socket. Anybody may knock whom the folder lets reach it: Accept asks the kernel who it is.
func listenUnix(addr string) (net.Listener, error) {
	u, err := config.ParseUnix(addr)
	if err != nil {
		return nil, fmt.Errorf("listen address %q %w", addr, err)
	}
	l := &unixListener{users: []uint32{0, uint32(os.Geteuid())}}
	for _, name := range u.Users {
		uid, err := userNumber(name)
		if err != nil {
			return nil, fmt.Errorf("listen address %q: %w", addr, err)
		}
		l.users = append(l.users, uid)
	}
	for _, name := range u.Groups {
		gid, err := groupNumber(name)
		if err != nil {
			return nil, fmt.Errorf("listen address %q: %w", addr, err)
		}
		l.groups = append(l.groups, gid)
	}
	// Otherwise another user could put a socket of his own in the place of ours.
	if err := ownership.Own(filepath.Dir(u.Path)); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", u.Path, err)
	}
	if err := removeStale(u.Path); err != nil {
		return nil, err
	}
	if l.UnixListener, err = net.ListenUnix("unix", &net.UnixAddr{Name: u.Path, Net: "unix"}); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", u.Path, err)
	}
	mode := fs.FileMode(0o600)
	if len(l.users) > 2 || len(l.groups) > 0 {
		mode = 0o666 // who may come is of several users and groups, which a mode cannot say
	}
	if err := os.Chmod(u.Path, mode); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", u.Path, err), l.Close())
	}
	return l, nil
}

// removeStale removes a socket on which nobody listens any more, as a process leaves it that was killed.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("listen on %s: %w", path, err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is there already, and is no socket", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		holder := "another process"
		if p, err := peerOf(conn); err == nil {
			holder = p.String()
		}
		return errors.Join(fmt.Errorf("%s is in use by %s", path, holder), conn.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	return os.Remove(path)
}

// Accept returns the next connection of somebody who may come; it closes the others unread.
func (l *unixListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		peer, err := peerOf(conn)
		if err == nil && l.allowed(peer) {
			return conn, nil
		}
		if tell := l.refused.Load(); tell != nil {
			(*tell)(peer)
		}
		_ = conn.Close() // whoever it is learns nothing
	}
}

func (l *unixListener) allowed(p unixPeer) bool {
	return slices.Contains(l.users, p.uid) || slices.Contains(l.groups, p.gid) ||
		slices.ContainsFunc(p.groups, func(gid uint32) bool { return slices.Contains(l.groups, gid) })
}

// dialUnix connects to a socket, and leaves it again when another user listens there than the address names.
func dialUnix(ctx context.Context, u config.Unix) (net.Conn, error) {
	if len(u.Users) == 0 {
		return nil, fmt.Errorf("%s: name who listens there, as unix:%[1]s,user=NAME", u.Path)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", u.Path)
	if err != nil {
		return nil, err
	}
	err = func() error {
		want, err := userNumber(u.Users[0])
		if err != nil {
			return err
		}
		peer, err := peerOf(conn)
		if err == nil && peer.uid != want {
			err = fmt.Errorf("%s listens on %s, not %s", peer, u.Path, u.Users[0])
		}
		return err
	}()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// DialContext connects to an address as it stands in a configuration: host:port, or a Unix socket, whose user is checked.
func DialContext(ctx context.Context, addr string) (net.Conn, error) {
	if !config.IsUnix(addr) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	}
	u, err := config.ParseUnix(addr)
	if err != nil {
		return nil, fmt.Errorf("address %q %w", addr, err)
	}
	return dialUnix(ctx, u)
}

// peerOf asks the kernel who is at the other end.
func peerOf(conn net.Conn) (unixPeer, error) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return unixPeer{}, errors.New("not a socket")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return unixPeer{}, err
	}
	var p unixPeer
	var failure error
	err = raw.Control(func(fd uintptr) {
		var cred *syscall.Ucred
		if cred, failure = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); failure != nil {
			return
		}
		p.pid, p.uid, p.gid = cred.Pid, cred.Uid, cred.Gid
		p.groups, failure = peerGroups(fd)
	})
	return p, errors.Join(err, failure)
}

// peerGroups reads the supplementary groups of the peer: SO_PEERGROUPS, socket(7), since Linux 4.13. The package syscall has
// no function for an option of variable length.
func peerGroups(fd uintptr) ([]uint32, error) {
	const option = 59    // SO_PEERGROUPS, the same on every architecture that we build for
	const most = 1 << 16 // NGROUPS_MAX
	for size := 64; size <= most; size *= 4 {
		groups := make([]uint32, size)
		length := uint32(4 * size)
		_, _, errno := syscall.Syscall6(syscall.SYS_GETSOCKOPT, fd, syscall.SOL_SOCKET, option,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&length)), 0) //nolint:gosec // as getsockopt(2) wants it
		switch errno {
		case 0:
			return groups[:length/4], nil
		case syscall.ERANGE:
		default:
			return nil, fmt.Errorf("groups of the peer: %w", errno)
		}
	}
	return nil, errors.New("groups of the peer: too many")
}

func userNumber(name string) (uint32, error) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(n), nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, fmt.Errorf("there is no user %s", name)
	}
	return number(u.Uid)
}

func groupNumber(name string) (uint32, error) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(n), nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, fmt.Errorf("there is no group %s", name)
	}
	return number(g.Gid)
}

func number(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err
}
