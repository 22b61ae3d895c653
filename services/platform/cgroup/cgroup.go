// Package cgroup gives each program that a process of ours starts for others, a service or another's MCP server, a control group of its
// own, where the process may make any: to bound what it takes of the host, to tell it from others, and to end all of it, wherever it went.
//
// It trusts the kernel's files. Groups are made beneath the one that this process is in, of version 2 or of version 1 (one a
// hierarchy); under systemd that needs Delegate=yes. Nothing above or beside it is touched.
//
// Version 2 lets no group have both programs and bounded groups within, so this process moves one level down, to Config.Leaf.
// A systemd unit whose services outlive it cannot be started again then, unless systemd knows of that (DelegateSubgroup=, from
// 254 on): in a unit without it nothing is bounded, and services are told apart all the same.
package cgroup

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"durward.internal/services/platform/procfs"
)

const (
	// period is over how many microseconds processor time is counted.
	period = 100_000
	// patience is how long killed programs may take to be gone.
	patience = 5 * time.Second
	interval = 10 * time.Millisecond
)

// The controllers that limits need.
const (
	memory = "memory"
	pids   = "pids"
	cpu    = "cpu"
)

var controllers = []string{memory, pids, cpu}

// ErrNone is returned where this process may make no control group.
var ErrNone = errors.New("no control group can be made here")

// Limits bound a group; 0 is no limit. CPUPercent is of one processor.
type Limits struct{ MemoryMiB, CPUPercent, PIDs uint32 }

// Config is whose groups they are.
type Config struct {
	// Key tells one process from another of its kind on the same host: its state folder.
	Key string
	// Leaf is where this process goes when it has to make room for groups beside it.
	Leaf string
	// Ending: what is started here ends with this process, so that it makes room in a systemd unit, too.
	Ending bool
}

// Tree is where the groups of one process' services are.
type Tree struct {
	unified bool
	places  []place
}

// place is a folder for groups, in one hierarchy.
type place struct {
	// dir is the folder; own the one that this process is in.
	dir, own string
	// shown is dir as /proc/PID/cgroup shows it.
	shown string
	// controls are the controllers that work here.
	controls []string
}

// Open makes the place for groups.
func Open(cfg Config) (*Tree, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	// /proc/self is the first thread of this process, which another tree's Start may have in a program's group just now.
	runtime.LockOSThread()
	self, err := os.ReadFile("/proc/thread-self/cgroup")
	runtime.UnlockOSThread()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	hash := sha256.Sum256([]byte(cfg.Key))
	return cfg.openIn(hierarchies(string(mounts), string(self)), "durward-"+hex.EncodeToString(hash[:6]))
}

func (c Config) openIn(found []hierarchy, name string) (*Tree, error) {
	t := &Tree{}
	var problems []error
	for _, h := range found {
		p, err := h.open(c, name)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		t.unified = h.unified
		t.places = append(t.places, p)
	}
	if len(t.places) == 0 {
		return nil, fmt.Errorf("%w: %w", ErrNone, errors.Join(problems...))
	}
	return t, nil
}

// open makes the folder for groups, and lets version 2 bound what is in it as far as that goes.
func (h hierarchy) open(cfg Config, name string) (place, error) {
	own, shown := h.dir, h.shown
	if h.unified && filepath.Base(own) == cfg.Leaf {
		own, shown = filepath.Dir(own), filepath.Dir(shown)
	}
	p := place{dir: filepath.Join(own, name), own: h.dir, shown: filepath.Join(shown, name), controls: h.controls}
	if err := mkdir(p.dir); err != nil {
		return place{}, err
	}
	if !h.unified {
		return p, nil
	}
	have, err := os.ReadFile(filepath.Join(own, "cgroup.controllers"))
	if err != nil {
		return place{}, err
	}
	for _, c := range controllers {
		if slices.Contains(strings.Fields(string(have)), c) && h.delegate(cfg, own, p.dir, c) == nil {
			p.controls = append(p.controls, c)
		}
	}
	return p, nil
}

