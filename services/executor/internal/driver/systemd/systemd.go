// Package systemd runs services that are units of systemd, of the host's or of a user's, over D-Bus: no systemctl, no shell.
//
// It runs in the executor and trusts the catalog's entry for the unit's name, systemd for what it says of the unit, and the
// unit's files for nothing: their digest is part of what a human approves, and a unit that changed on disk since systemd read it
// is not started. It touches exactly the units that entries name, with the verbs start, stop, kill and reset-failed, and lets
// systemd's own authority (polkit, or the user's own manager) decide whether it may. It makes, changes and enables no unit.
//
// One connection observes all units, so that a look costs nothing. While systemd cannot be reached, a unit's state is unknown.
package systemd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/driver/launch"
	"durward.internal/services/executor/internal/driver/pin"
	"durward.internal/services/platform/catalog"
)

// Whose units they are.
const (
	ManagerSystem = "system"
	ManagerUser   = "user"
)

// killPatience is how long a killed unit may take to be gone.
const killPatience = 5 * time.Second

// beginPatience is how long a start waits for a unit that runs its program already and has not said that it is ready.
const beginPatience = 2 * time.Second

// Why a unit cannot be used, beyond what the driver package names.
var (
	errBadUnit     = fmt.Errorf("%w: systemd cannot use the unit's files", driver.ErrNotStarted)
	errAlias       = fmt.Errorf("%w: the unit is another one's alias", driver.ErrNotStarted)
	errReload      = fmt.Errorf("%w: the unit changed since systemd read it (daemon-reload)", driver.ErrChanged)
	errUser        = fmt.Errorf("%w: its unit runs as root or as one of Durward's own users", driver.ErrNotPermitted)
	errNotRun      = fmt.Errorf("%w: systemd did not run the unit's program", driver.ErrNotStarted)
	errDestructive = errors.New("another job of systemd is in the way")
)

// Config is what a Driver needs.
type Config struct {
	// Manager is ManagerSystem or ManagerUser; empty: ManagerSystem.
	Manager string
	// Address is the D-Bus address, "unix:path=…"; one that ends in /systemd/private is systemd's own socket. Empty: the system
	// bus, or systemd's own socket for root where there is none; for ManagerUser the user's manager under /run/user.
	Address string
	// Journalctl is the absolute path of journalctl. Empty: /usr/bin/journalctl.
	Journalctl string
	// Development: units of the host may run as any user, root and the executor's own among them.
	Development bool
	// Release brings units their credentials, which they load from a socket in the folder Credentials that is named as their service.
	Release     launch.Release
	Credentials string
	Logger      *slog.Logger
}

// Driver starts, stops and observes units. It is safe for concurrent use; start and stop of one service must not overlap.
type Driver struct {
	cfg     Config
	journal journal
	// filters: the manager can filter a unit's packets. v1: control groups are of version 1.
	filters, v1 bool
	programs    catalog.Programs
	// connect is replaced by tests.
	connect func(context.Context) (manager, error)

	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu    sync.Mutex
	bus   manager // nil while there is none
	units map[string]*unit
	// held are the launchers of the last starts, by service.
	held map[string]*launch.Held
}

// New connects to systemd and begins to observe. That systemd does not answer is no error: it is tried again until it does.
func New(cfg Config) (*Driver, error) {
	return newDriver(cfg, func(ctx context.Context) (manager, error) { return connect(ctx, cfg) })
}

func newDriver(cfg Config, connect func(context.Context) (manager, error)) (*Driver, error) {
	switch {
	case cfg.Manager != "" && cfg.Manager != ManagerSystem && cfg.Manager != ManagerUser:
		return nil, fmt.Errorf("systemd: manager must be %q or %q", ManagerSystem, ManagerUser)
	case cfg.Journalctl != "" && !filepath.IsAbs(cfg.Journalctl):
		return nil, errors.New("systemd: journalctl must be an absolute path")
	}
	d := &Driver{
		cfg:     cfg,
		journal: journal{program: cfg.Journalctl, user: cfg.Manager == ManagerUser},
		connect: connect,
		units:   map[string]*unit{},
		held:    map[string]*launch.Held{},
	}
	d.journal.program = cmp.Or(d.journal.program, "/usr/bin/journalctl")
	// A unit's packets are filtered by BPF programs on control groups of version 2, and only root may put them there.
	d.v1 = !unified()
	d.filters = !d.v1 && !d.journal.user
	d.ctx, d.cancel = context.WithCancel(context.Background())
	if b, err := d.connect(d.ctx); err != nil {
		cfg.Logger.Warn("systemd does not answer; it is tried again", "error", err)
	} else {
		d.bus = b
	}
	d.done.Add(1)
	go d.observe(d.bus)
	return d, nil
}

