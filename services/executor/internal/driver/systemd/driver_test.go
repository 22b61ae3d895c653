package systemd

import (
	"context"
	_ "embed"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
)

// fake is a systemd with one unit, x.service.
type fake struct {
	mu    sync.Mutex
	props properties
	calls []string
	// onStart and onStop say what becomes of the unit, and the job's result; "" for none.
	onStart, onStop func(*fake) string
	onKill          func(*fake)
	onReset         func()
	err             map[string]error
	out             chan change
	closed          bool
}

func newFake(p properties) *fake {
	return &fake{props: p, out: make(chan change), err: map[string]error{}}
}

func (f *fake) note(call string) error {
	f.calls = append(f.calls, call)
	err := f.err[call]
	if call == "stop" {
		delete(f.err, call)
	}
	return err
}

func (f *fake) become(p properties) { f.props = p }

func (f *fake) properties(context.Context, string) (properties, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.props), f.err["properties"]
}

func (f *fake) states(_ context.Context, units []string) (map[string]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]string{}
	for _, u := range units {
		out[u], _ = f.props["ActiveState"].(string)
	}
	return out, f.note("states")
}

func (f *fake) job(call string, then func(*fake) string) (uint32, <-chan string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.note(call); err != nil {
		return 0, nil, err
	}
	result := make(chan string, 1)
	if then != nil {
		if verdict := then(f); verdict != "" {
			result <- verdict
		}
	}
	return 7, result, nil
}

func (f *fake) start(ctx context.Context, _ string) (uint32, <-chan string, error) {
	job, result, err := f.job("start", f.onStart)
	if ctx.Err() != nil {
		return 0, nil, translate(ctx.Err()) // as the bus does for whoever waits no longer
	}
	return job, result, err
}
func (f *fake) stop(context.Context, string) (uint32, <-chan string, error) {
	return f.job("stop", f.onStop)
}

func (f *fake) cancel(context.Context, uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.note("cancel")
}

func (f *fake) kill(context.Context, string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.onKill != nil {
		f.onKill(f)
	}
	return f.note("kill")
}

func (f *fake) resetFailed(context.Context, string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.props["ActiveState"] = "inactive"
	if f.onReset != nil {
		f.onReset()
	}
	return f.note("reset-failed")
}

func (f *fake) changes() <-chan change { return f.out }
func (f *fake) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.closed = true
		close(f.out)
	}
}

// said is what was asked of it beside observing.
func (f *fake) said() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.calls), func(c string) bool { return c == "states" })
}

// change sets the properties and tells of them.
func (f *fake) change(p properties) {
	f.mu.Lock()
	f.props = p
	f.mu.Unlock()
	f.out <- change{path: unitPaths + "x_2eservice", props: maps.Clone(p)}
}

