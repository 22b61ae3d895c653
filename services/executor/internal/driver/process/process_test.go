package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/driver/launch"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/handover"
)

// The test binary plays the programs: which one is told by a variable that its catalog entry names.
const (
	role    = "DEMO_ROLE"
	roleArg = "DEMO_ARGUMENT"
)

func TestMain(m *testing.M) {
	syscall.Umask(0o077)
	if len(os.Args) > 1 && os.Args[1] == KeepLog {
		os.Exit(KeepLogMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == launch.Word {
		os.Exit(launch.Main(os.Args[2:]))
	}
	arg := os.Getenv(roleArg)
	switch os.Getenv(role) {
	case "":
		os.Exit(m.Run())
	case "polite":
		wait()
	case "talker":
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("hello")
		<-c
		fmt.Println("goodbye")
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		ready(arg)
		time.Sleep(time.Hour) // a signal ends it; not select {}: the runtime calls that a deadlock and ends
	case "parent": // a child of its own that ignores SIGTERM
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), role+"=stubborn", roleArg+"="+arg)
		if err := child.Start(); err != nil {
			os.Exit(3)
		}
		wait()
	case "report":
		report(arg)
		wait()
	case "flood":
		for line := strings.Repeat("y", 8191) + "\n"; ; {
			fmt.Print(line)
		}
	case "spam":
		for {
			fmt.Println(strings.Repeat("x", 1023))
			time.Sleep(100 * time.Microsecond) // the pace of its lines
		}
	case "status": // what it is, and whether it can become root
		raw, _ := os.ReadFile("/proc/self/status")
		fmt.Printf("%sroot: %v\n", raw, syscall.Setuid(0))
		wait()
	case "capable": // an executor that may change users
		end := terminated() // its service may speak, and the test go on, before it is through with the start
		d, err := New(Config{Dir: arg, Log: slog.New(slog.DiscardHandler)})
		s := entry("status", "")
		s.RunAs = "nobody"
		if err == nil {
			err = start(context.Background(), d, s)
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(3)
		}
		<-end
		if _, err := d.Stop(context.Background(), s); err != nil {
			fmt.Println(err)
			os.Exit(4)
		}
	case "filler": // makes its log longer than it may be, without writing, and goes on
		if unix.Fallocate(1, 0, 1<<30, 1<<20) != nil && unix.Ftruncate(1, 1<<30) != nil {
			fmt.Println("neither")
		}
		wait()
	case "brief":
		os.Exit(7)
	case "broken": // an executor in which the start of a service breaks off, before or after its program began
		d, err := New(Config{Dir: arg, Log: slog.New(slog.DiscardHandler), Development: true})
		s := entry("polite", "")
		for _, begins := range []bool{false, true} {
			definition, derr := d.Definition(context.Background(), s)
			func() {
				defer func() { _ = recover() }()
				_ = d.Start(context.Background(), s, definition, func(act func() error) error { // it returns no error: it panics
					if begins {
						_ = act() // what it did shows below
					}
					panic("a fault")
				})
			}()
			changed, serr := d.Stop(context.Background(), s)
			fmt.Println(begins, changed, errors.Join(err, derr, serr), d.Status(s).State == driver.Stopped)
		}
	case "executor", "executor of a family": // starts a service and is killed
		d, err := New(Config{Dir: arg, Log: slog.New(slog.DiscardHandler), Development: true})
		s := entry("talker", "")
		if os.Getenv(role) != "executor" {
			s = entry("parent", filepath.Join(arg, "ready"))
		}
		if err == nil {
			err = start(context.Background(), d, s)
		}
		if err != nil {
			os.Exit(3)
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			os.Exit(4)
		}
	}
	os.Exit(0)
}

func wait() { <-terminated() }

// terminated is where a SIGTERM is told from now on.
func terminated() <-chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	return c
}

func ready(file string) {
	if err := os.WriteFile(file, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		panic(err)
	}
}

type surroundings struct {
	Environment []string
	Dir         string
	Args        []string
	Session     int
	Group       int
	PID         int
	Umask       int
	Slack       int
	Stdin       string
	Stdout      string
}