// unified reports whether the host has control groups of version 2 alone.
func unified() bool {
	var fs unix.Statfs_t
	return unix.Statfs("/sys/fs/cgroup", &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
}

// Close ends the observation. It stops no unit.
func (d *Driver) Close() error {
	d.cancel()
	d.done.Wait()
	return nil
}

// Status reports what systemd last said of the service's unit.
func (d *Driver) Status(s *catalog.Service) driver.Status {
	if !catalog.IsUnit(s.Unit) {
		return driver.Status{State: driver.Stopped, Cause: driver.CauseUnitMissing, Network: facts{}.network(s, false)}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	u := d.unit(s.Unit)
	u.looked = time.Now()
	if d.bus != nil && !u.known {
		// Only once for each unit and connection. Whoever comes in the meantime asks too, which does no harm.
		d.mu.Unlock()
		_, err := d.refresh(d.ctx, u)
		d.mu.Lock()
		if err != nil && !u.complained {
			u.complained = true
			d.cfg.Logger.Warn("systemd did not say how a unit is", "unit", s.Unit, "error", err)
		}
	}
	if d.bus == nil || !u.known {
		return driver.Status{State: driver.Unknown, Cause: driver.CauseNoManager, Network: facts{}.network(s, false)}
	}
	status := u.status()
	status.Network = u.facts.network(s, d.filters)
	return status
}

// Warnings are fixed sentences on what is wrong with a unit and does not keep it from being started.
func (d *Driver) Warnings(s *catalog.Service) []string {
	status := d.Status(s)
	d.mu.Lock()
	defer d.mu.Unlock()
	u, ok := d.units[s.Unit]
	if !ok || !u.known {
		return nil
	}
	var out []string
	if restarts(u.facts) {
		out = append(out, WarnRestart)
	}
	if u.facts.needReload {
		out = append(out, WarnReload)
	}
	if status.Network == driver.NetworkNotEnforced {
		out = append(out, WarnNetwork)
	}
	return out
}

// What Warnings says.
const (
	WarnRestart = "systemd starts the unit again by itself (Restart= is not no): it can take back GPU memory in the middle of a switch"
	WarnReload  = "the unit changed since systemd read it and is not started before systemctl daemon-reload"
	WarnNetwork = "the network expectation is not enforced by the unit"
)

func restarts(f facts) bool { return f.restart != "" && f.restart != "no" }

// Definition is the digest over the unit's file and drop-ins, names and contents, as they are on disk, and over the files that its
// commands and its EnvironmentFile= name.
func (d *Driver) Definition(ctx context.Context, s *catalog.Service) (string, error) {
	f, unit, err := d.startable(ctx, s)
	if err != nil {
		return "", err
	}
	return pin.Definition(unit, files(f, s, &d.programs))
}

// startable has systemd say how a unit is that may be started here. unit is the digest of its own files.
func (d *Driver) startable(ctx context.Context, s *catalog.Service) (f facts, unit string, err error) {
	if f, err = d.ask(ctx, s); err == nil {
		err = d.refusal(f, s.Unit)
	}
	if err == nil {
		unit, err = digest(f)
	}
	return f, unit, err
}

// Pins say of each file that a start of the unit opens whether it is held.
func (d *Driver) Pins(ctx context.Context, s *catalog.Service) []string {
	f, err := d.ask(ctx, s)
	if err != nil {
		return nil
	}
	return pin.Lines(files(f, s, &d.programs))
}

// refusal is what keeps a unit from being started here, nil if nothing does.
func (d *Driver) refusal(f facts, name string) error {
	if err := f.refusal(name); err != nil {
		return err
	}
	// A user's own manager can make nobody else of its units.
	if d.cfg.Development || d.journal.user || f.confined(os.Getuid()) {
		return nil
	}
	return errUser
}

// Logs returns lines of the unit from systemd's journal, of all its activations.
func (d *Driver) Logs(ctx context.Context, s *catalog.Service, cursor string, lines int) (driver.Page, error) {
	if !catalog.IsUnit(s.Unit) {
		return driver.Page{}, driver.ErrUnitMissing
	}
	return d.journal.page(ctx, s.Unit, cursor, lines)
}

// ask has systemd say how the unit is now.
func (d *Driver) ask(ctx context.Context, s *catalog.Service) (facts, error) {
	if !catalog.IsUnit(s.Unit) {
		return facts{}, driver.ErrUnitMissing
	}
	d.mu.Lock()
	u := d.unit(s.Unit)
	d.mu.Unlock()
	return d.refresh(ctx, u)
}

// Start starts a unit that does not run, if it has the definition, and returns when its program runs: ready or not, and even if
// it ended again at once, which Status then tells with its cause. Errors wrap the driver package's.
func (d *Driver) Start(ctx context.Context, s *catalog.Service, definition string, begin driver.Begin) error {
	f, err := d.ask(ctx, s)
	if err != nil {
		return err
	}
	if err := d.refusal(f, s.Unit); err != nil {
		return err
	}
	switch f.active {
	case active, reloading, refreshing, activating:
		return nil
	case deactivating:
		return fmt.Errorf("%w: systemd is still stopping it", driver.ErrNotStarted)
	}
	if err := driver.PortFree(s.Address()); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrPortInUse, err)
	}
	b, u, err := d.hold(s.Unit)
	if err != nil {
		return err
	}
	if f.active == failed {
		// Or systemd may count the failures of the past against this start.
		if err := b.resetFailed(ctx, s.Unit); err != nil {
			return err
		}
	}
	still, err := d.unchanged(ctx, s, definition)
	if err != nil {
		return err
	}
	if len(s.Credentials) > 0 {
		held, err := d.handOver(ctx, s, f)
		if err != nil {
			return err
		}
		// A unit's program has begun before it has loaded its credentials.
		defer time.AfterFunc(loading, held.Close)
	}
	var job uint32
	var result <-chan string
	err = begin(func() error {
		// The launcher and whoever is asked whether it may begin took their time.
		err := cmp.Or(ctx.Err(), still())
		if err != nil {
			return err
		}
		// Once it is asked for, its answer is waited for though ctx ends: a job whose number is not known cannot be called off.
		job, result, err = b.start(context.WithoutCancel(ctx), s.Unit)
		return err
	})
	if errors.Is(err, errDestructive) {
		return fmt.Errorf("%w: %w", driver.ErrNotStarted, err)
	}
	if err != nil {
		return lost(err)
	}
	verdict, err := d.await(ctx, u, result, beginPatience, func(f facts) bool { return f.mainPID != 0 })
	if err != nil {
		// The job must not start the unit later, when nobody expects it. A stop clears away what it has done already.
		if cerr := b.cancel(context.WithoutCancel(ctx), job); cerr != nil {
			d.cfg.Logger.Warn("a start of systemd's could not be called off", "unit", s.Unit, "error", cerr)
			return fmt.Errorf("%w: %w, and it could not be called off: %w", driver.ErrUnknown, err, cerr)
		}
		return fmt.Errorf("%w: %w", driver.ErrNotStarted, err)
	}
	return lost(d.judge(ctx, s, f, verdict))
}