func on(t *testing.T, f *fake) *Driver {
	t.Helper()
	cfg := Config{Journalctl: "/bin/false", Development: true, Logger: slog.New(slog.DiscardHandler)}
	d, err := newDriver(cfg, func(context.Context) (manager, error) { return f, nil })
	must(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// ask starts what there is at this moment; a definition that cannot be had is as good as any.
func ask(ctx context.Context, d *Driver, s *catalog.Service) error {
	definition, _ := d.Definition(ctx, s)
	return d.Start(ctx, s, definition, driver.AtOnce)
}

func x() *catalog.Service {
	return &catalog.Service{ID: "x", Driver: catalog.DriverSystemd, Unit: "x.service", StopTimeoutS: 30}
}

// fragment is the file of x.service below the test's own folder. Go's test cache does not look there: it knows the file by unitFile, which
// is part of the test's binary.
const fragment = "/proc/self/cwd/testdata/x.service"

//go:embed testdata/x.service
var unitFile string

func TestFragmentIsTheUnit(t *testing.T) {
	if text, err := os.ReadFile(fragment); err != nil || string(text) != unitFile {
		t.Errorf("%q, %v", text, err)
	}
}

func idle() properties {
	return properties{"Id": "x.service", "LoadState": "loaded", "ActiveState": "inactive", "FragmentPath": fragment}
}

func TestNewRefuses(t *testing.T) {
	for _, cfg := range []Config{{Manager: "root"}, {Journalctl: "journalctl"}} {
		if d, err := New(cfg); err == nil {
			t.Errorf("New(%+v) made a driver, closed with %v", cfg, d.Close())
		}
	}
}

func TestStart(t *testing.T) {
	running := func(f *fake) string { f.become(begun(nil)); return "done" }
	cases := []struct {
		name    string
		before  properties
		onStart func(*fake) string
		err     map[string]error
		want    error
		calls   []string
	}{
		{"not there", properties{"LoadState": "not-found", "ActiveState": "inactive"}, nil, nil, driver.ErrUnitMissing, nil},
		{"changed since", properties{"Id": "x.service", "LoadState": "loaded", "ActiveState": "inactive", "NeedDaemonReload": true}, nil, nil, errReload, nil},
		{"another's alias", properties{"Id": "y.service", "LoadState": "loaded", "ActiveState": "inactive"}, nil, nil, errAlias, nil},
		{"still stopping", begun(properties{"ActiveState": "deactivating"}), nil, nil, driver.ErrNotStarted, nil},
		{"not permitted", idle(), nil, map[string]error{"start": driver.ErrNotPermitted}, driver.ErrNotPermitted, []string{"start"}},
		{"another job", idle(), nil, map[string]error{"start": errDestructive}, driver.ErrNotStarted, []string{"start"}},
		{"no answer", idle(), nil, map[string]error{"properties": driver.ErrNoManager}, driver.ErrNoManager, nil},
		{"no answer to the start", idle(), nil, map[string]error{"start": driver.ErrNoManager}, driver.ErrUnknown, []string{"start"}},
		{"a dependency", idle(), func(*fake) string { return "dependency" }, nil, driver.ErrNotStarted, []string{"start"}},
		{"skipped", idle(), func(*fake) string { return "skipped" }, nil, driver.ErrNotStarted, []string{"start"}},
		{"no program", idle(), func(f *fake) string {
			f.become(over("failed", 0, 40, properties{"Result": "exit-code", "ExecMainCode": int32(1), "ExecMainStatus": int32(203)}))
			return "failed"
		}, nil, driver.ErrProgramMissing, []string{"start"}},
		{"no user", idle(), func(f *fake) string {
			f.become(over("failed", 0, 40, properties{"Result": "exit-code", "ExecMainCode": int32(1), "ExecMainStatus": int32(217)}))
			return "failed"
		}, nil, driver.ErrNotPermitted, []string{"start"}},
		{"systemd could not", idle(), func(f *fake) string {
			f.become(over("failed", 0, 40, properties{"Result": "resources"}))
			return "failed"
		}, nil, errNotRun, []string{"start"}},
		{"it ran and ended", idle(), func(f *fake) string {
			f.become(over("failed", 0, 40, properties{"Result": "oom-kill"}))
			return "failed"
		}, nil, nil, []string{"start"}},
		{"it runs", idle(), running, nil, nil, []string{"start"}},
		{"it runs already", begun(nil), nil, nil, nil, nil},
		{"it failed before", over("failed", 41, 40, nil), running, nil, nil, []string{"reset-failed", "start"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(c.before)
				f.onStart = c.onStart
				maps.Copy(f.err, c.err)
				d := on(t, f)
				if err := ask(t.Context(), d, x()); !errors.Is(err, c.want) {
					t.Errorf("Start = %v, want %v", err, c.want)
				}
				if !slices.Equal(c.calls, f.said()) {
					t.Errorf("asked of systemd: %q, want %q", f.said(), c.calls)
				}
			})
		})
	}
}

func TestUnitNamesAreTheCatalogsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(begun(nil))
		d := on(t, f)
		for _, name := range []string{"", "-x.service", "x", "x.target", "x@.service", "../x.service", "x.service y.service", "x.service\n", "*.service"} {
			s := x()
			s.Unit = name
			if got := d.Status(s); got.State != driver.Stopped {
				t.Errorf("Look(%q) = %+v", name, got)
			}
			_, stop := d.Stop(t.Context(), s)
			_, define := d.Definition(t.Context(), s)
			_, logs := d.Logs(t.Context(), s, "", 1)
			for _, err := range []error{ask(t.Context(), d, s), stop, define, logs} {
				if !errors.Is(err, driver.ErrUnitMissing) {
					t.Errorf("unit %q: %v", name, err)
				}
			}
		}
		if calls := f.said(); len(calls) > 0 {
			t.Errorf("asked of systemd: %q", calls)
		}
	})
}

