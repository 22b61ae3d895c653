package service

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
)

// TestWhoeverAnswersIsTheServices: a listener on the port that belongs to another program is a stranger.
func TestWhoeverAnswersIsTheServices(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	at := netip.MustParseAddrPort(l.Addr().String())
	other := exec.CommandContext(t.Context(), "/usr/bin/sleep", "60")
	must(t, other.Start())
	// A killed program ends with an error.
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	h := host{proc: "/proc", cgroups: "/sys/fs/cgroup"}
	for name, c := range map[string]struct {
		pid  int
		want error
	}{
		"nobody tells":       {0, nil},
		"its own":            {os.Getpid(), nil},
		"its child's parent": {other.Process.Pid, errStranger},
	} {
		if err := h.owns(driver.Status{State: driver.Running, PID: c.pid}, at); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_ = l.Close()
	if err := h.owns(driver.Status{State: driver.Running, PID: os.Getpid()}, at); !errors.Is(err, errNobody) {
		t.Errorf("closed: %v", err)
	}

	// Neither readiness nor a control call takes a stranger's word.
	w := newSleeper(t)
	if l, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w.s.Port = uint32(netip.MustParseAddrPort(l.Addr().String()).Port())
	w.s.StartTimeoutS, w.s.OpenAI = 1, false
	w.program.sightAfter = driver.Status{State: driver.Running, PID: other.Process.Pid}
	if _, err := w.Start(t.Context(), w.s); Cause(err) != driver.CauseTimeout {
		t.Errorf("a stranger's answer made it ready: %v", err)
	}
	w.program.set(w.program.sightAfter)
	if _, err := w.Sleep(t.Context(), w.s, Act{Confirm: willing}); Cause(err) != driver.CausePortInUse {
		t.Errorf("a stranger was sent to sleep: %v", err)
	}
	w.set(w.s, w.instance(w.s.ID), func(u *instance) { u.asleep = true })
	if _, err := w.Wake(t.Context(), w.s, Act{Confirm: willing}); Cause(err) != driver.CausePortInUse {
		t.Errorf("a stranger was woken: %v", err)
	}
	if calls := w.model.done(); len(calls) > 0 {
		t.Errorf("a stranger was asked %v", calls)
	}
}

// TestHiddenFiles: of a program of another user only the user is seen.
func TestHiddenFiles(t *testing.T) {
	proc := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(proc, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("net/tcp", "head\n"+
		"   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 111 1\n"+
		"   1: 0200007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1002        0 112 1\n"+
		"   2: 00000000:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1003        0 113 1\n")
	write("net/tcp6", "head\n"+
		"   0: 00000000000000000000000000000000:1F92 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1004        0 114 1\n"+
		"   1: 0000000000000000FFFF00000100007F:1F93 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1005        0 115 1\n"+
		"   2: 00000000000000000000000001000000:1F94 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1006        0 116 1\n")
	h := host{proc: proc, cgroups: t.TempDir()}
	type found struct{ inode, user string }
	for at, want := range map[string][]found{
		"127.0.0.1:8080": {{"111", "1001"}}, "127.0.0.1:8081": {{"113", "1003"}}, "127.0.0.1:8082": {{"114", "1004"}}, "127.0.0.1:8083": {{"115", "1005"}},
		"127.0.0.1:8084": nil, "127.0.0.1:1": nil, "127.0.0.2:8080": {{"112", "1002"}},
		"[::1]:8080": nil, "[::1]:8081": nil, "[::1]:8082": {{"114", "1004"}}, "[::1]:8083": nil, "[::1]:8084": {{"116", "1006"}},
	} {
		got, err := h.listeners(netip.MustParseAddrPort(at))
		if err != nil || len(got) != len(want) || len(want) == 1 && (found{got[0].Inode, got[0].User}) != want[0] {
			t.Errorf("%s: %v, %v", at, got, err)
		}
	}
	write("77/status", "Name:\tx\nUid:\t1001\t1001\t1001\t1001\n")
	write("77/stat", "77 (x) S 1 77 77 0\n")
	if user, ok := h.user(77); !ok || user != "1001" {
		t.Errorf("user %q, %t", user, ok)
	}
	write("78/stat", "78 (y) z) S 1 77 77 0\n") // of its session
	write("79/stat", "79 (z) S 78 79 79 0\n")   // a child of that
	write("80/stat", "80 (z) S 1 80 80 0\n")
	if got := h.pids(driver.Status{PID: 77}); len(got) != 3 || got[2] != 79 {
		t.Errorf("programs %v", got)
	}
	write("77/fd/3", "") // no socket
	if err := h.owns(driver.Status{PID: 77}, netip.MustParseAddrPort("127.0.0.1:8080")); !errors.Is(err, errStranger) {
		t.Errorf("a socket of nobody's: %v", err)
	}
}

// TestLevelOneNeedsRoom: what vLLM moves to the host's memory must have room there.
func TestLevelOneNeedsRoom(t *testing.T) {
	for text, c := range map[string]struct {
		weights uint32 // what is known of it
		want    string
	}{
		"MemTotal: 9 kB\nMemAvailable: 900000 kB\n": {0, driver.CauseHostMemory},
		"MemTotal: 8 kB\nMemAvailable: 900000 kB\n": {870, ""}, // 878 MiB are available
		"MemTotal: 7 kB\nMemAvailable: 900000 kB\n": {880, driver.CauseHostMemory},
		"MemTotal: 6 kB\nMemAvailable: 921600 kB\n": {9000, ""}, // never more than it gives up
		"MemTotal: 9 kB\nMemAvailable: 921600 kB\n": {0, ""},
		// A slip in a card does not make 900 MiB ten: a quarter of them is 225.
		"MemTotal: 5 kB\nMemAvailable: 229376 kB\n": {10, driver.CauseHostMemory},
		"MemTotal: 5 kB\nMemAvailable: 230400 kB\n": {10, ""},
		"MemTotal: 9 kB\n":                          {0, driver.CauseHostMemory},
	} {
		want := c.want
		w := newSleeper(t).up()
		w.cfg.HostAsleep = func(*catalog.Service) uint32 { return c.weights }
		proc := t.TempDir()
		must(t, os.WriteFile(filepath.Join(proc, "meminfo"), []byte(text), 0o600))
		w.host.proc = proc
		w.s.Sleep = catalog.SleepVLLM1
		_, err := w.Sleep(t.Context(), w.s, Act{Confirm: willing})
		if Cause(err) != want {
			t.Errorf("%q: %v", text, err)
		}
		if calls := w.model.done(); want != "" && len(calls) > 0 {
			t.Errorf("%q: it was asked %v", text, calls)
		}
		w.s.Sleep = catalog.SleepVLLM2
		if _, err := w.Sleep(t.Context(), w.s, Act{Confirm: willing}); err != nil {
			t.Errorf("%q: level 2: %v", text, err)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