// loading is how long a unit may take to load its credentials once its start is reported.
const loading = 5 * time.Second

// handOver has a launcher ready for a unit that loads each of its credentials from the launcher's socket.
func (d *Driver) handOver(ctx context.Context, s *catalog.Service, f facts) (*launch.Held, error) {
	socket := filepath.Join(d.cfg.Credentials, s.ID)
	for _, name := range s.Credentials {
		if f.loads[name] != socket {
			return nil, fmt.Errorf("%w: %s needs the line LoadCredential=%s:%s", driver.ErrNotTaken, s.Unit, name, socket)
		}
	}
	d.mu.Lock()
	before := d.held[s.ID]
	d.mu.Unlock()
	before.Close() // or it would take this one's socket away when it goes
	held, err := launch.Serve(ctx, d.cfg.Release, s, socket)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held[s.ID] = held
	return held, nil
}

// lost says that a start for which systemd has been asked may have begun, where systemd did not answer.
func lost(err error) error {
	if errors.Is(err, driver.ErrNoManager) {
		return fmt.Errorf("%w: %w", driver.ErrUnknown, err)
	}
	return err
}

// unchanged has systemd say once more what it would run, and compares that with what may be. still is the last look: it fails where a file
// was written to since. It reads the unit's own files alone and asks nobody, since a halt may be waiting.
func (d *Driver) unchanged(ctx context.Context, s *catalog.Service, definition string) (still func() error, err error) {
	f, unit, err := d.startable(ctx, s)
	if err != nil {
		return nil, err
	}
	given := files(f, s, &catalog.Programs{})
	found, err := pin.Definition(unit, given)
	switch {
	case err != nil:
		return nil, err
	case found != definition:
		return nil, driver.ErrChanged
	}
	return func() error {
		if now, err := digest(f); err != nil || now != unit || !pin.Unchanged(given) {
			return driver.ErrChanged
		}
		return nil
	}, nil
}