// A unit that does not say that it is ready is not waited for once its program runs; one whose program does not run yet is.
func TestStartDoesNotWaitForReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(idle())
		f.onStart = func(f *fake) string {
			f.become(begun(properties{"ActiveState": "activating", "SubState": "start-pre", "MainPID": uint32(0)}))
			return ""
		}
		d := on(t, f)
		began := time.Now()
		go func() {
			time.Sleep(time.Minute)
			f.change(begun(properties{"ActiveState": "activating", "SubState": "start"}))
		}()
		if err := ask(t.Context(), d, x()); err != nil || time.Since(began) != time.Minute {
			t.Errorf("Start = %v after %v", err, time.Since(began))
		}
		if got := d.Status(x()); got.State != driver.Starting || got.PID != 42 {
			t.Errorf("Look = %+v", got)
		}
	})
}

func TestStartThatIsGivenUpIsCalledOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(idle())
		d := on(t, f)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := ask(ctx, d, x()); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, driver.ErrNotStarted) {
			t.Errorf("Start = %v", err)
		}
		if diff := cmp.Diff([]string{"start", "cancel"}, f.said()); diff != "" {
			t.Errorf("asked of systemd (-want +got):\n%s", diff)
		}
	})
}

// What changed after it was approved is not run, however late it changed.
func TestOnlyWhatWasApprovedIsStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "x.service")
		write := func(text string) {
			t.Helper()
			must(t, os.WriteFile(file, []byte(text), 0o600))
		}
		write("[Service]\nExecStart=/bin/true\n")
		failedBefore := over("failed", 41, 40, properties{"FragmentPath": file})
		f := newFake(maps.Clone(failedBefore))
		f.onStart = func(f *fake) string { f.become(begun(properties{"FragmentPath": file})); return "done" }
		d := on(t, f)
		definition, err := d.Definition(t.Context(), x())
		must(t, err)
		if err := d.Start(t.Context(), x(), "", driver.AtOnce); !errors.Is(err, driver.ErrChanged) {
			t.Errorf("without a definition: %v", err)
		}
		f.onReset = func() { write("[Service]\nExecStart=/bin/false\n") } // the last thing before the start
		f.become(maps.Clone(failedBefore))
		if err := d.Start(t.Context(), x(), definition, driver.AtOnce); !errors.Is(err, driver.ErrChanged) || driver.Cause(err) != driver.CauseChanged {
			t.Errorf("changed: %v", err)
		}
		f.onReset = func() { f.props["NeedDaemonReload"] = true }
		f.become(maps.Clone(failedBefore))
		if err := d.Start(t.Context(), x(), definition, driver.AtOnce); !errors.Is(err, errReload) || driver.Cause(err) != driver.CauseChanged {
			t.Errorf("a reload is needed: %v", err)
		}
		if calls := f.said(); slices.Contains(calls, "start") {
			t.Errorf("asked of systemd: %q", calls)
		}
	})
}

// TestWhatMayNotBeginIsNotAskedFor: what ended it is the error.
func TestWhatMayNotBeginIsNotAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(over("inactive", 0, 0, nil))
		d := on(t, f)
		definition, err := d.Definition(t.Context(), x())
		must(t, err)
		ended := errors.New("it has ended")
		if err := d.Start(t.Context(), x(), definition, func(func() error) error { return ended }); !errors.Is(err, ended) {
			t.Errorf("it is %v", err)
		}
		if calls := f.said(); slices.Contains(calls, "start") {
			t.Errorf("asked of systemd: %q", calls)
		}
	})
}