// delegate lets a controller of version 2 work in the groups of dir.
func (h hierarchy) delegate(cfg Config, own, dir, controller string) error {
	err := write(own, "cgroup.subtree_control", "+"+controller)
	if errors.Is(err, unix.EBUSY) && own == h.dir && (cfg.Ending || !strings.HasSuffix(own, ".service")) {
		// This process is in the way. If others are too, that is not ours to change.
		down := filepath.Join(own, cfg.Leaf)
		if err := mkdir(down); err != nil {
			return err
		}
		if err := write(down, "cgroup.procs", strconv.Itoa(os.Getpid())); err != nil {
			return err
		}
		if err = write(own, "cgroup.subtree_control", "+"+controller); err != nil {
			_ = write(own, "cgroup.procs", strconv.Itoa(os.Getpid()))
		}
	}
	if err != nil {
		return err
	}
	return write(dir, "cgroup.subtree_control", "+"+controller)
}

// Close removes the place, if no group is left in it. It ends no program.
func (t *Tree) Close() {
	for _, p := range t.places {
		_ = os.Remove(p.dir)
	}
}

// Group returns a service's group, whether or not it is there.
func (t *Tree) Group(id string) *Group {
	g := &Group{unified: t.unified}
	for _, p := range t.places {
		g.parts = append(g.parts, part{
			dir: filepath.Join(p.dir, "service-"+id), own: p.own, shown: filepath.Join(p.shown, "service-"+id), controls: p.controls,
		})
	}
	return g
}

// Group is a service's control group: one folder a hierarchy.
type Group struct {
	unified bool
	parts   []part
}

type part struct {
	dir, own, shown string
	controls        []string
}

// Path is the group as /proc/PID/cgroup shows it.
func (g *Group) Path() string { return g.parts[0].shown }

// There reports whether the group is there.
func (g *Group) There() bool {
	_, err := os.Stat(g.parts[0].dir)
	return err == nil
}

// Make makes the group anew and bounds it. missing names the limits that this host does not enforce here. What an earlier
// service of that name left in the group is killed.
func (g *Group) Make(l Limits) (missing []string, err error) {
	if err := g.Kill(); err != nil {
		return nil, err
	}
	g.Remove()
	for _, p := range g.parts {
		if err := mkdir(p.dir); err != nil {
			return nil, fmt.Errorf("control group: %w", err)
		}
	}
	for _, x := range []struct {
		name  string
		limit uint32
		set   func(dir string) error
	}{{memory, l.MemoryMiB, g.boundMemory(l)}, {pids, l.PIDs, g.boundPIDs(l)}, {cpu, l.CPUPercent, g.boundCPU(l)}} {
		if x.limit == 0 {
			continue
		}
		i := slices.IndexFunc(g.parts, func(p part) bool { return slices.Contains(p.controls, x.name) })
		if i < 0 || x.set(g.parts[i].dir) != nil {
			missing = append(missing, x.name)
		}
	}
	return missing, nil
}

func (g *Group) boundMemory(l Limits) func(string) error {
	bytes := strconv.FormatUint(uint64(l.MemoryMiB)<<20, 10)
	return func(dir string) error {
		if g.unified {
			// Without this a service swaps where it should end, and one of its programs would die and the rest linger.
			_ = write(dir, "memory.swap.max", "0")
			_ = write(dir, "memory.oom.group", "1")
			return write(dir, "memory.max", bytes)
		}
		err := write(dir, "memory.limit_in_bytes", bytes)
		_ = write(dir, "memory.memsw.limit_in_bytes", bytes)
		return err
	}
}

func (g *Group) boundPIDs(l Limits) func(string) error {
	return func(dir string) error { return write(dir, "pids.max", strconv.FormatUint(uint64(l.PIDs), 10)) }
}

func (g *Group) boundCPU(l Limits) func(string) error {
	quota := strconv.FormatUint(uint64(l.CPUPercent)*period/100, 10)
	return func(dir string) error {
		if g.unified {
			return write(dir, "cpu.max", quota+" "+strconv.Itoa(period))
		}
		if err := write(dir, "cpu.cfs_period_us", strconv.Itoa(period)); err != nil {
			return err
		}
		return write(dir, "cpu.cfs_quota_us", quota)
	}
}