func report(file string) {
	dir, _ := os.Getwd()
	session, _ := unix.Getsid(0)
	umask := syscall.Umask(0)
	slack, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	stdin, _ := os.Readlink("/proc/self/fd/0")
	stdout, _ := os.Readlink("/proc/self/fd/1")
	raw, _ := json.Marshal(surroundings{
		Environment: os.Environ(), Dir: dir, Args: os.Args, Session: session, Group: unix.Getpgrp(), PID: os.Getpid(), Umask: umask,
		Slack: slack, Stdin: stdin, Stdout: stdout,
	})
	if err := errors.Join(os.WriteFile(file+".new", raw, 0o600), os.Rename(file+".new", file)); err != nil {
		panic(err)
	}
}

func entry(program, arg string) *catalog.Service {
	return &catalog.Service{
		ID: "demo", Driver: catalog.DriverProcess, Argv: []string{os.Args[0], "a b", "$HOME", "; rm -rf /"},
		Environment: map[string]string{role: program, roleArg: arg}, StopTimeoutS: 1, LogMaxBytes: 64 << 10,
	}
}

func open(t *testing.T, dir string) *Driver {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	d, err := New(Config{Dir: dir, Log: slog.New(slog.DiscardHandler), Development: true})
	must(t, err)
	t.Cleanup(func() {
		d.Close()
		if len(entries) > 0 {
			return // of programs that another driver in this folder started, whose test ends them afterwards
		}
		// Keepers write to the folder until they have read the pipe to its end, also those of starts that failed; then it may be removed.
		eventually(t, "the keepers of its logs end", func() bool {
			folders, err := filepath.Glob("/proc/[0-9]*/cwd")
			must(t, err)
			return !slices.ContainsFunc(folders, func(of string) bool {
				folder, err := os.Readlink(of) // a process that is gone has none
				return err == nil && folder == d.logDir
			})
		})
	})
	return d
}

// started starts a program and sees to it that nothing of it outlives the test.
// start starts what there is at this moment.
func start(ctx context.Context, d *Driver, s *catalog.Service) error {
	definition, err := d.Definition(ctx, s)
	if err != nil {
		return err
	}
	return d.Start(ctx, s, definition, driver.AtOnce)
}

func started(t *testing.T, d *Driver, s *catalog.Service) identity {
	t.Helper()
	must(t, start(t.Context(), d, s))
	return held(t, d, s.ID)
}

func held(t *testing.T, d *Driver, id string) identity {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.records[id] == nil {
		t.Fatal("no record")
	}
	who := d.records[id].identity()
	t.Cleanup(func() {
		if alive(who) {
			// The group may have ended.
			_ = unix.Kill(-who.pid, unix.SIGKILL)
		}
	})
	return who
}

// eventually waits for what other processes do, of which the test hears nothing but by looking.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(5 * time.Millisecond) { // no event: see above
		if time.Now().After(deadline) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

func TestStartAndStop(t *testing.T) {
	d, s := open(t, t.TempDir()), entry("polite", "")
	if got := d.Status(s); got.State != driver.Stopped {
		t.Fatalf("before the start: %v", got)
	}
	if changed, err := d.Stop(t.Context(), s); changed || err != nil {
		t.Errorf("stopping what does not run: %v, %v", changed, err)
	}
	who := started(t, d, s)
	if got := d.Status(s); got.State != driver.Running || got.Since.IsZero() || got.PID != who.pid || got.CGroup != "" {
		t.Errorf("after the start: %v", got)
	}
	if changed, err := d.Stop(t.Context(), s); !changed || err != nil {
		t.Errorf("stop: %v, %v", changed, err)
	}
	if alive(who) || d.Status(s).State != driver.Stopped {
		t.Error("it still runs")
	}
}

