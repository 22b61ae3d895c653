// Package process runs services as programs of the host, without any other manager: the embedded default.
//
// It runs in the executor and trusts the catalog's entry alone. A program gets its argument vector as it stands (no
// shell), a session and process group of its own, /dev/null, a bounded log, a small environment (ENV-1), and outside
// development a user of its own and no capability whatever the executor has. It outlives the executor and is found again by pid, start time and boot: a recycled pid
// is never ours.
//
// Outside development each service has a control group of its own where this host lets the executor make any (package
// cgroup): it bounds memory, processor time and the number of programs, and holds whoever leaves the process group. Where there
// is none, a program that leaves its group or daemonises is beyond this driver's reach; systemd and Docker hold such programs.
// What a service may reach over the network is not enforced, and Status says so.
//
// The program writes to a pipe. A keeper, a process of its own for each service, copies it to the log file, which it bounds as it
// writes; like the program it survives us, and ends with it.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/driver/cause"
	"durward.internal/services/executor/internal/driver/launch"
	"durward.internal/services/executor/internal/driver/pin"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/cgroup"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/procfs"
)

const (
	pollInterval = 20 * time.Millisecond
	// killPatience is how long a killed group may take to be gone (the kernel frees what it held).
	killPatience = 5 * time.Second
)

// Config is what a Driver needs.
type Config struct {
	// Dir is where records and logs of services are kept: Dir/run and Dir/logs.
	Dir string
	Log *slog.Logger
	// Development: a service may run as the executor's own user, and the machine's control groups are left alone.
	Development bool
	// Release brings services their credentials; nil: none that needs any is started.
	Release launch.Release
}

// Driver starts, finds and stops programs. It is safe for concurrent use; start and stop of one service must not overlap.
type Driver struct {
	runDir, logDir string
	log            *slog.Logger
	boot           string
	development    bool
	programs       catalog.Programs
	release        launch.Release
	// groups is nil where services have no control groups.
	groups *cgroup.Tree

	mu      sync.Mutex
	records map[string]*record
	// causes are why services ended by themselves, once that was looked into.
	causes map[*record]string

	// turns holds a lock for each service: the end of one program of it and the start of the next share a control group.
	turns sync.Map

	once sync.Once
}

// New reads the records of services that an earlier executor started, and finds those that still run.
func New(cfg Config) (*Driver, error) {
	d := &Driver{
		runDir:  filepath.Join(cfg.Dir, "run"),
		logDir:  filepath.Join(cfg.Dir, "logs"),
		log:     cfg.Log,
		records: map[string]*record{},
		causes:  map[*record]string{},

		development: cfg.Development,
		release:     cfg.Release,
	}
	for _, dir := range []string{d.runDir, d.logDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("process driver: %w", err)
		}
	}
	var err error
	if d.boot, err = procfs.BootID(); err != nil { // start times of another boot mean nothing
		return nil, fmt.Errorf("process driver: %w", err)
	}
	if !cfg.Development {
		if d.groups, err = cgroup.Open(cgroup.Config{Key: d.runDir, Leaf: "durward-executor"}); err != nil {
			d.groups = nil
			d.log.Warn("services get no control groups; their limits are not enforced", "error", err)
		}
	}
	if err := d.load(); err != nil {
		return nil, err
	}
	return d, nil
}

// Close lets go of the control groups. It stops no service.
func (d *Driver) Close() {
	d.once.Do(func() {
		if d.groups != nil {
			d.groups.Close()
		}
	})
}

// Status reports what is true of a service at this moment.
func (d *Driver) Status(s *catalog.Service) driver.Status {
	d.mu.Lock()
	r := d.records[s.ID]
	d.mu.Unlock()
	status := driver.Status{Network: network(s)}
	switch {
	case r == nil:
		status.State = driver.Stopped
	case r.Boot != d.boot:
		status.State, status.Cause = driver.Stopped, driver.CauseRestarted
	case r.PID == 0:
		status.State = driver.Starting
	case alive(r.identity()):
		status.State, status.Since, status.PID, status.CGroup = driver.Running, r.StartedAt, r.PID, r.CGroup
	default:
		status.State, status.Cause = driver.Ended, d.cause(r)
	}
	return status
}

