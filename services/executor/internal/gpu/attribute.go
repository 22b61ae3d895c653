package gpu

import (
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/procfs"
)

const (
	// maxDepth bounds the walk from a program to its first ancestor.
	maxDepth = 64
	maxUser  = 32
)

// attributed says whose the processes are, and notes it in owners.
func (m *Monitor) attributed(processes []Process, claims []Claim, owners map[int]string) []Process {
	if len(processes) == 0 {
		return nil
	}
	out := make([]Process, 0, len(processes))
	for _, p := range processes {
		if id, known := m.owner(p.PID, claims); known {
			p.Service = id
		} else {
			// It has ended, and the driver has not noticed yet.
			p.Service = m.owners[p.PID]
		}
		owners[p.PID] = p.Service
		p.Name, p.User = m.describe(p.PID)
		out = append(out, p)
	}
	return out
}

// owner is the service that the process belongs to, "" for a stranger; known is false where there is no such process any more.
func (m *Monitor) owner(pid int, claims []Claim) (id string, known bool) {
	groups, err := m.groups(pid)
	if err != nil {
		return "", false
	}
	longest := 0
	for _, c := range claims {
		if c.CGroup == "" || c.CGroup == "/" || len(c.CGroup) <= longest {
			continue
		}
		for _, g := range groups {
			if g == c.CGroup || strings.HasPrefix(g, strings.TrimSuffix(c.CGroup, "/")+"/") {
				id, longest = c.Service, len(c.CGroup)
			}
		}
	}
	if id != "" {
		return id, true
	}
	for range maxDepth {
		if pid <= 1 {
			break
		}
		for _, c := range claims {
			if c.PID == pid {
				return c.Service, true
			}
		}
		if pid, err = m.parent(pid); err != nil {
			break
		}
	}
	return "", true
}

// groups are the control groups of a process: one of version 2, and one a hierarchy of version 1.
func (m *Monitor) groups(pid int) ([]string, error) {
	raw, err := os.ReadFile(m.file(pid, "cgroup"))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, path := range procfs.CGroups(string(raw)) {
		out = append(out, path)
	}
	return out, nil
}

// parent is field 4 of /proc/PID/stat.
func (m *Monitor) parent(pid int) (int, error) {
	raw, err := os.ReadFile(m.file(pid, "stat"))
	if err != nil {
		return 0, err
	}
	fields := procfs.Stat(raw)
	if len(fields) < 2 {
		return 0, os.ErrInvalid
	}
	return strconv.Atoi(fields[1])
}

// describe returns a process' own word for itself and its user's name.
func (m *Monitor) describe(pid int) (name, owner string) {
	if raw, err := os.ReadFile(m.file(pid, "comm")); err == nil {
		name = clean.Name(strings.TrimSuffix(string(raw), "\n"), maxName)
	}
	if _, err := strconv.Atoi(name); err == nil {
		// The kernel calls a program by the number of the file that it was started from, as package process does.
		if raw, err := os.ReadFile(m.file(pid, "cmdline")); err == nil {
			program, _, _ := strings.Cut(string(raw), "\x00")
			name = clean.Name(filepath.Base(program), maxName)
		}
	}
	info, err := os.Stat(filepath.Dir(m.file(pid, "comm")))
	if err != nil {
		return name, ""
	}
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return name, ""
	}
	return name, m.username(sys.Uid)
}

// username is remembered: names are looked up in a file.
func (m *Monitor) username(uid uint32) string {
	if known, ok := m.users[uid]; ok {
		return known
	}
	name := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(name); err == nil {
		name = clean.Name(u.Username, maxUser)
	}
	m.users[uid] = name
	return name
}

func (m *Monitor) file(pid int, name string) string {
	return filepath.Join(m.proc, strconv.Itoa(pid), name)
}