// TestSurroundings: ENV-1, literal arguments, own session, no input, private files, and timers that are not late as the executor's are.
func TestSurroundings(t *testing.T) {
	runtime.LockOSThread()
	t.Cleanup(func() {
		if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
	})
	must(t, unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(time.Second), 0, 0, 0))
	t.Setenv("SECRET_TOKEN", "must not be inherited")
	t.Setenv("TZ", "Europe/Paris")
	file, dir := filepath.Join(t.TempDir(), "report"), t.TempDir()
	d, s := open(t, dir), entry("report", file)
	s.WorkingDir = dir
	started(t, d, s)
	eventually(t, "the program reports", func() bool { _, err := os.Stat(file); return err == nil })
	raw, err := os.ReadFile(file)
	must(t, err)
	var got surroundings
	must(t, json.Unmarshal(raw, &got))
	me, err := user.Current()
	must(t, err)
	slices.Sort(got.Environment)
	want := surroundings{
		Environment: []string{
			"DEMO_ARGUMENT=" + file, "DEMO_ROLE=report", "HOME=" + me.HomeDir, "LANG=C.UTF-8",
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=dumb", "TZ=Europe/Paris", "USER=" + me.Username,
		},
		Dir: dir, Args: s.Argv, Session: got.PID, Group: got.PID, PID: got.PID, Umask: 0o077, Slack: 50_000, Stdin: "/dev/null",
		Stdout: d.records["demo"].Output,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("surroundings (-want +got):\n%s", diff)
	}
	if !strings.HasPrefix(got.Stdout, "pipe:[") {
		t.Errorf("the program holds %s", got.Stdout)
	}
	log := filepath.Join(dir, "logs", "demo.log")
	eventually(t, "the log is kept", func() bool { info, err := os.Stat(log); return err == nil && info.Mode().Perm() == 0o600 })
}

func TestAStubbornProgramIsKilled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ready")
	d, s := open(t, t.TempDir()), entry("stubborn", file)
	who := started(t, d, s)
	eventually(t, "it ignores SIGTERM", func() bool { _, err := os.Stat(file); return err == nil })
	if changed, err := d.Stop(t.Context(), s); !changed || err != nil {
		t.Fatalf("stop: %v, %v", changed, err)
	}
	if alive(who) {
		t.Error("it still runs")
	}
}

func TestTheWholeGroupIsStopped(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ready")
	d, s := open(t, t.TempDir()), entry("parent", file)
	started(t, d, s)
	child := descendant(t, file)
	if _, err := d.Stop(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if alive(child) {
		t.Error("its child still runs")
	}
}

func TestAProgramThatEndsByItselfIsSeen(t *testing.T) {
	dir := t.TempDir()
	d, s := open(t, dir), entry("brief", "")
	must(t, start(t.Context(), d, s))
	eventually(t, "its end is seen", func() bool { return d.Status(s).State == driver.Ended })
	if got := d.Status(s).Cause; got != driver.CauseExited {
		t.Errorf("cause is %q", got)
	}
	again := open(t, dir)
	if got := again.Status(s); got.State != driver.Ended {
		t.Errorf("another executor sees %v", got)
	}
	if changed, err := again.Stop(t.Context(), s); changed || err != nil || again.Status(s).State != driver.Stopped {
		t.Errorf("stopping what ended: %v, %v", changed, err)
	}
}

// TestOutlivingTheExecutor kills an executor with SIGKILL; the next one finds its program, and stops it.
func TestOutlivingTheExecutor(t *testing.T) {
	for _, window := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed before the pid was noted: %v", window), func(t *testing.T) {
			dir, s := t.TempDir(), entry("polite", "")
			executor := exec.Command(os.Args[0])
			executor.Env = append(os.Environ(), role+"=executor", roleArg+"="+dir)
			if err := executor.Run(); executor.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the executor was not killed: %v", err)
			}
			file := filepath.Join(dir, "run", "demo.json")
			if window {
				r, err := readRecord(file)
				must(t, err)
				r.PID, r.Start = 0, 0
				write(t, file, r)
			}
			d := open(t, dir)
			who := held(t, d, "demo")
			if d.Status(s).State != driver.Running {
				t.Fatal("the program was not found again")
			}
			if changed, err := d.Stop(t.Context(), s); !changed || err != nil || alive(who) {
				t.Errorf("stop by another executor: %v, %v", changed, err)
			}
		})
	}
}

