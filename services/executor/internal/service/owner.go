package service

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/procfs"
)

// errStranger: whoever answers at the service's port is none of its programs.
var errStranger = &failure{driver.CausePortInUse, fmt.Errorf("%w: a program that is not the service's", driver.ErrPortInUse)}

// errNobody: there is nobody to ask.
var errNobody = errors.New("nobody listens on the service's port")

// ours reports as an error that whoever listens on the service's port is not one of its programs. Where its driver tells of no
// program, that cannot be told; a container's port is held by Docker.
func (m *Manager) ours(s *catalog.Service) error {
	if s.Port == 0 || s.Driver == catalog.DriverDocker {
		return nil
	}
	return m.host.owns(m.driver(s).Status(s), s.Address())
}

// owns reports as an error that somebody else than the service's programs listens at the address, or nobody does. A
// program whose open files may not be seen owns its user's sockets, and root's: systemd opens some for others.
func (h host) owns(status driver.Status, at netip.AddrPort) error {
	pids := h.pids(status)
	if len(pids) == 0 {
		return nil
	}
	listeners, err := h.listeners(at)
	switch {
	case err != nil:
		return nil // this kernel does not tell
	case len(listeners) == 0:
		return errNobody
	}
	inodes, users := map[string]bool{}, map[string]bool{}
	hidden, seen := false, false
	for _, pid := range pids {
		dir := filepath.Join(h.proc, strconv.Itoa(pid))
		fds, err := os.ReadDir(filepath.Join(dir, "fd"))
		switch {
		case err == nil:
			seen = true
		case errors.Is(err, fs.ErrPermission):
			hidden = true
			if user, ok := h.user(pid); ok {
				users[user], users["0"] = true, true
			}
		}
		for _, fd := range fds {
			if to, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil {
				if inode, ok := strings.CutPrefix(to, "socket:["); ok {
					inodes[strings.TrimSuffix(inode, "]")] = true
				}
			}
		}
	}
	if !seen && len(users) == 0 {
		return nil // nothing is told of any of them
	}
	for _, l := range listeners {
		if !inodes[l.Inode] && (!hidden || !users[l.User]) {
			return errStranger
		}
	}
	return nil
}

// listeners are the sockets that take connections to the address. One at :: takes those of IPv4 too, and one at 0.0.0.0 none of IPv6.
func (h host) listeners(at netip.AddrPort) ([]procfs.Socket, error) {
	all, err := procfs.Listeners(h.proc)
	return slices.DeleteFunc(all, func(s procfs.Socket) bool {
		everywhere := s.Local.Addr().IsUnspecified() && (at.Addr().Is4() || s.Local.Addr().Is6())
		return s.Local.Port() != at.Port() || s.Local.Addr() != at.Addr() && !everywhere
	}), err
}

// pids are a service's programs: those of its control group, or its first one and what descends from it or is of its session.
func (h host) pids(status driver.Status) []int {
	all := map[int]bool{}
	if status.CGroup != "" && status.CGroup != "/" {
		for _, hierarchy := range []string{"", "unified", "systemd", "pids", "memory"} {
			_ = filepath.WalkDir(filepath.Join(h.cgroups, hierarchy, status.CGroup), func(path string, _ fs.DirEntry, err error) error {
				if err != nil || filepath.Base(path) != "cgroup.procs" {
					return nil //nolint:nilerr // a group that is gone meanwhile has no programs
				}
				text, _ := os.ReadFile(path) //nolint:gosec // the kernel's control groups hold no links
				for field := range strings.FieldsSeq(string(text)) {
					if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
						all[pid] = true
					}
				}
				return nil
			})
		}
	}
	if status.PID <= 0 {
		return slices.Sorted(maps.Keys(all))
	}
	all[status.PID] = true
	if len(all) == 1 {
		h.family(status.PID, all)
	}
	return slices.Sorted(maps.Keys(all))
}

// family adds what descends from the program, and what is of its session if it leads one.
func (h host) family(first int, all map[int]bool) {
	children := map[int][]int{}
	for pid, text := range procfs.Processes(h.proc, "stat") {
		fields := procfs.Stat([]byte(text)) // state, parent, group, session
		if len(fields) < 4 {
			continue
		}
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			children[parent] = append(children[parent], pid)
		}
		if fields[3] == strconv.Itoa(first) {
			all[pid] = true
		}
	}
	for next := slices.Collect(maps.Keys(all)); len(next) > 0; {
		var later []int
		for _, pid := range next {
			for _, child := range children[pid] {
				if !all[child] {
					all[child] = true
					later = append(later, child)
				}
			}
		}
		next = later
	}
}

// user is the effective user of a program, as /proc/PID/status shows it.
func (h host) user(pid int) (string, bool) {
	text, err := os.ReadFile(filepath.Join(h.proc, strconv.Itoa(pid), "status"))
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[0] == "Uid:" {
			return fields[2], true
		}
	}
	return "", false
}

// HostAvailable is how much memory this host can give to programs without pushing others out, in MiB.
func HostAvailable() (uint64, error) { return host{proc: "/proc"}.available() }

// available is how much memory the host can give to programs without pushing others out, in MiB.
func (h host) available() (uint64, error) {
	text, err := os.ReadFile(filepath.Join(h.proc, "meminfo"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "MemAvailable:" {
			kib, err := strconv.ParseUint(fields[1], 10, 64)
			return kib / 1024, err
		}
	}
	return 0, errors.New("MemAvailable is not told")
}
