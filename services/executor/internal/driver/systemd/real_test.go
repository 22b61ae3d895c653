//go:build real

package systemd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/google/go-cmp/cmp"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/driver/launch"
	"durward.internal/services/platform/catalog"
)

// These tests run inside scripts/systemd-sandbox.sh and nowhere else: they write units and have systemd run them.

// TestMain is also the program that the units run.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "act" {
		os.Exit(act(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == launch.Word {
		os.Exit(launch.Main(os.Args[2:]))
	}
	if os.Getenv("SANDBOX") != "1" {
		fmt.Fprintln(os.Stderr, "run scripts/real-systemd.sh")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func act(args []string) int {
	switch args[0] {
	case "wait": // until SIGTERM, and then ends well
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		fmt.Println("waiting")
		<-stop
		return 0
	case "deaf": // to SIGTERM
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("waiting")
		time.Sleep(time.Hour) // a program that a signal ends
	case "say": // lines and a status
		status, _ := strconv.Atoi(args[1])
		for _, line := range args[2:] {
			fmt.Println(line)
		}
		return status
	case "credential": // copies one to a pipe
		raw, err := os.ReadFile(filepath.Join(os.Getenv("CREDENTIALS_DIRECTORY"), args[1]))
		if err == nil {
			err = os.WriteFile(args[2], raw, 0o600)
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
		if len(args) > 3 {
			return act(args[3:])
		}
	case "count":
		n, _ := strconv.Atoi(args[1])
		for i := range n {
			fmt.Println("line", i+1)
		}
		time.Sleep(time.Hour) // a program that a signal ends
	case "hog": // memory
		fmt.Println("taking memory")
		var held [][]byte
		for range 256 {
			block := make([]byte, 1<<20)
			for i := range block {
				block[i] = byte(i)
			}
			held = append(held, block)
		}
		fmt.Println(len(held))
		time.Sleep(time.Hour) // a program that a signal ends
	case "drive": // a driver of its own: args are manager, address, verb, unit
		d, err := New(Config{Manager: args[1], Address: args[2], Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			fmt.Println(err)
			return 1
		}
		defer d.Close()
		s := &catalog.Service{ID: "s", Driver: catalog.DriverSystemd, Unit: args[4], StopTimeoutS: 5}
		switch args[3] {
		case "start":
			err = ask(context.Background(), d, s)
		case "try": // until systemd has it
			ctx, cancel := context.WithCancel(context.Background())
			var definition string
			if definition, err = d.Definition(ctx, s); err == nil {
				err = d.Start(ctx, s, definition, func(act func() error) error {
					defer cancel()
					return act()
				})
			}
			cancel()
		case "stop":
			_, err = d.Stop(context.Background(), s)
		}
		if err != nil {
			fmt.Println(driver.Cause(err)+":", err)
			return 1
		}
		fmt.Println(d.Status(s).State)
	}
	return 0
}

// world is a driver on the sandbox's systemd.
type world struct {
	*Driver
	t    *testing.T
	self string
	// root is a connection of an administrator.
	root *sd.Conn
}

func newWorld(t *testing.T, cfg Config) *world {
	t.Helper()
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	cfg.Development = true // most units here are root's
	d, err := New(cfg)
	must(t, err)
	t.Cleanup(func() { _ = d.Close() })
	self, err := os.Executable()
	must(t, err)
	root, err := connectTo(t.Context(), systemManager)
	must(t, err)
	t.Cleanup(root.close)
	return &world{Driver: d, t: t, self: self, root: root.Conn}
}

// unit writes a unit that acts, has systemd read it, and returns its entry.
func (w *world) unit(name string, lines ...string) *catalog.Service {
	w.t.Helper()
	w.write("/run/systemd/system/"+name, lines...)
	w.reload()
	w.t.Cleanup(func() {
		// The test may have taken the unit away.
		_ = exec.Command("systemctl", "stop", name).Run()
		_ = os.Remove("/run/systemd/system/" + name)
		_ = os.RemoveAll("/run/systemd/system/" + name + ".d")
		// It fails where the unit has not failed.
		_ = exec.Command("systemctl", "reset-failed", name).Run()
	})
	return &catalog.Service{ID: "s", Driver: catalog.DriverSystemd, Unit: name, StopTimeoutS: 10, StartTimeoutS: 10}
}

func (w *world) write(file string, lines ...string) {
	w.t.Helper()
	must(w.t, os.MkdirAll(filepath.Dir(file), 0o755))
	text := "[Service]\n" + strings.ReplaceAll(strings.Join(lines, "\n"), "ACT", w.self+" act") + "\n"
	must(w.t, os.WriteFile(file, []byte(text), 0o644))
}

func (w *world) reload() {
	w.t.Helper()
	must(w.t, w.root.ReloadContext(w.t.Context()))
}

func (w *world) start(s *catalog.Service) {
	w.t.Helper()
	if err := ask(w.t.Context(), w.Driver, s); err != nil {
		w.t.Fatalf("Start: %v", err)
	}
}

// until looks until the state is there.
func (w *world) until(s *catalog.Service, state driver.State) driver.Status {
	w.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		status := w.Status(s)
		if status.State == state {
			return status
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the unit is in state %d (%s), not %d", status.State, status.Cause, state)
		}
		time.Sleep(5 * time.Millisecond) // no event: systemd does it in its own time
	}
}

func TestRealStartAndStop(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.unit("plain.service", "Type=exec", "ExecStart=ACT wait")
	if got := w.Status(s); got.State != driver.Stopped || got.Cause != "" {
		t.Errorf("before: %+v", got)
	}
	if changed, err := w.Stop(t.Context(), s); changed || err != nil {
		t.Errorf("Stop of what does not run = %v, %v", changed, err)
	}
	for range 3 {
		w.start(s)
		got := w.Status(s)
		if got.State != driver.Running || got.PID == 0 || time.Since(got.Since) > time.Minute {
			t.Fatalf("running: %+v", got)
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", got.PID))
		if err != nil || !strings.Contains(string(text), ":"+got.CGroup+"\n") || !strings.HasSuffix(got.CGroup, "/plain.service") {
			t.Errorf("its control group is told as %q, and is %q, %v", got.CGroup, text, err)
		}
		w.start(s) // again: nothing
		if again := w.Status(s); again.PID != got.PID {
			t.Errorf("it was started twice: %d, %d", got.PID, again.PID)
		}
		if changed, err := w.Stop(t.Context(), s); !changed || err != nil {
			t.Fatalf("Stop = %v, %v", changed, err)
		}
		if got := w.Status(s); got.State != driver.Stopped || got.Cause != "" || got.PID != 0 || got.CGroup != "" {
			t.Errorf("stopped: %+v", got)
		}
	}
}

// What the executor did not do itself is seen all the same, and one who stops a unit is not taken for a failure.
func TestRealOthersActToo(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.unit("others.service", "Type=exec", "ExecStart=ACT wait")
	w.Status(s)
	for range 3 {
		if _, err := w.root.StartUnitContext(t.Context(), s.Unit, "fail", nil); err != nil {
			t.Fatal(err)
		}
		w.until(s, driver.Running)
		if _, err := w.root.StopUnitContext(t.Context(), s.Unit, "fail", nil); err != nil {
			t.Fatal(err)
		}
		if got := w.until(s, driver.Stopped); got.Cause != "" {
			t.Errorf("stopped by an administrator: %+v", got)
		}
	}
}

func TestRealFailures(t *testing.T) {
	w := newWorld(t, Config{})
	cases := []struct {
		name  string
		lines []string
		want  string
	}{
		{"ends-well", []string{"Type=exec", "ExecStart=ACT say 0 done"}, driver.CauseExited},
		{"ends-ill", []string{"Type=exec", "ExecStart=ACT say 3 sorry"}, driver.CauseExited},
		{"vram", []string{"Type=exec", `ExecStart=ACT say 1 "loading" "torch.OutOfMemoryError: CUDA out of memory."`}, driver.CauseOutOfVRAM},
		{"weights", []string{"Type=exec", `ExecStart=ACT say 1 "failed to open /m/x.gguf: No such file or directory"`}, driver.CauseWeightsMissing},
		{"port", []string{"Type=exec", `ExecStart=ACT say 1 "bind: address already in use"`}, driver.CausePortInUse},
		{"memory", []string{"Type=exec", "ExecStart=ACT hog", "MemoryMax=32M", "MemorySwapMax=0"}, driver.CauseOutOfMemory},
		{"watchdog", []string{"Type=simple", "ExecStart=ACT deaf", "WatchdogSec=200ms", "NotifyAccess=all", "TimeoutStopSec=1", "TimeoutAbortSec=1"}, driver.CauseStalled},
		{"notify", []string{"Type=notify", "ExecStart=ACT say 1 sorry"}, driver.CauseExited},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := w.unit(c.name+".service", c.lines...)
			w.start(s)
			got := w.until(s, driver.Ended)
			if got.Cause != c.want || got.PID != 0 {
				t.Errorf("ended: %+v, want %q", got, c.want)
			}
			if changed, err := w.Stop(t.Context(), s); changed || err != nil {
				t.Errorf("Stop = %v, %v", changed, err)
			}
			if got := w.Status(s); got.State != driver.Stopped || got.Cause != "" {
				t.Errorf("after it was stopped: %+v", got)
			}
			// A failure of the past does not keep it from being started.
			w.start(s)
			w.until(s, driver.Ended)
		})
	}
}

// An executor that comes later still finds out why.
func TestRealFailureIsFoundAgain(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.unit("found.service", "Type=exec", `ExecStart=ACT say 1 "CUDA out of memory"`)
	w.start(s)
	w.until(s, driver.Ended)
	if got := newWorld(t, Config{}).Status(s); got.State != driver.Ended || got.Cause != driver.CauseOutOfVRAM {
		t.Errorf("another driver sees %+v", got)
	}
}

func TestRealRefusals(t *testing.T) {
	w := newWorld(t, Config{})
	cases := []struct {
		name string
		s    *catalog.Service
		want error
	}{
		{"not there", &catalog.Service{Unit: "not-there.service"}, driver.ErrUnitMissing},
		{"a dash", &catalog.Service{Unit: "-plain.service"}, driver.ErrUnitMissing},
		{"a path", &catalog.Service{Unit: "../plain.service"}, driver.ErrUnitMissing},
		{"a target", &catalog.Service{Unit: "basic.target"}, driver.ErrUnitMissing},
		{"a template", &catalog.Service{Unit: "t@.service"}, driver.ErrUnitMissing},
		{"no program", w.unit("noprogram.service", "Type=exec", "ExecStart=/nowhere/program"), driver.ErrProgramMissing},
		{"no user", w.unit("nouser.service", "Type=exec", "User=nobodyatall", "ExecStart=ACT wait"), driver.ErrNotPermitted},
		{"nonsense", w.unit("nonsense.service", "Type=exec", "User=nobody"), errBadUnit},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if err := ask(t.Context(), w.Driver, c.s); !errors.Is(err, c.want) {
				t.Errorf("Start = %v, want %v", err, c.want)
			}
		})
	}
	t.Run("an alias", func(t *testing.T) {
		s := w.unit("original.service", "Type=exec", "ExecStart=ACT wait")
		must(t, os.Symlink("original.service", "/run/systemd/system/alias.service"))
		w.reload()
		w.start(s)
		other := *s
		other.Unit = "alias.service"
		if err := ask(t.Context(), w.Driver, &other); !errors.Is(err, errAlias) {
			t.Errorf("Start = %v", err)
		}
		must(t, os.Remove("/run/systemd/system/alias.service"))
	})
	t.Run("masked", func(t *testing.T) {
		s := w.unit("masked.service", "Type=exec", "ExecStart=ACT wait")
		must(t, os.Remove("/run/systemd/system/masked.service"))
		must(t, os.Symlink("/dev/null", "/run/systemd/system/masked.service"))
		w.reload()
		if err := ask(t.Context(), w.Driver, s); !errors.Is(err, errBadUnit) {
			t.Errorf("Start = %v", err)
		}
	})
	t.Run("a port that is taken", func(t *testing.T) {
		stranger, err := net.Listen("tcp4", "127.0.0.1:0")
		must(t, err)
		defer stranger.Close()
		s := w.unit("taken.service", "Type=exec", "ExecStart=ACT wait")
		s.Port = uint32(stranger.Addr().(*net.TCPAddr).Port)
		if err := ask(t.Context(), w.Driver, s); !errors.Is(err, driver.ErrPortInUse) || w.Status(s).State != driver.Stopped {
			t.Errorf("Start = %v", err)
		}
	})
}

// What systemd would run is what was approved, or nothing is run.
func TestRealDefinition(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.unit("defined.service", "Type=exec", "ExecStart=ACT wait")
	w.write("/run/systemd/system/defined.service.d/first.conf", "Environment=B=1")
	w.reload()
	// systemd reads a unit anew when nothing needs it; this one it keeps.
	w.start(w.unit("keeper.service", "Type=exec", "ExecStart=ACT wait", "[Unit]", "After=defined.service"))
	first, err := w.Definition(t.Context(), s)
	if err != nil || !strings.HasPrefix(first, "sha256:") || len(first) != len("sha256:")+64 {
		t.Fatalf("Definition = %q, %v", first, err)
	}
	if again, err := w.Definition(t.Context(), s); again != first || err != nil {
		t.Errorf("Definition again = %q, %v", again, err)
	}
	seen := []string{first}
	for _, c := range []struct{ name, file, line string }{
		{"another program", "/run/systemd/system/defined.service", "Type=exec\nExecStart=ACT wait longer"},
		{"a drop-in", "/run/systemd/system/defined.service.d/more.conf", "Environment=A=1"},
		{"another drop-in with the same words", "/run/systemd/system/defined.service.d/more2.conf", "Environment=A=1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			time.Sleep(10 * time.Millisecond) // systemd goes by the time of the files
			w.write(c.file, c.line)
			if err := w.Start(t.Context(), s, seen[len(seen)-1], driver.AtOnce); !errors.Is(err, errReload) {
				t.Errorf("Start before a reload = %v", err)
			}
			if got, err := w.Definition(t.Context(), s); !errors.Is(err, errReload) {
				t.Errorf("Definition before a reload = %q, %v", got, err)
			}
			if got := w.Status(s); got.State != driver.Stopped {
				t.Errorf("it runs: %+v", got)
			}
			w.reload()
			got, err := w.Definition(t.Context(), s)
			if err != nil || slices.Contains(seen, got) {
				t.Errorf("Definition after a reload = %q, %v; before: %q", got, err, seen)
			}
			if err := w.Start(t.Context(), s, seen[len(seen)-1], driver.AtOnce); !errors.Is(err, driver.ErrChanged) || w.Status(s).State != driver.Stopped {
				t.Errorf("Start of what was approved before = %v", err)
			}
			seen = append(seen, got)
			w.start(s)
			if _, err := w.Stop(t.Context(), s); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRealDeafUnitIsKilled(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.unit("deaf.service", "Type=exec", "ExecStart=ACT deaf", "TimeoutStopSec=60")
	s.StopTimeoutS = 1
	w.start(s)
	for deaf := false; !deaf; { // or it hears the signal before it can ignore it
		page, err := w.Logs(t.Context(), s, "", 5)
		must(t, err)
		deaf = slices.Contains(page.Lines, "waiting")
	}
	if changed, err := w.Stop(t.Context(), s); !changed || err != nil {
		t.Errorf("Stop = %v, %v", changed, err)
	}
	if got := w.Status(s); got.State != driver.Stopped || got.Cause != "" {
		t.Errorf("after: %+v", got)
	}
}

// A unit that takes long to say that it is ready is not waited for, and can be stopped.
func TestRealSlowUnit(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.unit("slow.service", "Type=notify", "ExecStart=ACT wait", "TimeoutStartSec=60")
	w.start(s)
	if got := w.Status(s); got.State != driver.Starting || got.PID == 0 || got.CGroup == "" {
		t.Errorf("while it starts: %+v", got)
	}
	if changed, err := w.Stop(t.Context(), s); !changed || err != nil {
		t.Errorf("Stop = %v, %v", changed, err)
	}
	if got := w.Status(s); got.State != driver.Stopped || got.Cause != "" {
		t.Errorf("after: %+v", got)
	}
}

// A start that is given up leaves no job behind that would start the unit later.
func TestRealStartIsCalledOff(t *testing.T) {
	w := newWorld(t, Config{})
	w.unit("before.service", "Type=oneshot", "ExecStart=ACT count 1")
	s := w.unit("later.service", "Type=exec", "ExecStart=ACT wait", "[Unit]", "Requires=before.service", "After=before.service")
	queued := func() bool {
		jobs, err := w.root.ListJobsContext(t.Context())
		must(t, err)
		return slices.ContainsFunc(jobs, func(j sd.JobStatus) bool { return j.Unit == s.Unit })
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	called := make(chan error, 1)
	go func() { called <- ask(ctx, w.Driver, s) }()
	for !queued() { // or it would be given up before systemd was asked
		select {
		case err := <-called:
			t.Fatalf("Start before it is given up = %v", err)
		case <-time.After(5 * time.Millisecond): // no event: systemd does it in its own time
		}
	}
	cancel()
	if err := <-called; !errors.Is(err, driver.ErrNotStarted) || !errors.Is(err, context.Canceled) {
		t.Errorf("Start = %v", err)
	}
	if queued() {
		t.Error("its job is left")
	}
	if got := w.Status(s); got.State != driver.Stopped {
		t.Errorf("after: %+v", got)
	}
}

func TestRealLogs(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.unit("logs.service", "Type=exec", "ExecStart=ACT count 25")
	empty, err := w.Logs(t.Context(), s, "", 40)
	if err != nil || len(empty.Lines) != 0 || empty.Cursor == "" || empty.More {
		t.Fatalf("an empty log: %+v, %v", empty, err)
	}
	w.start(s)
	ours := func(p driver.Page) []string {
		return slices.DeleteFunc(slices.Clone(p.Lines), func(l string) bool { return !strings.HasPrefix(l, "line ") })
	}
	// The program's lines are all there, and systemd's own, which comes before, between or after them.
	var whole driver.Page
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) { // no event: systemd does it in its own time
		if whole, err = w.Logs(t.Context(), s, "", 40); err != nil {
			t.Fatal(err)
		}
		if len(ours(whole)) == 25 && slices.ContainsFunc(whole.Lines, func(l string) bool { return strings.HasPrefix(l, "Started ") }) {
			break
		}
	}
	page, err := w.Logs(t.Context(), s, "", 5)
	must(t, err)
	if diff := cmp.Diff(whole.Lines[max(len(whole.Lines)-5, 0):], page.Lines); diff != "" || page.More || len(ours(page)) < 4 {
		t.Errorf("the newest (-want +got):\n%s", diff)
	}
	if next, err := w.Logs(t.Context(), s, page.Cursor, 5); err != nil || len(next.Lines) != 0 || next.Cursor != page.Cursor || next.More {
		t.Errorf("after the newest: %+v, %v", next, err)
	}
	// From the empty log's cursor on, page by page.
	var all []string
	for at, pages := empty.Cursor, 0; ; pages++ {
		p, err := w.Logs(t.Context(), s, at, 10)
		if err != nil || len(p.Lines) > 10 || pages > 5 {
			t.Fatalf("page %d: %+v, %v", pages, p, err)
		}
		if before := slices.Clone(p.Before); len(all) > 0 && (len(before) == 0 || before[len(before)-1] != all[len(all)-1]) {
			t.Errorf("before page %d: %q", pages, before)
		}
		all = append(all, p.Lines...)
		if at = p.Cursor; !p.More {
			break
		}
	}
	if all = ours(driver.Page{Lines: all}); len(all) != 25 || all[0] != "line 1" || all[24] != "line 25" {
		t.Errorf("all pages: %q", all)
	}
	for _, cursor := range []string{
		"nonsense", "--file=/etc/passwd", "12;34",
		"s=00000000000000000000000000000000;i=1;b=00000000000000000000000000000000;m=1;t=1;x=1",
	} {
		p, err := w.Logs(t.Context(), s, cursor, 3)
		if err != nil || len(p.Lines) != 3 || !p.More {
			t.Errorf("cursor %q: %+v, %v", cursor, p, err)
		}
	}
}

func TestRealLongLine(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.unit("long.service", "Type=exec", "ExecStart=ACT say 0 "+strings.Repeat("é", 6000))
	w.start(s)
	w.until(s, driver.Ended)
	long := func(l string) bool { return strings.HasPrefix(l, "éééé") && len(l) > 4096 && len(l) <= maxLine+4 }
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) { // no event: systemd does it in its own time
		page, err := w.Logs(t.Context(), s, "", 40)
		if err == nil && slices.ContainsFunc(page.Lines, long) {
			break
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("a line of 12 kB is not there, or not cut: %d lines, %v", len(page.Lines), err)
		}
	}
}

func TestRealRestartingUnitIsTold(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.unit("phoenix.service", "Type=simple", "ExecStart=ACT say 1 again", "Restart=on-failure", "RestartSec=50ms", "StartLimitBurst=100")
	s.Network = catalog.NetworkLoopback
	w.start(s)
	if diff := cmp.Diff([]string{WarnRestart, WarnNetwork}, w.Warnings(s)); diff != "" {
		t.Errorf("Warnings (-want +got):\n%s", diff)
	}
	for w.Status(s).Restarts == 0 {
		time.Sleep(5 * time.Millisecond) // no event: systemd does it in its own time
	}
	if _, err := w.Stop(t.Context(), s); err != nil {
		t.Error(err)
	}
	if got := w.Status(s); got.State != driver.Stopped {
		t.Errorf("after a stop: %+v", got)
	}
}

func TestRealNetwork(t *testing.T) {
	w := newWorld(t, Config{})
	open := w.unit("open.service", "Type=exec", "ExecStart=ACT wait")
	private := w.unit("private.service", "Type=exec", "ExecStart=ACT wait", "PrivateNetwork=yes")
	guarded := w.unit("guarded.service", "Type=exec", "ExecStart=ACT wait", "IPAddressDeny=any", "IPAddressAllow=localhost")
	half := w.unit("half.service", "Type=exec", "ExecStart=ACT wait", "IPAddressDeny=any", "IPAddressAllow=10.0.0.0/8")
	byFilter := driver.NetworkNotEnforced
	if unified() {
		byFilter = driver.NetworkEnforced
	}
	for _, c := range []struct {
		s        *catalog.Service
		expected string
		want     driver.Network
	}{
		{open, "", driver.NetworkUnasked},
		{open, catalog.NetworkHost, driver.NetworkUnasked},
		{open, catalog.NetworkLoopback, driver.NetworkNotEnforced},
		{private, catalog.NetworkLoopback, driver.NetworkEnforced},
		{private, catalog.NetworkNone, driver.NetworkEnforced},
		{guarded, catalog.NetworkNone, driver.NetworkNotEnforced},
		{guarded, catalog.NetworkLoopback, byFilter},
		{half, catalog.NetworkLoopback, driver.NetworkNotEnforced},
	} {
		c.s.Network = c.expected
		if got := w.Status(c.s).Network; got != c.want {
			t.Errorf("%s with expectation %q: %d, want %d", c.s.Unit, c.expected, got, c.want)
		}
	}
}

// Over the system bus, which goes away and comes back.
func TestRealBusIsLost(t *testing.T) {
	w := newWorld(t, Config{Address: systemBus})
	s := w.unit("survivor.service", "Type=exec", "ExecStart=ACT wait")
	w.start(s)
	if got := w.Status(s); got.State != driver.Running {
		t.Fatalf("over the bus: %+v", got)
	}
	for _, verb := range []string{"stop", "start"} {
		if out, err := exec.Command("systemctl", verb, "dbus.socket", "dbus.service").CombinedOutput(); err != nil {
			t.Fatalf("systemctl %s: %v: %s", verb, err, out)
		}
		if verb == "stop" {
			if got := w.until(s, driver.Unknown); got.Cause != driver.CauseNoManager {
				t.Errorf("without a bus: %+v", got)
			}
			if err := ask(t.Context(), w.Driver, s); !errors.Is(err, driver.ErrNoManager) {
				t.Errorf("Start without a bus = %v", err)
			}
		}
	}
	w.until(s, driver.Running)
	if changed, err := w.Stop(t.Context(), s); !changed || err != nil {
		t.Errorf("Stop = %v, %v", changed, err)
	}
}

// Signals of strangers on the bus are not systemd's, and odd ones end nothing.
func TestRealStrangersOnTheBus(t *testing.T) {
	w := newWorld(t, Config{Address: systemBus})
	s := w.unit("calm.service", "Type=exec", "ExecStart=ACT wait")
	w.start(s)
	path := unitPaths + sd.PathBusEscape(s.Unit)
	for _, args := range [][]string{
		{path, "org.freedesktop.DBus.Properties", "PropertiesChanged"},
		{path, "org.freedesktop.DBus.Properties", "PropertiesChanged", "s", "org.freedesktop.systemd1.Unit"},
		{path, "org.freedesktop.DBus.Properties", "PropertiesChanged", "sa{sv}as", "org.freedesktop.systemd1.Unit", "1", "ActiveState", "s", "failed", "0"},
		{busPath, "org.freedesktop.systemd1.Manager", "JobRemoved"},
		{busPath, "org.freedesktop.systemd1.Manager", "JobRemoved", "s", "x"},
		{busPath, "org.freedesktop.systemd1.Manager", "UnitNew"},
	} {
		if out, err := exec.Command("busctl", slices.Concat([]string{"emit"}, args)...).CombinedOutput(); err != nil {
			t.Fatalf("busctl emit %q: %v: %s", args, err, out)
		}
	}
	if got := w.Status(s); got.State != driver.Running {
		t.Errorf("after strangers spoke: %+v", got)
	}
	if _, err := w.Stop(t.Context(), s); err != nil {
		t.Error(err)
	}
}

// What a stranger says of a job ends no wait for it: a unit that takes its time to stop is not killed for that.
func TestRealForgedJob(t *testing.T) {
	w := newWorld(t, Config{Address: systemBus})
	s := w.unit("patient.service", "Type=exec", "ExecStart=ACT wait", "ExecStop=/bin/sleep 3")
	s.StopTimeoutS = 30
	w.start(s)
	ended := make(chan struct{})
	forged := make(chan error, 1)
	go func() {
		for {
			select {
			case <-ended:
				forged <- nil
				return
			default:
			}
			jobs, err := w.root.ListJobsContext(context.Background())
			for _, j := range jobs {
				if j.Unit == s.Unit && err == nil {
					err = exec.Command("busctl", "emit", busPath, "org.freedesktop.systemd1.Manager", "JobRemoved", "uoss",
						strconv.Itoa(int(j.Id)), string(j.JobPath), s.Unit, "done").Run()
				}
			}
			if err != nil {
				forged <- err
				return
			}
		}
	}()
	changed, err := w.Stop(t.Context(), s)
	close(ended)
	if ferr := <-forged; !changed || err != nil || ferr != nil {
		t.Errorf("Stop = %v, %v; forging: %v", changed, err, ferr)
	}
	if log, err := w.Logs(t.Context(), s, "", 20); err != nil || slices.ContainsFunc(log.Lines, func(l string) bool { return strings.Contains(l, "SIGKILL") }) {
		t.Errorf("it was killed: %+v, %v", log, err)
	}
}

// A connection that is lost while systemd says something leaves nothing behind.
func TestRealConnectionsEnd(t *testing.T) {
	b, err := connectTo(t.Context(), systemBus)
	must(t, err)
	w := newWorld(t, Config{})
	s := w.unit("talk.service", "Type=exec", "ExecStart=ACT wait")
	w.start(s)                         // told of, and nobody takes it
	time.Sleep(100 * time.Millisecond) // no event: systemd does it in its own time
	b.close()
	time.Sleep(100 * time.Millisecond) // no event: systemd does it in its own time
	if _, ok := <-b.changes(); ok {
		t.Error("the connection is closed, and somebody still waits to tell of changes")
	}
	if _, err := w.Stop(t.Context(), s); err != nil {
		t.Error(err)
	}
}

// as runs a driver of its own as another user.
func (w *world) as(name string, args ...string) (string, error) {
	w.t.Helper()
	who, err := user.Lookup(name)
	must(w.t, err)
	uid, _ := strconv.Atoi(who.Uid)
	gid, _ := strconv.Atoi(who.Gid)
	cmd := exec.Command(w.self, slices.Concat([]string{"act", "drive"}, args)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// The shipped rule lets the executor's user do four things to the units that it names, and nothing else.
func TestRealPolkit(t *testing.T) {
	w := newWorld(t, Config{})
	named := w.unit("durward-service-demo-chat.service", "Type=exec", "User=nobody", "ExecStart=ACT wait")
	other := w.unit("durward-service-other.service", "Type=exec", "User=nobody", "ExecStart=ACT wait")
	if out, err := exec.Command("useradd", "--system", "durward-executor").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, verb := range []string{"start", "stop"} {
		if out, err := w.as("durward-executor", "system", "", verb, named.Unit); verb == "start" && err == nil {
			t.Errorf("without a rule, %s: %s", verb, out)
		}
	}
	rule, err := os.ReadFile(os.Getenv("POLKIT_RULE"))
	must(t, err)
	must(t, os.WriteFile("/etc/polkit-1/rules.d/60-durward.rules", rule, 0o644))
	if out, err := exec.Command("systemctl", "restart", "polkit.service").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := w.as("durward-executor", "system", "", "start", named.Unit); err != nil || out != strconv.Itoa(int(driver.Running)) {
		t.Errorf("start of a unit that is named: %s, %v", out, err)
	}
	w.until(named, driver.Running)
	if out, err := w.as("durward-executor", "system", "", "stop", named.Unit); err != nil {
		t.Errorf("stop of a unit that is named: %s, %v", out, err)
	}
	w.until(named, driver.Stopped)
	// A start that hangs can be called off: by the client that asked for it, for which the rule need not let it do more.
	hanging := w.unit(named.Unit, "Type=notify", "User=nobody", "ExecStartPre=ACT count 1", "ExecStart=ACT wait", "TimeoutStartSec=60")
	if out, err := w.as("durward-executor", "system", "", "try", hanging.Unit); err == nil || !strings.HasPrefix(out, driver.CauseNotStarted+":") {
		t.Errorf("a start that hangs: %s, %v", out, err)
	}
	jobs, err := w.root.ListJobsContext(t.Context())
	if err != nil || slices.ContainsFunc(jobs, func(j sd.JobStatus) bool { return j.Unit == hanging.Unit }) {
		t.Errorf("jobs that are left: %+v, %v", jobs, err)
	}
	if out, err := w.as("durward-executor", "system", "", "stop", hanging.Unit); err != nil {
		t.Errorf("stop of what hung: %s, %v", out, err)
	}
	w.until(hanging, driver.Stopped)
	// Nor is root's unit, nor the executor's own, its to start, whatever the rule says.
	for _, who := range []string{"root", "durward-executor"} {
		s := w.unit(named.Unit, "Type=exec", "User="+who, "ExecStart=ACT wait")
		if out, err := w.as("durward-executor", "system", "", "start", s.Unit); err == nil || !strings.HasPrefix(out, driver.CauseNotPermitted) {
			t.Errorf("start of a unit of %s: %s, %v", who, out, err)
		}
		if got := w.Status(s); got.State != driver.Stopped {
			t.Errorf("a unit of %s: %+v", who, got)
		}
	}
	w.unit(named.Unit, "Type=exec", "User=nobody", "ExecStart=+ACT wait")
	if out, err := w.as("durward-executor", "system", "", "start", named.Unit); err == nil || !strings.HasPrefix(out, driver.CauseNotPermitted) {
		t.Errorf("start of a program above its unit's user: %s, %v", out, err)
	}
	w.unit(named.Unit, "Type=exec", "User=nobody", "ExecStart=ACT wait")
	if out, err := w.as("durward-executor", "system", "", "start", other.Unit); err == nil || !strings.HasPrefix(out, driver.CauseNotPermitted) {
		t.Errorf("start of another unit: %s, %v", out, err)
	}
	if out, err := w.as("nobody", "system", "", "start", named.Unit); err == nil || !strings.HasPrefix(out, driver.CauseNotPermitted) {
		t.Errorf("start by another user: %s, %v", out, err)
	}
}

// A user's own manager, reached by that user alone.
func TestRealUserManager(t *testing.T) {
	w := newWorld(t, Config{})
	if out, err := exec.Command("useradd", "--create-home", "alice").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	alice, err := user.Lookup("alice")
	must(t, err)
	run := "/run/user/" + alice.Uid
	units := alice.HomeDir + "/.config/systemd/user"
	w.write(units+"/mine.service", "Type=exec", "ExecStart=ACT wait")
	for _, cmd := range [][]string{
		{"install", "-d", "-m", "700", "-o", "alice", run},
		{"chown", "-R", "alice:", alice.HomeDir},
	} {
		if out, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", cmd, err, out)
		}
	}
	manager := w.unit("alice.service", "Type=notify", "User=alice", "Delegate=yes", "Environment=XDG_RUNTIME_DIR="+run,
		"UnsetEnvironment=SYSTEMD_UNIT_PATH", "ExecStart=/usr/lib/systemd/systemd --user")
	w.start(manager)
	w.until(manager, driver.Running)
	if out, err := w.as("alice", "user", "", "start", "mine.service"); err != nil || out != strconv.Itoa(int(driver.Running)) {
		t.Errorf("start: %s, %v", out, err)
	}
	if out, err := w.as("alice", "user", "", "stop", "mine.service"); err != nil || out != strconv.Itoa(int(driver.Stopped)) {
		t.Errorf("stop: %s, %v", out, err)
	}
	if out, err := w.as("nobody", "user", "unix:path="+run+"/systemd/private", "start", "mine.service"); err == nil {
		t.Errorf("start by another user: %s", out)
	}
}
