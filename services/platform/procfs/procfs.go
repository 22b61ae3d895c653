// Package procfs reads what the kernel writes of programs in /proc, as proc(5) and cgroups(7) say. It opens no file itself, and trusts
// the kernel alone: what has another form reads as nothing.
package procfs

import (
	"bytes"
	"iter"
	"strings"
)

// CGroups goes through /proc/PID/cgroup: the control group's path by its hierarchy's controllers, which are "" for version 2.
func CGroups(text string) iter.Seq2[string, string] {
	return func(yield func(controllers, path string) bool) {
		for line := range strings.Lines(text) {
			// hierarchy:controllers:path; a path may hold colons.
			parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
			if len(parts) == 3 && !yield(parts[1], parts[2]) {
				return
			}
		}
	}
}

// Stat are the fields of /proc/PID/stat from the third on, the state: the name before it may itself hold spaces and parentheses.
func Stat(raw []byte) []string {
	end := bytes.LastIndexByte(raw, ')')
	if end < 0 {
		return nil
	}
	return strings.Fields(string(raw[end+1:]))
}
