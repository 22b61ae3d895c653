package systemd

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"math"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/driver/pin"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
)

// What systemd calls the states of a unit, org.freedesktop.systemd1(5).
const (
	loaded   = "loaded"
	notFound = "not-found"

	active       = "active"
	reloading    = "reloading"
	refreshing   = "refreshing"
	inactive     = "inactive"
	failed       = "failed"
	activating   = "activating"
	deactivating = "deactivating"
)

// Exit statuses that systemd gives to a program that it could not run, systemd.exec(5).
const (
	statusChdir = 200
	statusExec  = 203
	statusGroup = 216
	statusUser  = 217
)

// exited is CLD_EXITED of sigaction(2): ExecMainStatus is an exit status then, and a signal's number otherwise.
const exited = 1

// facts are what systemd said of a unit at one moment.
type facts struct {
	id, load, active, sub string
	fragment              string
	dropIns               []string
	needReload            bool
	// restart is the unit's Restart=.
	restart string
	// user is the unit's User=, "" for root; dynamic: systemd makes one up for it. above: its program runs as root all the same.
	user           string
	dynamic, above bool
	// commands are the argument vectors of what a start runs, environment its EnvironmentFile=, dir its WorkingDirectory=.
	commands    [][]string
	environment []string
	dir         string
	// loads are the unit's LoadCredential=: names, and where they come from.
	loads    map[string]string
	mainPID  int
	cgroup   string
	restarts uint32
	job      uint32
	since    time.Time
	// bounded: its memory has a limit.
	bounded bool
	// private: it sees no network but a loopback interface of its own. guarded: it may exchange packets with this host alone.
	private, guarded bool
	run              run
}

// run is one activation of a unit, and how it ended. systemd tells of it whenever it changes, and forgets it when it unloads the
// unit, soon after it ended well.
type run struct {
	// invocation is the activation's id, 32 hexadecimal digits; empty: the unit was not started since it was loaded.
	invocation string
	result     string
	code       int32
	status     int32
	// begin is when the activation began, in µs since 1970.
	begin uint64
	// When, in µs of the monotonic clock, it began, the first program ended, and the unit became active and stopped being so.
	began, programEnd, activeEnd, activeBegin uint64
}

// alone reports that an inactive unit's program ended by itself. When somebody stops a unit it first stops being active, and then
// its program ends; otherwise it is the other way round. A unit that never became active counts as ended by itself.
func (r run) alone() bool {
	if r.invocation == "" || r.programEnd == 0 || r.programEnd < r.began {
		return false
	}
	return r.activeBegin < r.began || r.activeBegin == 0 || r.activeEnd >= r.programEnd
}

// merge takes what a signal or a reply says of the run. What it does not say stays: of each change systemd tells with two
// signals, which together hold all of this.
func (r *run) merge(p properties) {
	if raw, ok := p["InvocationID"].([]byte); ok && len(raw) == 16 {
		r.invocation = hex.EncodeToString(raw)
	}
	take(p, "InactiveExitTimestamp", &r.begin)
	take(p, "InactiveExitTimestampMonotonic", &r.began)
	take(p, "Result", &r.result)
	take(p, "ExecMainCode", &r.code)
	take(p, "ExecMainStatus", &r.status)
	take(p, "ExecMainExitTimestampMonotonic", &r.programEnd)
	take(p, "ActiveExitTimestampMonotonic", &r.activeEnd)
	take(p, "ActiveEnterTimestampMonotonic", &r.activeBegin)
}

// properties are a unit's as they come over D-Bus: whoever wrote them, a value that has not the expected type counts as absent.
type properties map[string]any

func take[T any](p properties, key string, into *T) {
	if v, ok := p[key].(T); ok {
		*into = v
	}
}

// pairs reads an array of two strings each.
func pairs(v any) map[string]string {
	list, _ := v.([][]any)
	if len(list) == 0 {
		return nil
	}
	out := make(map[string]string, len(list))
	for _, item := range list {
		if len(item) == 2 {
			name, _ := item[0].(string)
			out[name], _ = item[1].(string)
		}
	}
	return out
}