// A unit's programs, the files that they are given and its EnvironmentFile= count as the unit's own file does.
func TestOnlyTheFilesThatWereApprovedAreGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		at := func(name string) string { return filepath.Join(dir, name) }
		write := func(name, text string) {
			t.Helper()
			must(t, os.WriteFile(at(name), []byte(text), 0o600))
		}
		names := []string{"x.service", "program", "svc.py", "before", "environment"}
		for _, name := range append(names, "log") {
			write(name, "as it was")
		}
		unit := properties{
			"FragmentPath": at("x.service"), "WorkingDirectory": "!" + dir,
			"ExecStart":        [][]any{{at("program"), []string{"program", "svc.py", "--log-file=" + at("log")}, false}},
			"ExecStartPre":     [][]any{{at("before"), []string{"before"}, false}},
			"EnvironmentFiles": [][]any{{at("environment"), true}},
		}
		before := over("failed", 41, 40, unit)
		f := newFake(maps.Clone(before))
		f.onStart = func(f *fake) string { f.become(begun(unit)); return "done" }
		d, s := on(t, f), x()
		s.Writes = []string{at("log")}
		definition, err := d.Definition(t.Context(), s)
		must(t, err)
		for _, name := range names {
			f.onReset = func() { write(name, "edited") } // the last thing before the start
			f.become(maps.Clone(before))
			if err := d.Start(t.Context(), s, definition, driver.AtOnce); !errors.Is(err, driver.ErrChanged) {
				t.Errorf("%s was edited: %v", name, err)
			}
			write(name, "as it was")
			f.onReset = nil
			f.become(maps.Clone(before))
			if err := d.Start(t.Context(), s, definition, func(act func() error) error {
				write(name, "edited") // while somebody was asked whether it may begin
				return act()
			}); !errors.Is(err, driver.ErrChanged) {
				t.Errorf("%s was edited at the last moment: %v", name, err)
			}
			write(name, "as it was")
		}
		if calls := f.said(); slices.Contains(calls, "start") {
			t.Errorf("asked of systemd: %q", calls)
		}
		if diff := cmp.Diff([]string{
			"checked, not held: " + at("before"), "checked, not held: " + at("program"), "checked, not held: " + at("svc.py"),
			"not pinned, the service writes it: " + at("log"), "checked, not held: " + at("environment"),
		}, d.Pins(t.Context(), s)); diff != "" {
			t.Error(diff)
		}
		f.onReset = func() { write("log", "more") }
		f.become(maps.Clone(before))
		if err := d.Start(t.Context(), s, definition, driver.AtOnce); err != nil {
			t.Errorf("as it was approved: %v", err)
		}
	})
}

func TestStop(t *testing.T) {
	stopped := func(f *fake) string { f.become(over("inactive", 30, 40, nil)); return "done" }
	cases := []struct {
		name    string
		before  properties
		set     func(*fake)
		changed bool
		want    error
		calls   []string
		took    time.Duration
	}{
		{"nothing runs", idle(), nil, false, nil, nil, 0},
		{"it failed", over("failed", 41, 40, nil), nil, false, nil, []string{"reset-failed"}, 0},
		{"it runs", begun(nil), func(f *fake) { f.onStop = stopped }, true, nil, []string{"stop"}, 0},
		{"not permitted", begun(nil), func(f *fake) { f.err["stop"] = driver.ErrNotPermitted }, false, driver.ErrNotPermitted, []string{"stop"}, 0},
		{"it is killed", begun(nil), func(f *fake) {
			f.onKill = func(f *fake) { f.become(over("failed", 30, 40, properties{"Result": "signal"})) }
		}, true, nil, []string{"stop", "kill", "reset-failed"}, 35 * time.Second},
		{"it cannot be killed", begun(nil), nil, false, driver.ErrNotStopped, []string{"stop", "kill"}, 35 * time.Second},
		{"its start is under way", begun(properties{"ActiveState": "activating", "Job": []any{uint32(9), "/j"}}), func(f *fake) {
			f.err["stop"], f.onStop = errDestructive, stopped
		}, true, nil, []string{"stop", "cancel", "stop"}, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(c.before)
				if c.set != nil {
					c.set(f)
				}
				d := on(t, f)
				began := time.Now()
				changed, err := d.Stop(t.Context(), x())
				if changed != c.changed || !errors.Is(err, c.want) || time.Since(began) != c.took {
					t.Errorf("Stop = %v, %v after %v", changed, err, time.Since(began))
				}
				if !slices.Equal(c.calls, f.said()) {
					t.Errorf("asked of systemd: %q, want %q", f.said(), c.calls)
				}
				if got := d.Status(x()); c.want == nil && (got.State != driver.Stopped || got.Cause != "") {
					t.Errorf("afterwards: %+v", got)
				}
			})
		})
	}
}

// A look costs nothing: what systemd says by itself is enough.
func TestLookFollowsSignals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(idle())
		d := on(t, f)
		if got := d.Status(x()); got.State != driver.Stopped {
			t.Errorf("at first: %+v", got)
		}
		f.change(begun(nil))
		synctest.Wait()
		if got := d.Status(x()); got.State != driver.Running {
			t.Errorf("after it was started: %+v", got)
		}
		// It ends well, and systemd forgets it at once.
		end := over("inactive", 41, 40, nil)
		f.out <- change{path: unitPaths + "x_2eservice", props: end}
		f.change(idle())
		synctest.Wait()
		if got := d.Status(x()); got.State != driver.Ended || got.Cause != driver.CauseExited {
			t.Errorf("after it ended: %+v", got)
		}
		f.out <- change{path: unitPaths + "other", props: begun(nil)}
		synctest.Wait()
		if got := d.Status(x()); got.State != driver.Ended {
			t.Errorf("after news of another unit: %+v", got)
		}
	})
}