// TestWhatADeadLeaderLeft is ended by the next start: it may hold the port, and memory of a GPU. No executor saw its leader end.
func TestWhatADeadLeaderLeft(t *testing.T) {
	dir := t.TempDir()
	executor := exec.Command(os.Args[0])
	executor.Env = append(os.Environ(), role+"=executor of a family", roleArg+"="+dir)
	if err := executor.Run(); executor.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the executor was not killed: %v", err)
	}
	d, s := open(t, dir), entry("polite", "")
	leader := held(t, d, "demo")
	child := descendant(t, filepath.Join(dir, "ready"))
	must(t, unix.Kill(leader.pid, unix.SIGKILL))
	eventually(t, "its leader has ended", func() bool { return d.Status(s).State == driver.Ended })
	if !alive(child) {
		t.Fatal("its child ended with it")
	}
	started(t, d, s)
	if alive(child) {
		t.Error("its child still runs")
	}
	if _, err := d.Stop(t.Context(), s); err != nil {
		t.Error(err)
	}
}

// descendant waits for the program that writes its number to the file.
func descendant(t *testing.T, file string) identity {
	t.Helper()
	var who identity
	eventually(t, "its child runs", func() bool {
		raw, err := os.ReadFile(file)
		who.pid, _ = strconv.Atoi(string(raw))
		return err == nil && who.pid > 0
	})
	var err error
	who.start, err = ticks(who.pid)
	must(t, err)
	t.Cleanup(func() {
		if alive(who) {
			_ = unix.Kill(who.pid, unix.SIGKILL) // it may end meanwhile
		}
	})
	return who
}

func write(t *testing.T, file string, r *record) {
	t.Helper()
	raw, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(file, raw, 0o600)
	}
	must(t, err)
}

// TestARecycledPIDIsNotOurs: a process with the noted pid and another start time, or of another boot, is left alone.
func TestARecycledPIDIsNotOurs(t *testing.T) {
	for name, bend := range map[string]func(r *record){
		"another start": func(r *record) { r.Start++ },
		"another boot":  func(r *record) { r.Boot = "another" },
		"nobody left":   func(r *record) { r.PID, r.Start = 0, 0; r.NotBefore = 1 << 60 },
	} {
		t.Run(name, func(t *testing.T) {
			dir, s := t.TempDir(), entry("polite", "")
			d := open(t, dir)
			who := started(t, d, s)
			file := filepath.Join(dir, "run", "demo.json")
			r, err := readRecord(file)
			must(t, err)
			bend(r)
			write(t, file, r)
			next := open(t, dir)
			if next.Status(s).State == driver.Running {
				t.Error("a stranger passes for our program")
			}
			if changed, err := next.Stop(t.Context(), s); changed || err != nil {
				t.Errorf("stop: %v, %v", changed, err)
			}
			if !alive(who) {
				t.Error("a stranger was killed")
			}
		})
	}
}