func read(p properties) facts {
	f := facts{}
	take(p, "Id", &f.id)
	take(p, "LoadState", &f.load)
	take(p, "ActiveState", &f.active)
	take(p, "SubState", &f.sub)
	take(p, "FragmentPath", &f.fragment)
	take(p, "DropInPaths", &f.dropIns)
	take(p, "NeedDaemonReload", &f.needReload)
	take(p, "Restart", &f.restart)
	take(p, "User", &f.user)
	take(p, "DynamicUser", &f.dynamic)
	f.above = privileged(p["ExecStartEx"])
	f.commands, f.environment = commands(p), names(p["EnvironmentFiles"])
	take(p, "WorkingDirectory", &f.dir)
	f.loads = pairs(p["LoadCredential"])
	take(p, "ControlGroup", &f.cgroup)
	take(p, "NRestarts", &f.restarts)
	take(p, "PrivateNetwork", &f.private)
	var pid uint32
	take(p, "MainPID", &pid)
	f.mainPID = int(pid)
	if job, ok := p["Job"].([]any); ok && len(job) == 2 {
		f.job, _ = job[0].(uint32)
	}
	for _, key := range []string{"ActiveEnterTimestamp", "ExecMainStartTimestamp"} {
		var micro uint64
		if take(p, key, &micro); f.since.IsZero() && micro != 0 && micro < math.MaxInt64 {
			f.since = time.UnixMicro(int64(micro))
		}
	}
	for _, key := range []string{"MemoryMax", "MemoryLimit"} {
		limit := uint64(math.MaxUint64)
		take(p, key, &limit)
		f.bounded = f.bounded || limit != math.MaxUint64
	}
	allowed := ranges(p["IPAddressAllow"])
	f.guarded = everything(ranges(p["IPAddressDeny"])) && !slices.ContainsFunc(allowed, func(r netip.Prefix) bool {
		return !r.Addr().IsLoopback() || r.Addr().Is4() && r.Bits() < 8 || r.Addr().Is6() && r.Bits() < 128
	})
	f.run.merge(p)
	return f
}

// privileged reports whether a list of (program, arguments, flags, …) has a program that User= does not hold for.
func privileged(v any) bool {
	list, _ := v.([][]any)
	return slices.ContainsFunc(list, func(command []any) bool {
		if len(command) < 3 {
			return true
		}
		flags, ok := command[2].([]string)
		return !ok || slices.Contains(flags, "privileged") || slices.Contains(flags, "no-setuid")
	})
}

// commands are the argument vectors of what a start runs, each with the program's path first.
func commands(p properties) [][]string {
	var out [][]string
	for _, key := range []string{"ExecCondition", "ExecStartPre", "ExecStart", "ExecStartPost"} {
		list, _ := p[key].([][]any)
		for _, command := range list {
			if len(command) < 2 {
				continue
			}
			path, _ := command[0].(string)
			argv, _ := command[1].([]string)
			out = append(out, append([]string{path}, argv[min(1, len(argv)):]...))
		}
	}
	return out
}

// names are the first parts of a list of (name, …).
func names(v any) []string {
	list, _ := v.([][]any)
	var out []string
	for _, entry := range list {
		if len(entry) > 0 {
			if name, ok := entry[0].(string); ok {
				out = append(out, name)
			}
		}
	}
	return out
}

// ranges reads a list of (family, address, prefix length).
func ranges(v any) []netip.Prefix {
	list, _ := v.([][]any)
	out := make([]netip.Prefix, 0, len(list))
	for _, entry := range list {
		if len(entry) != 3 {
			return nil
		}
		raw, _ := entry[1].([]byte)
		bits, _ := entry[2].(uint32)
		addr, ok := netip.AddrFromSlice(raw)
		if !ok || bits > 128 {
			return nil
		}
		out = append(out, netip.PrefixFrom(addr, int(bits)))
	}
	return out
}

// everything reports whether the ranges hold every address of both families.
func everything(list []netip.Prefix) bool {
	var four, six bool
	for _, r := range list {
		four = four || r.Addr().Is4() && r.Bits() == 0
		six = six || r.Addr().Is6() && r.Bits() == 0
	}
	return four && six
}

// ended reports whether the unit was started and ended by itself.
func (f facts) ended() bool {
	return f.active == failed || f.active == inactive && f.run.alone()
}

// refusal is what keeps a unit from being started as it was approved, nil if nothing does.
func (f facts) refusal(name string) error {
	switch {
	case f.load == notFound || f.load == "":
		return driver.ErrUnitMissing
	case f.load != loaded:
		return errBadUnit
	case f.id != name:
		// An alias: the files and the rule for polkit would be another unit's.
		return errAlias
	case f.needReload:
		return errReload
	}
	return nil
}

