package discover

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"durward.internal/services/platform/procfs"
)

// processes is what /proc says of the host's programs: which control group each is in, and its command line.
type processes struct {
	root string
	// group is each process's control group, where it may be read.
	group map[int]string
}

const (
	maxProcesses   = 65536
	maxCommandLine = 128 << 10
)

// readProcesses looks at every process once. What may not be read is passed over.
func readProcesses(root string) processes {
	p := processes{root: root, group: map[int]string{}}
	entries, err := os.ReadDir(root)
	if err != nil {
		return p
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || len(p.group) >= maxProcesses {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(root, e.Name(), "cgroup"))
		if err != nil {
			continue
		}
		if group := groupOf(string(raw)); group != "" {
			p.group[pid] = group
		}
	}
	return p
}

// groupOf is the control group in /proc/PID/cgroup: of version 2, or systemd's own of version 1.
func groupOf(text string) string {
	for controllers, path := range procfs.CGroups(text) {
		if controllers == "" || controllers == "name=systemd" {
			return path
		}
	}
	return ""
}

// in lists the processes of a control group and of those below it, the oldest number first.
func (p processes) in(group string) []int {
	if group == "" || group == "/" {
		return nil
	}
	var out []int
	for pid, at := range p.group {
		if at == group || strings.HasPrefix(at, group+"/") {
			out = append(out, pid)
		}
	}
	slices.Sort(out)
	return out
}

// commandLine is a process's argument vector, nil where it cannot be read.
func (p processes) commandLine(pid int) []string {
	f, err := os.Open(filepath.Join(p.root, strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return nil
	}
	defer f.Close()
	raw, err := readAll(f, maxCommandLine)
	if err != nil || len(raw) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00")
}