// network says that nothing is enforced, where anything is expected.
func network(s *catalog.Service) driver.Network {
	if s.Network == "" || s.Network == catalog.NetworkHost {
		return driver.NetworkUnasked
	}
	return driver.NetworkNotEnforced
}

// cause is why a service ended by itself: what the kernel says, then what its log says.
func (d *Driver) cause(r *record) string {
	d.mu.Lock()
	known, ok := d.causes[r]
	d.mu.Unlock()
	if ok {
		return known
	}
	goneWithin(r.Keeper.identity(), keepPatience)
	found := driver.CauseExited
	if g := d.group(r); g != nil && g.OutOfMemory() {
		found = driver.CauseOutOfMemory
	} else if page, err := d.page(r.ID, "", cause.Lines, false); err == nil {
		found = cmp.Or(cause.FromLog(page.Lines), found)
	}
	d.mu.Lock()
	d.causes[r] = found
	d.mu.Unlock()
	return found
}

// group is the control group that the service was started in, or nil.
func (d *Driver) group(r *record) *cgroup.Group {
	if d.groups == nil || r.CGroup == "" {
		return nil
	}
	// The executor may have been moved since; a group of another place is not ours to end.
	if g := d.groups.Group(r.ID); g.Path() == r.CGroup {
		return g
	}
	return nil
}

// Definition is the digest of the program file's content, and of the files that the arguments name.
func (d *Driver) Definition(_ context.Context, s *catalog.Service) (string, error) {
	digest, err := d.programs.Digest(s.Program())
	if errors.Is(err, catalog.ErrNoProgram) {
		return "", fmt.Errorf("%w: %w", driver.ErrProgramMissing, err)
	}
	if err != nil {
		return "", err
	}
	return pin.Definition(digest, arguments(s, &d.programs))
}

// Pins say how firmly the program and each file that the arguments name is held. A program that is given no file needs no words.
func (d *Driver) Pins(_ context.Context, s *catalog.Service) []string {
	files := pin.Lines(arguments(s, &d.programs))
	if len(files) == 0 {
		return nil
	}
	how := "pinned"
	if f, err := os.Open(s.Program()); err == nil {
		if is, err := isScript(f); is || err != nil {
			how = "checked, not held"
		}
		_ = f.Close()
	}
	return append([]string{how + ": " + clean.Visible(s.Program())}, files...)
}

