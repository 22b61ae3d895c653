package process

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"durward.internal/services/platform/procfs"
)

// identity is a process and no other: pids are reused, pairs of pid and start time within one boot are not.
type identity struct {
	pid int
	// start is field 22 of /proc/PID/stat, in clock ticks since boot.
	start uint64
}

// alive reports whether that very process runs; a zombie does not.
func alive(who identity) bool {
	if who.pid <= 0 {
		return false
	}
	st, err := stat(who.pid)
	return err == nil && st.start == who.start && st.runs()
}

// runs reports whether anything of the process still holds files and ports. A first thread that is a zombie says nothing
// while others are on their way out.
func (s procStat) runs() bool { return s.state != 'Z' && s.state != 'X' || s.threads > 1 }

// ticks is when a process started, in clock ticks since boot.
func ticks(pid int) (uint64, error) {
	st, err := stat(pid)
	return st.start, err
}

type procStat struct {
	state   byte
	group   int
	session int
	threads int
	start   uint64
}

var errStat = errors.New("/proc/PID/stat is not readable as the kernel writes it")

func stat(pid int) (procStat, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, err
	}
	return parseStat(raw)
}

// parseStat reads what follows the program's name.
func parseStat(raw []byte) (procStat, error) {
	fields := procfs.Stat(raw)
	// fields[0] is field 3 (state), fields[2] is field 5 (group), fields[3] is field 6 (session), fields[17] is field 20
	// (threads), fields[19] is field 22 (start time).
	if len(fields) < 20 || len(fields[0]) != 1 {
		return procStat{}, errStat
	}
	group, err := strconv.Atoi(fields[2])
	if err != nil {
		return procStat{}, errStat
	}
	session, err := strconv.Atoi(fields[3])
	if err != nil {
		return procStat{}, errStat
	}
	threads, err := strconv.Atoi(fields[17])
	if err != nil {
		return procStat{}, errStat
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return procStat{}, errStat
	}
	return procStat{state: fields[0][0], group: group, session: session, threads: threads, start: start}, nil
}

// groupRuns reports whether anything of a process group runs.
func groupRuns(group int) bool {
	for _, text := range procfs.Processes("/proc", "stat") {
		if st, err := parseStat([]byte(text)); err == nil && st.group == group && st.runs() {
			return true
		}
	}
	return false
}

// findByOutput finds the session leader that started at or after notBefore and writes to the pipe: a program whose
// starter was killed before it could note the pid.
func findByOutput(output string, notBefore uint64) (identity, bool) {
	entries, err := filepath.Glob("/proc/[0-9]*/fd/1")
	if err != nil {
		return identity{}, false
	}
	for _, fd := range entries {
		target, err := os.Readlink(fd)
		if err != nil || target != output {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(fd, "/")[2])
		if err != nil {
			continue
		}
		if st, err := stat(pid); err == nil && st.session == pid && st.start >= notBefore && st.runs() {
			return identity{pid: pid, start: st.start}, true
		}
	}
	return identity{}, false
}