// confined reports whether the unit's program runs as somebody who is neither root nor self, the executor's user, nor another of
// Durward's. A user that is not known here is systemd's to make up, or to refuse.
func (f facts) confined(self int) bool {
	if f.above || f.user == "" {
		return !f.above && f.dynamic
	}
	uid, err := strconv.Atoi(f.user)
	if err != nil {
		known, err := user.Lookup(f.user)
		if err != nil {
			return true
		}
		if uid, err = strconv.Atoi(known.Uid); err != nil {
			return false
		}
	}
	if f.dynamic && uid >= dynamicMin && uid <= dynamicMax {
		return true
	}
	return uid != 0 && uid != self && !strings.HasPrefix(f.user, ownUsers)
}

// The users that systemd makes up for DynamicUser=, systemd.exec(5). One that the host has by that name is used instead.
const (
	dynamicMin = 61184
	dynamicMax = 65519
)

// ownUsers is how the names of the users begin that the installation makes for Durward's processes.
const ownUsers = "durward-"

// bluntCause is why a unit ended as far as systemd's own words tell. v1: the host's control groups are of version 1, where
// systemd is not told of the OOM killer.
func (f facts) bluntCause(v1 bool) string {
	switch f.run.result {
	case "oom-kill":
		return driver.CauseOutOfMemory
	case "timeout":
		return driver.CauseTimeout
	case "watchdog":
		return driver.CauseStalled
	case "start-limit-hit":
		return driver.CauseRestartLimit
	case "resources", "protocol", "exec-condition":
		return driver.CauseNotStarted
	}
	switch {
	case f.run.code == exited && (f.run.status == statusExec || f.run.status == statusChdir):
		return driver.CauseProgramMissing
	case f.run.code == exited && (f.run.status == statusUser || f.run.status == statusGroup):
		return driver.CauseNotPermitted
	case f.run.result == "signal" && f.run.status == int32(unix.SIGKILL) && v1 && f.bounded:
		// Nobody else kills it so, unless an administrator does.
		return driver.CauseOutOfMemory
	}
	return driver.CauseExited
}

// network says whether what the entry expects is enforced. filters: this manager can filter a unit's packets.
func (f facts) network(s *catalog.Service, filters bool) driver.Network {
	switch {
	case s.Network == "" || s.Network == catalog.NetworkHost:
		return driver.NetworkUnasked
	case f.private, s.Network == catalog.NetworkLoopback && f.guarded && filters:
		return driver.NetworkEnforced
	}
	// With a port on the host's loopback interface, nothing keeps a unit from other services there.
	return driver.NetworkNotEnforced
}

// files are those that the unit's commands name and its EnvironmentFile=, which systemd opens by name. systemd's own words for a
// working folder (~) lead nowhere here.
func files(f facts, s *catalog.Service, programs *catalog.Programs) []pin.File {
	find := pin.Finder{Programs: programs, Writes: s.Writes, Digests: s.Digests}
	if find.Dir = strings.TrimLeft(f.dir, "-!"); !filepath.IsAbs(find.Dir) {
		find.Dir = ""
	}
	return find.Arguments(slices.Concat(slices.Concat(f.commands...), f.environment))
}

// maxUnitFile bounds what is read of a unit's files, in bytes each.
const maxUnitFile = 1 << 20

// digest is "sha256:…" over the names and contents of a unit's file and its drop-ins, in the order in which systemd reads them.
func digest(f facts) (string, error) {
	sum := sha256.New()
	for _, name := range append([]string{f.fragment}, f.dropIns...) {
		if err := add(sum, name); err != nil {
			return "", fmt.Errorf("%w: %w", errBadUnit, err)
		}
	}
	return canonical.FormatDigest(sum.Sum(nil)), nil
}

// add hashes a file's name and contents, each behind its length, so that no two lists of files look alike.
func add(sum hash.Hash, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", name)
	}
	content, err := io.ReadAll(io.LimitReader(file, maxUnitFile+1))
	if err != nil {
		return err
	}
	if len(content) > maxUnitFile {
		return fmt.Errorf("%s is longer than a unit's file may be", name)
	}
	for _, part := range [][]byte{[]byte(name), content} {
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		sum.Write(part)
	}
	return nil
}