// Start starts the program of a service that is not running, if it and the files that it is given have the definition. It returns
// when the program runs, whether or not it is healthy yet. Errors wrap one of the driver package's.
func (d *Driver) Start(ctx context.Context, s *catalog.Service, definition string, may driver.Begin) error {
	program, err := openProgram(s, definition)
	if err != nil {
		return err
	}
	defer program.file.Close()
	d.mu.Lock()
	old := d.records[s.ID]
	d.mu.Unlock()
	if old != nil && old.Boot == d.boot && !alive(old.identity()) {
		// If no executor saw its leader end, other programs of its group may hold the port, or memory, and the new record forgets them.
		d.sweepUngrouped(old, old.identity())
		d.empty(old)
	}
	if err := driver.PortFree(s.Address()); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrPortInUse, err)
	}
	cmd, err := command(s, d.development)
	if err != nil {
		return err
	}
	out, keeper, err := d.keep(s)
	if err != nil {
		return fmt.Errorf("%w: its log: %w", driver.ErrNotStarted, err)
	}
	defer out.Close()
	cmd.Stdout = output(out, d.logFile(s.ID))
	cmd.Stderr = cmd.Stdout

	// The record stands before the program does, so that an executor that is killed in between finds the program again by
	// its output.
	r := &record{ID: s.ID, Boot: d.boot, StartedAt: time.Now(), Keeper: kept{keeper.pid, keeper.start}}
	if r.Output, err = pipeName(out); err != nil {
		return err
	}
	if r.NotBefore, err = ticks(os.Getpid()); err != nil {
		return err
	}
	turn := d.turn(s.ID)
	turn.Lock()
	defer turn.Unlock()
	start := cmd.Start
	if g, err := d.prepare(s); err != nil {
		return err
	} else if g != nil {
		r.CGroup = g.Path()
		start = func() error { return g.Start(cmd) }
	}
	begin := func() error { return punctual(start) }
	if !d.development {
		begin = func() error { return confined(func() error { return punctual(start) }) }
	}
	if err := d.save(r); err != nil {
		return err
	}
	program.give(cmd)
	// The last look comes when nothing is left to wait for.
	unchanged := func(act func() error) error {
		return may(func() error {
			if err := program.unchanged(); err != nil {
				return err
			}
			return act()
		})
	}
	if len(s.Credentials) > 0 {
		// What may not begin is the program: its launcher waits for its values, which the vault is asked for, and becomes it then.
		err = launch.Program(ctx, d.release, s, cmd, begin, unchanged)
	} else {
		err = unchanged(begin)
	}
	if err != nil {
		d.clear(r)
		d.forget(s.ID)
		switch {
		case errors.Is(err, driver.ErrChanged), errors.Is(err, driver.ErrSealed), errors.Is(err, driver.ErrNoCredential), errors.Is(err, driver.ErrOnlyByCall), errors.Is(err, driver.ErrNotTaken):
			return err
		case errors.Is(err, os.ErrPermission):
			return fmt.Errorf("%w: %w", driver.ErrNotPermitted, err)
		case errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("%w: %w", driver.ErrProgramMissing, err)
		default:
			return fmt.Errorf("%w: %w", driver.ErrNotStarted, err)
		}
	}
	running := *r
	running.PID = cmd.Process.Pid
	// A program that ended at once is a zombie until the reaper below takes it, so its start time can be read.
	if running.Start, err = ticks(running.PID); err == nil {
		err = d.save(&running)
	}
	go d.reap(&running, cmd)
	if err != nil {
		_ = unix.Kill(-running.PID, unix.SIGKILL)
		d.clear(&running)
		d.forget(s.ID)
		return fmt.Errorf("%w: %w", driver.ErrNotStarted, err)
	}
	return nil
}

// prepare makes the service's control group anew, with its limits.
func (d *Driver) prepare(s *catalog.Service) (*cgroup.Group, error) {
	limits := cgroup.Limits{MemoryMiB: s.Limits.MemoryMiB, CPUPercent: s.Limits.CPUPercent, PIDs: s.Limits.PIDs}
	if d.groups == nil {
		if limits != (cgroup.Limits{}) {
			d.log.Warn("a service's limits are not enforced: it has no control group", "service_id", s.ID)
		}
		return nil, nil
	}
	g := d.groups.Group(s.ID)
	missing, err := g.Make(limits)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrNotStarted, err)
	}
	if len(missing) > 0 {
		d.log.Warn("some of a service's limits are not enforced on this host", "service_id", s.ID, "limits", missing)
	}
	return g, nil
}

// clear ends what is left in the service's control group, and removes it.
func (d *Driver) clear(r *record) {
	g := d.group(r)
	if g == nil {
		return
	}
	if err := g.Kill(); err != nil {
		d.log.Error("a service's control group could not be emptied", "service_id", r.ID, "error", err)
		return
	}
	g.Remove()
}