// A signal that was missed is noticed.
func TestComparison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(idle())
		d := on(t, f)
		d.Status(x())
		f.mu.Lock()
		f.become(begun(nil))
		f.mu.Unlock()
		time.Sleep(comparing)
		synctest.Wait()
		if got := d.Status(x()); got.State != driver.Running {
			t.Errorf("Look = %+v", got)
		}
		d.mu.Lock()
		d.units["x.service"].looked = time.Now().Add(-2 * forgotten)
		d.mu.Unlock()
		time.Sleep(comparing)
		synctest.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.units) != 0 {
			t.Errorf("%d units that nobody looks at are observed", len(d.units))
		}
	})
}

// Without systemd nothing is known; when it is back, everything is.
func TestBusIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newFake(begun(nil)), newFake(begun(nil))
		refused, next := errors.New("refused"), []manager{first, nil, nil, second}
		d, err := newDriver(Config{Journalctl: "/bin/false", Logger: slog.New(slog.DiscardHandler)}, func(context.Context) (manager, error) {
			m := next[0]
			if next = next[1:]; m == nil {
				return nil, refused
			}
			return m, nil
		})
		must(t, err)
		defer d.Close()
		if got := d.Status(x()); got.State != driver.Running {
			t.Fatalf("at first: %+v", got)
		}
		first.close()
		synctest.Wait()
		if got := d.Status(x()); got.State != driver.Unknown || got.Cause != driver.CauseNoManager {
			t.Errorf("without systemd: %+v", got)
		}
		if err := ask(t.Context(), d, x()); !errors.Is(err, driver.ErrNoManager) {
			t.Errorf("Start without systemd = %v", err)
		}
		if _, err := d.Stop(t.Context(), x()); !errors.Is(err, driver.ErrNoManager) {
			t.Errorf("Stop without systemd = %v", err)
		}
		time.Sleep(4 * maxBackoff)
		if got := d.Status(x()); got.State != driver.Running || len(next) != 0 {
			t.Errorf("when it is back: %+v", got)
		}
	})
}

// Whoever waits for a job is told when systemd goes away.
func TestBusIsLostInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(idle())
		d := on(t, f)
		go func() {
			time.Sleep(time.Second)
			f.close()
		}()
		// The job may come to its end without anybody who hears of it.
		f.err["cancel"] = driver.ErrNoManager
		if err := ask(t.Context(), d, x()); !errors.Is(err, driver.ErrUnknown) || driver.Cause(err) != driver.CauseUnknown {
			t.Errorf("Start = %v", err)
		}
	})
}

// A start that nobody waits for any more is called off, also where its caller went while systemd was taking it.
func TestCallerGoesWhileSystemdIsAsked(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := newFake(idle())
	f.onStart = func(*fake) string { cancel(); return "" }
	d := on(t, f)
	if err := ask(ctx, d, x()); !errors.Is(err, driver.ErrNotStarted) || errors.Is(err, driver.ErrUnknown) {
		t.Errorf("Start = %v", err)
	}
	if got := f.said(); !slices.Equal(got, []string{"start", "cancel"}) {
		t.Errorf("systemd was asked for %q", got)
	}
	f.calls = nil
	if err := ask(ctx, d, x()); !errors.Is(err, context.Canceled) || len(f.said()) != 0 {
		t.Errorf("Start of who is gone = %v, and systemd was asked for %q", err, f.said())
	}
}

func TestWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := x()
		if got := on(t, newFake(begun(nil))).Warnings(s); len(got) != 0 {
			t.Errorf("of a good unit: %q", got)
		}
		s.Network = catalog.NetworkLoopback
		got := on(t, newFake(begun(properties{"Restart": "always", "NeedDaemonReload": true}))).Warnings(s)
		if diff := cmp.Diff([]string{WarnRestart, WarnReload, WarnNetwork}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func BenchmarkLook(b *testing.B) {
	f := newFake(begun(nil))
	d, err := newDriver(Config{Logger: slog.New(slog.DiscardHandler)}, func(context.Context) (manager, error) { return f, nil })
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	s := x()
	for b.Loop() {
		d.Status(s)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