func TestADamagedRecordIsSetAside(t *testing.T) {
	for name, raw := range map[string]string{
		"cut": `{"id":"demo"`, "no boot": `{"id":"demo","pid":1,"start":5}`, "negative": `{"id":"demo","boot":"b","pid":-1,"start":5}`,
		"another's": `{"id":"other","boot":"b","pid":1,"start":5}`, "unknown field": `{"id":"demo","boot":"b","sig":9}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.MkdirAll(filepath.Join(dir, "run"), 0o700))
			file := filepath.Join(dir, "run", "demo.json")
			must(t, os.WriteFile(file, []byte(raw), 0o600))
			d := open(t, dir)
			if d.Status(entry("polite", "")).State != driver.Stopped {
				t.Error("it was believed")
			}
			if _, err := os.Stat(file + ".damaged"); err != nil {
				t.Error("it was not kept")
			}
		})
	}
}

func TestWhatCannotStart(t *testing.T) {
	d := open(t, t.TempDir())
	missing := entry("polite", "")
	missing.Argv = []string{"/nonexistent/program"}
	if err := start(t.Context(), d, missing); !errors.Is(err, driver.ErrProgramMissing) {
		t.Errorf("missing program: %v", err)
	}
	busy := entry("polite", "")
	for _, at := range []string{"127.0.0.1:0", "127.0.0.2:0"} {
		stranger, err := net.Listen("tcp4", at)
		must(t, err)
		defer stranger.Close()
		busy.Port, busy.BaseURL = uint32(stranger.Addr().(*net.TCPAddr).Port), "http://"+stranger.Addr().String()
		if err := start(t.Context(), d, busy); !errors.Is(err, driver.ErrPortInUse) {
			t.Errorf("a port that is busy at %s: %v", at, err)
		}
	}
	text := entry("polite", "")
	text.Argv = []string{filepath.Join(t.TempDir(), "text")}
	must(t, os.WriteFile(text.Argv[0], []byte("not a program"), 0o600))
	if err := start(t.Context(), d, text); err == nil {
		t.Error("a text file was started")
	}
	nobody := entry("polite", "")
	nobody.RunAs = "no-such-user"
	if err := start(t.Context(), d, nobody); !errors.Is(err, driver.ErrNotPermitted) {
		t.Errorf("unknown user: %v", err)
	}
	root := entry("polite", "")
	root.RunAs = "root"
	if _, err := command(root, false); !errors.Is(err, driver.ErrNotPermitted) {
		t.Errorf("root: %v", err)
	}
	for _, development := range []bool{false, true} {
		if _, err := command(entry("polite", ""), development); errors.Is(err, driver.ErrNotPermitted) == development {
			t.Errorf("the executor's own user, in development: %v: %v", development, err)
		}
	}
	for _, s := range []*catalog.Service{missing, busy, text, nobody} {
		if got := d.Status(s).State; got != driver.Stopped {
			t.Errorf("after a failed start: %v", got)
		}
	}
}

// TestOnlyWhatWasApprovedRuns: the content counts, whatever happened to the file in between.
func TestOnlyWhatWasApprovedRuns(t *testing.T) {
	d := open(t, t.TempDir())
	raw, err := os.ReadFile(os.Args[0])
	must(t, err)
	for _, script := range []bool{false, true} {
		s := entry("polite", "")
		s.Argv = []string{filepath.Join(t.TempDir(), "program")}
		content := raw
		if script {
			content = []byte("#!" + os.Args[0] + "\n")
		}
		put := func(content []byte) {
			t.Helper()
			must(t, os.WriteFile(s.Argv[0]+".new", content, 0o700))
			must(t, os.Rename(s.Argv[0]+".new", s.Argv[0]))
		}
		put(content)
		definition, err := d.Definition(t.Context(), s)
		must(t, err)
		put(append(slices.Clone(content), ' '))
		for _, told := range []string{definition, ""} {
			if err := d.Start(t.Context(), s, told, driver.AtOnce); !errors.Is(err, driver.ErrChanged) || d.Status(s).State != driver.Stopped {
				t.Errorf("a script: %v: another program: %v", script, err)
			}
		}
		put(content)
		if err := d.Start(t.Context(), s, definition, driver.AtOnce); err != nil || d.Status(s).State != driver.Running {
			t.Errorf("a script: %v: the program: %v", script, err)
		}
		if _, err := d.Stop(t.Context(), s); err != nil {
			t.Error(err)
		}

		// At the last moment.
		p, err := openProgram(s, definition)
		must(t, err)
		defer p.file.Close()
		put([]byte("another"))
		if err := p.unchanged(); !errors.Is(err, driver.ErrChanged) {
			t.Errorf("a script: %v: replaced at the last moment: %v", script, err)
		}
		put(content)
		if p, err = openProgram(s, definition); err != nil {
			t.Fatal(err)
		}
		defer p.file.Close()
		must(t, os.WriteFile(s.Argv[0], append(slices.Clone(content), '\n'), 0o700))
		if err := p.unchanged(); !errors.Is(err, driver.ErrChanged) {
			t.Errorf("a script: %v: written to at the last moment: %v", script, err)
		}
	}
}

// A program holds nothing of the file that its log is in, so that it cannot fill the disk between two looks.
func TestALogIsBoundedAsItIsWritten(t *testing.T) {
	d, s := open(t, t.TempDir()), entry("filler", "")
	started(t, d, s)
	file := d.logFile("demo")
	eventually(t, "the program goes on", func() bool { raw, err := os.ReadFile(file); return err == nil && string(raw) == "neither\n" })
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil || st.Size != 8 || st.Blocks > 8 {
		t.Errorf("the log has %d bytes in %d blocks, %v", st.Size, st.Blocks, err)
	}
	if _, err := d.Stop(t.Context(), s); err != nil {
		t.Fatal(err)
	}

	// Whenever one looks, neither part is longer than it may be.
	s = entry("flood", "")
	started(t, d, s)
	until := time.Now().Add(time.Second)
	for time.Now().Before(until) {
		for _, part := range []string{file, file + ".1"} {
			if info, err := os.Stat(part); err == nil && info.Size() > s.LogMaxBytes {
				t.Fatalf("%s has %d bytes", filepath.Base(part), info.Size())
			}
		}
	}
	if base, err := readBase(file); err != nil || base < s.LogMaxBytes {
		t.Errorf("only %d bytes were written: %v", base, err)
	}
	if _, err := d.Stop(t.Context(), s); err != nil {
		t.Error(err)
	}
}

// TestALogThatIsTakenAway: a keeper that had opened it drops what it had to write, and makes a new one of what comes next.
func TestALogThatIsTakenAway(t *testing.T) {
	file := filepath.Join(t.TempDir(), "demo.log")
	must(t, os.WriteFile(file, []byte("full"), 0o600))
	release, err := locked(file)
	must(t, err)
	written := make(chan error, 1)
	go func() { written <- appendLog(file, []byte("more"), 4) }()
	eventually(t, "the keeper has it open too", func() bool {
		open := 0
		fds, _ := filepath.Glob("/proc/self/fd/*")
		for _, fd := range fds {
			if name, err := os.Readlink(fd); err == nil && name == file {
				open++
			}
		}
		return open == 2
	})
	must(t, os.Remove(file))
	release()
	select {
	case err := <-written:
		if err == nil {
			t.Error("what is gone was written")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the keeper never ends")
	}
	must(t, appendLog(file, []byte("next"), 4))
	if got, err := os.ReadFile(file); string(got) != "next" {
		t.Errorf("the new log holds %q, %v", got, err)
	}
}

// The last words of a program are in its log when it counts as ended, and an executor that ends takes no log with it.
func TestALogOutlivesTheExecutor(t *testing.T) {
	dir := t.TempDir()
	executor := exec.Command(os.Args[0])
	executor.Env = append(os.Environ(), role+"=executor", roleArg+"="+dir)
	if err := executor.Run(); executor.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the executor was not killed: %v", err)
	}
	d := open(t, dir)
	held(t, d, "demo")
	s := entry("talker", "")
	said := func() []string {
		page, err := d.Logs(t.Context(), s, "", 10)
		must(t, err)
		return page.Lines
	}
	eventually(t, "the program speaks", func() bool { return slices.Equal(said(), []string{"hello"}) })
	if changed, err := d.Stop(t.Context(), s); !changed || err != nil {
		t.Fatalf("%v, %v", changed, err)
	}
	if got := said(); !slices.Equal(got, []string{"hello", "goodbye"}) {
		t.Errorf("%q", got)
	}
}

func TestLogsAreBounded(t *testing.T) {
	d, s := open(t, t.TempDir()), entry("spam", "")
	started(t, d, s)
	file := d.logFile("demo")
	eventually(t, "the old log is kept", func() bool { info, err := os.Stat(file + ".1"); return err == nil && info.Size() >= s.LogMaxBytes })
	if _, err := d.Stop(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	must(t, boundLog(file, s.LogMaxBytes))
	info, err := os.Stat(file)
	if err != nil || info.Size() > s.LogMaxBytes {
		t.Errorf("the log is %v, %v", info, err)
	}
	f, err := os.Open(file + ".1")
	must(t, err)
	defer f.Close()
	if raw, err := io.ReadAll(f); err != nil || bytes.IndexByte(raw, 0) >= 0 {
		t.Errorf("the old log holds holes: %v", err)
	}
}

func TestParseStat(t *testing.T) {
	fields := " 1 4242 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20"
	for raw, want := range map[string]procStat{
		"42 (plain) S" + fields:            {state: 'S', group: 4242, session: 3, threads: 17, start: 777},
		"42 (a) R (b c) ) Z" + fields:      {state: 'Z', group: 4242, session: 3, threads: 17, start: 777},
		"42 (new\nline) S" + fields + "\n": {state: 'S', group: 4242, session: 3, threads: 17, start: 777},
	} {
		got, err := parseStat([]byte(raw))
		if err != nil || got != want {
			t.Errorf("%q: %v, %v", raw, got, err)
		}
	}
	for _, raw := range []string{"", "42", "42 (x", "42 (x)", "42 (x) S 1 2", "42 (x) SS" + fields, "42 (x) S 1 x 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20", "42 (x) S 1 2 x 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20"} {
		if got, err := parseStat([]byte(raw)); err == nil {
			t.Errorf("%q passed as %v", raw, got)
		}
	}
	for _, ended := range []procStat{{state: 'Z', threads: 1}, {state: 'X'}, {state: 'Z'}} {
		if ended.runs() {
			t.Errorf("%+v passes for running", ended)
		}
	}
	if !(procStat{state: 'Z', threads: 2}).runs() || !(procStat{state: 'S', threads: 1}).runs() {
		t.Error("a process whose threads still run passes for ended")
	}
	me, err := stat(os.Getpid())
	if err != nil || me.start == 0 || !alive(identity{os.Getpid(), me.start}) || alive(identity{os.Getpid(), me.start + 1}) {
		t.Errorf("our own: %v, %v", me, err)
	}
}

func TestRunAs(t *testing.T) {
	nobody, err := user.Lookup("nobody")
	must(t, err)
	s := entry("polite", "")
	s.RunAs = "nobody"
	cmd, err := command(s, false)
	must(t, err)
	c := cmd.SysProcAttr.Credential
	if c == nil || strconv.FormatUint(uint64(c.Uid), 10) != nobody.Uid || strconv.FormatUint(uint64(c.Gid), 10) != nobody.Gid || c.NoSetGroups {
		t.Errorf("credentials are %+v, want those of %+v", c, nobody)
	}
	if !slices.Contains(cmd.Env, "USER=nobody") || !slices.Contains(cmd.Env, "HOME="+nobody.HomeDir) {
		t.Errorf("environment is %v", cmd.Env)
	}
}

// TestOnlyTheFilesThatWereApprovedAreGiven: what the arguments name counts as the program does.
func TestOnlyTheFilesThatWereApprovedAreGiven(t *testing.T) {
	d, s := open(t, t.TempDir()), entry("polite", "")
	s.WorkingDir = t.TempDir()
	program, err := d.Definition(t.Context(), s)
	if err != nil || d.Pins(t.Context(), s) != nil {
		t.Fatalf("a program alone: %v", err)
	}
	config, script, log := filepath.Join(s.WorkingDir, "config.yaml"), filepath.Join(s.WorkingDir, "svc.py"), filepath.Join(s.WorkingDir, "log")
	put := func(path, content string) {
		t.Helper()
		must(t, os.WriteFile(path, []byte(content), 0o600))
	}
	put(config, "x")
	put(script, "x")
	put(log, "x")
	weights := filepath.Join(s.WorkingDir, "weights") // no argument names it
	put(weights, "x")
	s.Argv, s.Writes, s.Digests = append(s.Argv, "svc.py", "--config="+config, log), []string{log}, []string{weights}
	definition, err := d.Definition(t.Context(), s)
	if err != nil || definition == program {
		t.Fatalf("%q, %v", definition, err)
	}
	if diff := cmp.Diff([]string{
		"pinned: " + s.Argv[0], "checked, not held: " + script, "checked, not held: " + config, "not pinned, the service writes it: " + log, "checked, not held: " + weights,
	}, d.Pins(t.Context(), s)); diff != "" {
		t.Error(diff)
	}
	put(log, "more")
	for _, path := range []string{script, config, weights} {
		put(path, "y")
		if err := d.Start(t.Context(), s, definition, driver.AtOnce); !errors.Is(err, driver.ErrChanged) || d.Status(s).State != driver.Stopped {
			t.Errorf("%s was edited: %v", filepath.Base(path), err)
		}
		put(path, "x")
	}

	// At the last moment.
	p, err := openProgram(s, definition)
	must(t, err)
	defer p.file.Close()
	put(script, "later")
	if err := p.unchanged(); !errors.Is(err, driver.ErrChanged) {
		t.Errorf("edited at the last moment: %v", err)
	}
	put(script, "x")
	ended := errors.New("it has ended")
	if err := d.Start(t.Context(), s, definition, func(func() error) error { return ended }); !errors.Is(err, ended) || d.Status(s).State != driver.Stopped {
		t.Errorf("what let it run has ended: %v, %v", err, d.Status(s))
	}
	if err := d.Start(t.Context(), s, definition, func(act func() error) error { put(script, "later still"); return act() }); !errors.Is(err, driver.ErrChanged) {
		t.Errorf("edited while it was asked about: %v", err)
	}
	put(script, "x")
	if err := d.Start(t.Context(), s, definition, driver.AtOnce); err != nil || d.Status(s).State != driver.Running {
		t.Errorf("as it was approved: %v", err)
	}
	if _, err := d.Stop(t.Context(), s); err != nil {
		t.Error(err)
	}
}

// TestWhatChangesWhileTheVaultIsAskedIsNotRun: a start with credentials waits for the vault, and for the answer to whether it may still begin.
func TestWhatChangesWhileTheVaultIsAskedIsNotRun(t *testing.T) {
	d, s := open(t, t.TempDir()), entry("polite", "")
	s.Argv, s.Credentials = []string{filepath.Join(t.TempDir(), "program"), filepath.Join(t.TempDir(), "config.yaml")}, []string{"api"}
	put := func(path, content string) {
		t.Helper()
		must(t, os.WriteFile(path, []byte(content), 0o700))
	}
	ran := filepath.Join(t.TempDir(), "ran")
	script, config := "#!"+os.Args[0]+"\n", "as it was"
	put(s.Argv[0], script)
	put(s.Argv[1], config)
	definition, err := d.Definition(t.Context(), s)
	must(t, err)
	edit := func(string) {}
	d.release = func(_ context.Context, service string, _ []string, public []byte) ([]byte, error) {
		edit("the vault")
		return handover.Seal(public, service, []handover.Value{{Name: "api", Variable: "TOKEN", Value: []byte("secret")}})
	}
	may := func(act func() error) error {
		edit("begin")
		return act()
	}
	for _, asked := range []string{"the vault", "begin"} {
		for i, to := range []string{"#!/bin/sh\ntouch " + ran + "\n", "edited"} {
			edit = func(now string) {
				if now == asked {
					put(s.Argv[i], to)
				}
			}
			if err := d.Start(t.Context(), s, definition, may); !errors.Is(err, driver.ErrChanged) || d.Status(s).State != driver.Stopped {
				t.Errorf("%s was edited while %s was asked: %v, %v", filepath.Base(s.Argv[i]), asked, err, d.Status(s))
			}
			put(s.Argv[i], []string{script, config}[i])
		}
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("what nobody approved ran")
	}
	edit = func(string) {}
	if err := d.Start(t.Context(), s, definition, may); err != nil || d.Status(s).State != driver.Running {
		t.Errorf("as it was approved: %v, %v", err, d.Status(s))
	}
	if _, err := d.Stop(t.Context(), s); err != nil {
		t.Error(err)
	}
}

// TestAStartThatBreaksOff in a panic has no pid: what began is found and ended, and nobody else.
func TestAStartThatBreaksOff(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), role+"=broken", roleArg+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what ends its own group ends nothing of this test
	said, err := cmd.Output()
	if want := "false false <nil> true\ntrue true <nil> true\n"; err != nil || string(said) != want {
		t.Errorf("%v, it said %q, want %q", err, said, want)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