// Kill ends every program in the group, and returns when they are gone. A group that is not there has none.
func (g *Group) Kill() error {
	for deadline := time.Now().Add(patience); ; time.Sleep(interval) {
		found := g.programs()
		if len(found) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("control group: %d programs do not end", len(found))
		}
		// A program that forks all the time is faster than a list of programs; version 2 has an answer.
		if g.unified && write(g.parts[0].dir, "cgroup.kill", "1") == nil {
			continue
		}
		for _, pid := range found {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// programs are the programs in the group. What is a zombie holds nothing, and only its parent can take it away.
func (g *Group) programs() []int {
	var out []int
	for _, p := range g.parts {
		raw, err := os.ReadFile(filepath.Join(p.dir, "cgroup.procs"))
		if err != nil {
			continue
		}
		for _, field := range strings.Fields(string(raw)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 1 && !slices.Contains(out, pid) && !zombie(pid) {
				out = append(out, pid)
			}
		}
	}
	return out
}

func zombie(pid int) bool {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	fields := procfs.Stat(raw)
	return len(fields) > 0 && fields[0] == "Z"
}

// OutOfMemory reports whether the kernel ended a program of the group because its memory ran out.
func (g *Group) OutOfMemory() bool {
	file := "memory.oom_control"
	if g.unified {
		file = "memory.events"
	}
	for _, p := range g.parts {
		raw, err := os.ReadFile(filepath.Join(p.dir, file))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(raw)) {
			if n, ok := strings.CutPrefix(line, "oom_kill "); ok && strings.TrimSpace(n) != "0" {
				return true
			}
		}
	}
	return false
}

// Remove removes the group, if no program is left in it.
func (g *Group) Remove() {
	for _, p := range g.parts {
		// The kernel needs a moment after the last program.
		for range 20 {
			if err := os.Remove(p.dir); !errors.Is(err, unix.EBUSY) {
				break
			}
			time.Sleep(interval)
		}
	}
}

// mkdir makes a group. Services read their own limits in it, so that everybody may; the kernel's files have modes of their own.
func mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Chmod(dir, 0o755) //nolint:gosec // see above; the umask would take it away
}

// write writes to a file that the kernel has made.
func write(dir, name, text string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// hierarchy is where this process is, in version 2 or in one hierarchy of version 1.
type hierarchy struct {
	unified bool
	dir     string
	// shown is dir as /proc/PID/cgroup shows it.
	shown string
	// controls are a version 1 hierarchy's controllers.
	controls []string
}

// hierarchies reads /proc/self/mountinfo and /proc/thread-self/cgroup. Where a controller is of version 1, version 2 cannot have it, so
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

// find is the folder of a path of /proc/thread-self/cgroup. A mount may show a part of the hierarchy alone.
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

// Start starts the command within the group: there is no moment in which it, or a child of it, is outside.
func (g *Group) Start(cmd *exec.Cmd) error {
	if g.unified {
		return g.startUnified(cmd)
	}
	// Version 1 has no call for that. A child is born where the thread is that starts it, so this thread goes there and back. Go
	// makes no thread from a locked one, and ends one whose goroutine ends locked.
	runtime.LockOSThread()
	tid := strconv.Itoa(unix.Gettid())
	err := g.each(func(p part) error { return write(p.dir, "tasks", tid) })
	if err == nil {
		err = cmd.Start()
	}
	if g.each(func(p part) error { return write(p.own, "tasks", tid) }) == nil {
		runtime.UnlockOSThread()
	}
	return err
}

func (g *Group) startUnified(cmd *exec.Cmd) error {
	dir, err := unix.Open(filepath.Clean(g.parts[0].dir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(dir) }()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, dir
	return cmd.Start()
}

// each goes through all parts and returns the first error.
func (g *Group) each(do func(part) error) error {
	var first error
	for _, p := range g.parts {
		if err := do(p); err != nil && first == nil {
			first = err
		}
	}
	return first
}
