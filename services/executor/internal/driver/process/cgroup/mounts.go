package cgroup

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"durward.internal/services/platform/procfs"
)

// hierarchy is where this process is, in version 2 or in one hierarchy of version 1.
type hierarchy struct {
	unified bool
	dir     string
	// shown is dir as /proc/PID/cgroup shows it.
	shown string
	// controls are a version 1 hierarchy's controllers.
	controls []string
}

// hierarchies reads /proc/self/mountinfo and /proc/self/cgroup. Where a controller is of version 1, version 2 cannot have it, so
// version 2 alone is used only where no hierarchy of version 1 bounds anything.
func hierarchies(mountinfo, self string) []hierarchy {
	paths := maps.Collect(procfs.CGroups(self))
	var first, second []hierarchy
	for line := range strings.Lines(mountinfo) {
		m, ok := parseMount(line)
		if !ok {
			continue
		}
		switch m.kind {
		case "cgroup2":
			if path, ok := paths[""]; ok && len(second) == 0 {
				if dir, ok := m.find(path); ok {
					second = append(second, hierarchy{unified: true, dir: dir, shown: path})
				}
			}
		case "cgroup":
			for names, path := range paths {
				var useful []string
				for _, c := range strings.Split(names, ",") {
					if slices.Contains(controllers, c) && slices.Contains(m.options, c) {
						useful = append(useful, c)
					}
				}
				dir, ok := m.find(path)
				if len(useful) > 0 && ok && !slices.ContainsFunc(first, func(h hierarchy) bool { return h.dir == dir || h.controls[0] == useful[0] }) {
					first = append(first, hierarchy{dir: dir, shown: path, controls: useful})
				}
			}
		}
	}
	if len(first) == 0 {
		return second
	}
	// The one of memory comes first: by its path the group is known.
	slices.SortStableFunc(first, func(a, b hierarchy) int {
		return slices.Index(controllers, a.controls[0]) - slices.Index(controllers, b.controls[0])
	})
	return first
}

type mount struct {
	root, point, kind string
	options           []string
}

// parseMount reads a line of /proc/self/mountinfo: ID PARENT DEVICE ROOT POINT OPTIONS [TAG...] - KIND SOURCE SUPEROPTIONS.
func parseMount(line string) (mount, bool) {
	before, after, ok := strings.Cut(line, " - ")
	fields, rest := strings.Fields(before), strings.Fields(after)
	if !ok || len(fields) < 6 || len(rest) < 3 {
		return mount{}, false
	}
	return mount{root: fields[3], point: fields[4], kind: rest[0], options: strings.Split(rest[2], ",")}, true
}

// find is the folder of a path of /proc/self/cgroup. A mount may show a part of the hierarchy alone.
func (m mount) find(path string) (string, bool) {
	if !filepath.IsAbs(path) || strings.Contains(path, "/..") || strings.ContainsRune(m.point+m.root, '\\') {
		return "", false
	}
	if m.root == "/" {
		return filepath.Join(m.point, path), true
	}
	if path == m.root {
		return m.point, true
	}
	rest, ok := strings.CutPrefix(path, m.root+"/")
	return filepath.Join(m.point, rest), ok
}