// reap waits for a child of ours. It clears the rest of the group while the leader is still a zombie, when its pid cannot
// be anybody else's. The control group stays, empty, until the service is stopped: it tells why the service ended.
func (d *Driver) reap(r *record, cmd *exec.Cmd) {
	pid := cmd.Process.Pid
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = unix.Kill(-pid, unix.SIGKILL)
	d.empty(r)
	err := cmd.Wait()
	d.log.Info("a service's program ended", "service_id", r.ID, "pid", pid, "how", how(err))
}

// empty ends what a program left in its control group, unless that is another program's by now.
func (d *Driver) empty(r *record) {
	g := d.group(r)
	if g == nil {
		return
	}
	turn := d.turn(r.ID)
	turn.Lock()
	defer turn.Unlock()
	d.mu.Lock()
	current := d.records[r.ID]
	d.mu.Unlock()
	if current == nil || current.identity() != r.identity() {
		return
	}
	if err := g.Kill(); err != nil {
		d.log.Error("a service's control group could not be emptied", "service_id", r.ID, "error", err)
	}
}

func (d *Driver) turn(id string) *sync.Mutex {
	lock, _ := d.turns.LoadOrStore(id, &sync.Mutex{})
	return lock.(*sync.Mutex)
}

func how(err error) string {
	if err == nil {
		return "exit status 0"
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.String()
	}
	return "unknown"
}

// Stop ends a service: SIGTERM to its group, SIGKILL after the entry's stop timeout. It reports whether anything ran.
func (d *Driver) Stop(_ context.Context, s *catalog.Service) (bool, error) {
	d.mu.Lock()
	r := d.records[s.ID]
	d.mu.Unlock()
	if r == nil {
		return false, nil
	}
	who := r.identity()
	if r.PID == 0 && r.Boot == d.boot {
		who, _ = findByOutput(r.Output, r.NotBefore) // its start broke off in a panic, before its pid was noted
	}
	if r.Boot != d.boot || !alive(who) {
		if r.Boot == d.boot {
			d.sweepUngrouped(r, who)
			d.clear(r)
		}
		d.forget(s.ID)
		return false, nil
	}
	if err := unix.Kill(-who.pid, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("%w: %w", driver.ErrNotPermitted, err)
	}
	if !goneWithin(who, s.StopTimeout()) {
		d.log.Warn("a service did not end in time and is killed", "service_id", s.ID, "pid", who.pid)
		if alive(who) {
			_ = unix.Kill(-who.pid, unix.SIGKILL)
		}
		if !goneWithin(who, killPatience) {
			return false, fmt.Errorf("%w: pid %d", driver.ErrNotStopped, who.pid)
		}
	}
	sweep(who)
	d.clear(r)
	goneWithin(r.Keeper.identity(), keepPatience)
	d.forget(s.ID)
	return true, nil
}

// goneWithin polls: the program may be the child of an executor that is no more.
func goneWithin(who identity, patience time.Duration) bool {
	for deadline := time.Now().Add(patience); alive(who); {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(pollInterval)
	}
	return true
}

// sweepUngrouped sweeps for a program that ended at some time, unless its control group holds all that it left. Days later the number of
// its process group may be that of a stranger's whose leader has ended as well, as a daemon's does.
func (d *Driver) sweepUngrouped(r *record, who identity) {
	if d.group(r) == nil {
		sweep(who)
	}
}

// sweep kills what is left of a group whose leader has ended, and waits for its end: the kernel frees what it held. While a group has
// members, the kernel gives its number to no new process; so if it was ours a moment ago, either the members are ours, or a stranger with
// that very pid is alive, and then it is left alone.
func sweep(who identity) {
	if who.pid == 0 {
		return // kill(2) takes 0 for the group of this process
	}
	if start, err := ticks(who.pid); err == nil && start != who.start {
		return
	}
	for deadline := time.Now().Add(killPatience); unix.Kill(-who.pid, unix.SIGKILL) == nil && groupRuns(who.pid) && time.Now().Before(deadline); {
		time.Sleep(pollInterval)
	}
}