// judge says what became of a start. before is how the unit was, verdict the job's result.
func (d *Driver) judge(ctx context.Context, s *catalog.Service, before facts, verdict string) error {
	f, err := d.ask(ctx, s)
	if err != nil {
		return err
	}
	switch {
	case verdict == "done", verdict == "":
		return nil
	case verdict == "dependency":
		return fmt.Errorf("%w: a unit that it requires did not start", driver.ErrNotStarted)
	case !f.ended() || f.run.invocation == before.run.invocation:
		return fmt.Errorf("%w: its job is %s", errNotRun, verdict)
	}
	switch f.bluntCause(d.v1) {
	case driver.CauseProgramMissing:
		return fmt.Errorf("%w: exit status %d", driver.ErrProgramMissing, f.run.status)
	case driver.CauseNotPermitted:
		return fmt.Errorf("%w: exit status %d", driver.ErrNotPermitted, f.run.status)
	case driver.CauseNotStarted:
		return fmt.Errorf("%w: %s", errNotRun, f.run.result)
	}
	return nil // it ran and ended; Status says why
}

// Stop stops a unit, and kills it after the entry's stop timeout. It reports whether anything ran. A unit that ended by itself
// counts as stopped from then on.
func (d *Driver) Stop(ctx context.Context, s *catalog.Service) (bool, error) {
	f, err := d.ask(ctx, s)
	if err != nil {
		return false, err
	}
	b, u, err := d.hold(s.Unit)
	if err != nil {
		return false, err
	}
	if f.active == inactive || f.active == failed {
		return false, d.settle(ctx, b, u)
	}
	if err := d.end(ctx, b, u, s); err != nil {
		return false, err
	}
	return true, d.settle(ctx, b, u)
}

// end stops what runs.
func (d *Driver) end(ctx context.Context, b manager, u *unit, s *catalog.Service) error {
	_, result, err := b.stop(ctx, s.Unit)
	if errors.Is(err, errDestructive) {
		// The unit's own start is still under way, perhaps one that an earlier executor asked for. What is stopped need not start.
		f, aerr := d.ask(ctx, s)
		if aerr != nil {
			return aerr
		}
		if f.job != 0 {
			if cerr := b.cancel(ctx, f.job); cerr != nil {
				return fmt.Errorf("%w: %w", driver.ErrNotStopped, cerr)
			}
		}
		_, result, err = b.stop(ctx, s.Unit)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", driver.ErrNotStopped, err)
	}
	gone := func(f facts) bool { return f.active == inactive || f.active == failed }
	always := func(facts) bool { return true }
	if _, err = d.await(ctx, u, result, s.StopTimeout(), always); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrNotStopped, err)
	}
	f, err := d.ask(ctx, s)
	if err != nil {
		return err
	}
	if gone(f) {
		return nil
	}
	d.cfg.Logger.Warn("a unit did not end in time and is killed", "service_id", s.ID, "unit", s.Unit)
	if err := b.kill(ctx, s.Unit); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrNotStopped, err)
	}
	if _, err = d.await(ctx, u, result, killPatience, always); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrNotStopped, err)
	}
	if f, err = d.ask(ctx, s); err != nil {
		return err
	}
	if !gone(f) {
		return fmt.Errorf("%w: the unit is %s", driver.ErrNotStopped, f.active)
	}
	return nil
}

// settle notes that the unit's last activation is over and was meant to be.
func (d *Driver) settle(ctx context.Context, b manager, u *unit) error {
	d.mu.Lock()
	u.settled = u.facts.run.invocation
	wasFailed := u.facts.active == failed
	d.mu.Unlock()
	if !wasFailed {
		return nil
	}
	if err := b.resetFailed(ctx, u.name); err != nil {
		// It is stopped all the same; systemd alone still shows the failure.
		d.cfg.Logger.Warn("a unit's failure could not be reset", "unit", u.name, "error", err)
	}
	_, err := d.refresh(ctx, u)
	return err
}
