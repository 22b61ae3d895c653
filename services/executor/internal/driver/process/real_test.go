//go:build real

package process

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/platformtest/testfile"
)

// Outside development, as root, with control groups: another user, limits that hold, and nobody left behind.
func TestProduction(t *testing.T) {
	d, err := New(Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	defer d.Close()
	if d.groups == nil {
		t.Fatal("no control group can be made here")
	}
	s := &catalog.Service{
		ID: "demo", Driver: catalog.DriverProcess, RunAs: "nobody", StopTimeoutS: 1, LogMaxBytes: 64 << 10, WorkingDir: "/",
		Argv:   []string{"/bin/sh", "-c", "echo $USER; setsid sh -c 'trap \"\" TERM; sleep 600; sleep 600' & sleep 600"},
		Limits: catalog.Limits{MemoryMiB: 32, PIDs: 20, CPUPercent: 100},
	}
	who := started(t, d, s)
	status := d.Status(s)
	group := d.groups.Group("demo")
	if status.State != driver.Running || status.CGroup == "" || status.CGroup != group.Path() || !group.There() {
		t.Errorf("it is seen as %+v", status)
	}
	eventually(t, "it says who it is", func() bool {
		p, err := d.Logs(t.Context(), s, "", 1)
		return err == nil && len(p.Lines) == 1 && p.Lines[0] == "nobody"
	})
	eventually(t, "one of it is out of reach", func() bool { return strays(t, who.pid) != "" })
	// A service is found again by another executor with the same folder.
	if r, err := readRecord(d.recordFile("demo")); err != nil || r.CGroup != status.CGroup {
		t.Errorf("the record is %+v, %v", r, err)
	}
	if changed, err := d.Stop(t.Context(), s); !changed || err != nil {
		t.Fatalf("stop: %v, %v", changed, err)
	}
	if left := strays(t, who.pid); left != "" || group.There() {
		t.Errorf("left behind: %q, the group: %v", left, group.There())
	}

	s.Argv = []string{"/bin/sh", "-c", "head -c 200000000 /dev/zero | tail -c 200000000 > /dev/null; exit 3"}
	started(t, d, s)
	eventually(t, "it ends", func() bool { return d.Status(s).State == driver.Ended })
	if got := d.Status(s).Cause; got != driver.CauseOutOfMemory {
		t.Errorf("its cause is %q", got)
	}
	if _, err := d.Stop(t.Context(), s); err != nil || group.There() {
		t.Errorf("the group is still there: %v", err)
	}
}

// TestAStartWhoseProgramIsNotSeen: an executor was killed before it noted the pid, and the next one may not look at the program's output.
func TestAStartWhoseProgramIsNotSeen(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	d, err := New(cfg)
	must(t, err)
	s := &catalog.Service{
		ID: "demo", Driver: catalog.DriverProcess, RunAs: "nobody", StopTimeoutS: 1, LogMaxBytes: 64 << 10, WorkingDir: "/",
		Argv: []string{"/bin/sleep", "600"},
	}
	who := started(t, d, s)
	r, err := readRecord(d.recordFile("demo"))
	must(t, err)
	r.PID, r.Start, r.Output = 0, 0, "pipe:[0]"
	must(t, d.save(r))
	d.Close()
	next, err := New(cfg)
	must(t, err)
	defer next.Close()
	if alive(who) || next.groups.Group("demo").There() || next.Status(s).State != driver.Stopped {
		t.Errorf("it runs: %t, %+v", alive(who), next.Status(s))
	}
}

// TestAStrangersGroupIsLeftAlone: the number of a service that ended is now that of a group whose leader ended too, as a daemon's does.
func TestAStrangersGroupIsLeftAlone(t *testing.T) {
	d, err := New(Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	defer d.Close()
	s := &catalog.Service{
		ID: "demo", Driver: catalog.DriverProcess, RunAs: "nobody", StopTimeoutS: 1, LogMaxBytes: 64 << 10, WorkingDir: "/",
		Argv: []string{"/bin/true"},
	}
	leader := exec.Command("/bin/sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!")
	leader.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := leader.Output()
	must(t, err)
	stranger, err := strconv.Atoi(strings.TrimSpace(string(out)))
	must(t, err)
	defer func() { _ = unix.Kill(stranger, unix.SIGKILL) }()
	for name, act := range map[string]func() error{
		"start": func() error { return start(t.Context(), d, s) },
		"stop":  func() error { _, err := d.Stop(t.Context(), s); return err },
	} {
		must(t, start(t.Context(), d, s))
		eventually(t, "it ends", func() bool { return d.Status(s).State == driver.Ended })
		r, err := readRecord(d.recordFile("demo"))
		must(t, err)
		r.PID, r.Start = leader.Process.Pid, 1
		must(t, d.save(r))
		if err := act(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if st, err := stat(stranger); err != nil || !st.runs() {
			t.Errorf("%s: a stranger was killed", name)
		}
	}
}

// The shipped drop-in lets the executor change users. Its services get nothing of that: one could make itself root with it.
func TestCapabilitiesEndWithTheExecutor(t *testing.T) {
	dropIn := testfile.Read(t, "../../../../../deploy/systemd/durward-executor.service.d/executor-process.conf")
	var held []uintptr
	for line := range strings.Lines(string(dropIn)) {
		if names, ok := strings.CutPrefix(line, "AmbientCapabilities="); ok {
			for _, name := range strings.Fields(names) {
				number, ok := map[string]uintptr{
					"CAP_SETUID": unix.CAP_SETUID, "CAP_SETGID": unix.CAP_SETGID, "CAP_KILL": unix.CAP_KILL, "CAP_SETPCAP": unix.CAP_SETPCAP,
				}[name]
				if !ok {
					t.Fatalf("%s is new to this test", name)
				}
				held = append(held, number)
			}
		}
	}
	if len(held) == 0 {
		t.Fatal("the drop-in gives the executor no capability")
	}
	dir, err := os.MkdirTemp("", "capable")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program := filepath.Join(dir, "program")
	raw := testfile.Read(t, os.Args[0])
	must(t, os.WriteFile(program, raw, 0o700))
	for _, file := range []string{dir, program} {
		must(t, errors.Join(os.Chmod(file, 0o755), os.Chown(file, 1, 1)))
	}
	executor := exec.Command(program)
	executor.Env = append(os.Environ(), role+"=capable", roleArg+"="+dir)
	executor.Stdout, executor.Stderr = t.Output(), t.Output()
	executor.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1, Gid: 1}, AmbientCaps: held}
	must(t, executor.Start())
	t.Cleanup(func() {
		// It may have ended: Wait says how.
		_ = executor.Process.Signal(syscall.SIGTERM)
		if err := executor.Wait(); err != nil {
			t.Error(err)
		}
	})
	var said string
	eventually(t, "the service says what it is", func() bool {
		raw, err := os.ReadFile(filepath.Join(dir, "logs", "demo.log"))
		said = string(raw)
		return err == nil && strings.Contains(said, "root: ")
	})
	of := func(pid string) map[string]string {
		raw := testfile.Read(t, "/proc/"+pid+"/status")
		return status(string(raw))
	}
	if mine := of(strconv.Itoa(executor.Process.Pid)); strings.Trim(mine["CapAmb"], "0") == "" || strings.Trim(mine["CapEff"], "0") == "" {
		t.Errorf("the executor itself has lost its capabilities: %v", mine)
	}
	service := status(said)
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if got, ok := service[set]; !ok || strings.Trim(got, "0") != "" {
			t.Errorf("%s of the service is %q", set, got)
		}
	}
	if service["NoNewPrivs"] != "1" || service["root"] != "operation not permitted" {
		t.Errorf("new privileges: %q; setuid(0): %q", service["NoNewPrivs"], service["root"])
	}
	if got := strings.Fields(service["Uid"]); len(got) != 4 || got[0] == "0" || got[0] == "1" {
		t.Errorf("its user is %q", got)
	}
}

// status reads lines like those of /proc/PID/status.
func status(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		out[key] = strings.TrimSpace(value)
	}
	return out
}

// strays are programs in the group that are not in the session of the first one.
func strays(t *testing.T, session int) string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	must(t, err)
	var out []string
	for _, e := range entries {
		raw, err := os.ReadFile("/proc/" + e.Name() + "/cgroup")
		if err != nil || !strings.Contains(string(raw), "/service-demo\n") {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		if st, err := parseStat(text); err == nil && st.session != session && st.runs() {
			out = append(out, e.Name())
		}
	}
	return strings.Join(out, " ")
}
