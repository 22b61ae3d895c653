package bounds

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	abi "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// The test's own program is what is bounded: `probe NAME how FOLDER` does one thing and says "done" if it could.
func TestMain(m *testing.M) {
	if len(os.Args) == 5 && os.Args[1] == "probe" {
		os.Exit(probe(os.Args[2], os.Args[3], os.Args[4]))
	}
	code := m.Run()
	if path, err := built(); err == nil {
		// The result of the tests is what the exit status says.
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// built is this test's program without cgo and the race detector, as programs are shipped.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "bounds")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "bounds.test")
	cmd := exec.Command("go", "test", "-c", "-o", path, ".")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// parent is asked for before the bounds are set, which forbid that too.
var parent = os.Getppid()

func probe(name, how, folder string) int {
	open, err := os.Open(filepath.Join(folder, "model"))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if how != "free" {
		if err := Limit(); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	switch how {
	case "sealed":
		_ = Seal() // what is missing shows in what can be done
	case "confined":
		if err := confine(); err != nil {
			fmt.Println(err)
			return 1
		}
	case "filtered", "filtered in a unit":
		if how == "filtered in a unit" {
			if err := forbid(unix.SYS_SECCOMP); err != nil {
				fmt.Println(err)
				return 1
			}
		}
		if err := filter(); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	if err := probes[name](open, folder); err != nil {
		fmt.Println("failed:", err)
		return 0
	}
	fmt.Println("done")
	return 0
}

var probes = map[string]func(open *os.File, folder string) error{
	// What reading a model needs.
	"read": func(open *os.File, _ string) error {
		b, err := io.ReadAll(open)
		if err == nil && string(b) != "weights" {
			err = errors.New(string(b))
		}
		return err
	},
	"compute": func(*os.File, string) error {
		done := make(chan int)
		for range 8 {
			go func() { done <- len(make([]byte, 8<<20)) }()
		}
		for range 8 {
			<-done
		}
		runtime.GC()
		return nil
	},
	// The runtime wakes threads so.
	"own thread": func(*os.File, string) error { return unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGURG) },
	// What it does not.
	"open":    func(_ *os.File, folder string) error { return openAny(filepath.Join(folder, "model")) },
	"passwd":  func(*os.File, string) error { return openAny("/etc/passwd") },
	"list":    func(_ *os.File, folder string) error { _, err := os.ReadDir(folder); return err },
	"stat":    func(_ *os.File, folder string) error { _, err := os.Stat(folder); return err },
	"create":  func(_ *os.File, folder string) error { return os.WriteFile(filepath.Join(folder, "new"), nil, 0o600) },
	"remove":  func(_ *os.File, folder string) error { return os.Remove(filepath.Join(folder, "spare")) },
	"exec":    func(*os.File, string) error { return unix.Exec("/bin/true", []string{"true"}, nil) },
	"start":   func(*os.File, string) error { return exec.Command("/bin/true").Run() },
	"tcp":     func(*os.File, string) error { return socket(unix.AF_INET, unix.SOCK_STREAM) },
	"udp":     func(*os.File, string) error { return socket(unix.AF_INET, unix.SOCK_DGRAM) },
	"unix":    func(*os.File, string) error { return socket(unix.AF_UNIX, unix.SOCK_STREAM) },
	"netlink": func(*os.File, string) error { return socket(unix.AF_NETLINK, unix.SOCK_RAW) },
	"dial": func(*os.File, string) error {
		_, err := net.DialTimeout("udp", "127.0.0.1:9", time.Second)
		return err
	},
	"kill":   func(*os.File, string) error { return unix.Kill(parent, 0) },
	"tgkill": func(*os.File, string) error { return unix.Tgkill(parent, parent, 0) },
	// The kernel would send the signal when something comes through the pipe.
	"signal by a pipe": func(*os.File, string) error {
		_, err := unix.FcntlInt(os.Stdout.Fd(), unix.F_SETOWN, parent)
		return err
	},
	"signal's number": func(*os.File, string) error {
		_, err := unix.FcntlInt(os.Stdout.Fd(), unix.F_SETSIG, int(unix.SIGKILL))
		return err
	},
	"fork": func(*os.File, string) error {
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			return errno
		}
		if pid == 0 {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		return nil
	},
	"dumpable": func(*os.File, string) error { return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) },
	"memfd":    func(*os.File, string) error { _, err := unix.MemfdCreate("x", 0); return err },
	"chdir":    func(*os.File, string) error { return os.Chdir("/") },
	"environment": func(*os.File, string) error {
		if len(os.Environ()) == 0 {
			return errors.New("empty")
		}
		return nil
	},
	"more files": func(_ *os.File, folder string) error {
		for range Files + 10 {
			f, err := os.Open(filepath.Join(folder, "model"))
			if err != nil {
				return err
			}
			defer f.Close() //nolint:revive // as many as there may be at once
		}
		return nil
	},
	"write a file": func(_ *os.File, folder string) error {
		// A signal comes before the error; the program that is bounded writes no file.
		return os.WriteFile(filepath.Join(folder, "new"), []byte("x"), 0o600)
	},
	"memory": func(*os.File, string) error {
		b := make([]byte, Data+64<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		return nil
	},
	"memory bit by bit": func(*os.File, string) error {
		var all [][]byte
		for range (Data + 64<<20) >> 20 {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			all = append(all, b)
		}
		runtime.KeepAlive(all)
		return nil
	},
	"stack": func(*os.File, string) error { deep(1 << 17); return nil },
}

//go:noinline
func deep(n int) int {
	var frame [16]int
	frame[n&15] = n
	if n == 0 {
		return frame[0]
	}
	return deep(n-1) + frame[n&15]
}

func openAny(path string) error {
	f, err := os.Open(path)
	if err == nil {
		f.Close()
	}
	return err
}

func socket(family, kind int) error {
	fd, err := unix.Socket(family, kind, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// forbid takes one call away, as a unit's SystemCallFilter= does.
func forbid(call uint32) error {
	return install([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	})
}

// attempt runs a probe and reports what it printed, or how it ended if it did not come to that.
func attempt(t *testing.T, name, how string) string {
	t.Helper()
	folder := t.TempDir()
	for _, f := range []string{"model", "spare"} {
		if err := os.WriteFile(filepath.Join(folder, f), []byte("weights"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, path, "probe", name, how, folder)
	cmd.Env = []string{"SECRET=1"}
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		line, _, _ := strings.Cut(complaint.String(), "\n")
		return fmt.Sprintf("ended: %v: %s", err, line)
	}
	return strings.TrimSpace(out.String())
}

// Each thing can be done without the bounds, or the test would show nothing, and not with them.
func TestBounds(t *testing.T) {
	t.Parallel()
	for how, names := range map[string][]string{
		"limited": {"environment", "more files", "write a file", "memory", "memory bit by bit", "stack"},
		"sealed": {
			"open", "passwd", "list", "stat", "create", "remove", "exec", "start", "tcp", "udp", "unix", "netlink", "dial", "kill", "memfd",
			"chdir", "tgkill", "signal by a pipe", "signal's number", "fork", "dumpable",
		},
	} {
		for _, name := range names {
			t.Run(how+"/"+name, func(t *testing.T) {
				t.Parallel()
				want := "done"
				if name == "exec" {
					want = "" // another program is in its place
				}
				if got := attempt(t, name, "free"); got != want {
					t.Fatalf("without bounds: %s", got)
				}
				if got := attempt(t, name, how); !strings.HasPrefix(got, "failed: ") && !strings.HasPrefix(got, "ended: ") {
					t.Errorf("with bounds: %q", got)
				} else {
					t.Log(got)
				}
			})
		}
	}
}

func TestWhatReadingNeeds(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"read", "compute", "own thread"} {
		if got := attempt(t, name, "sealed"); got != "done" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// Each half of the seal holds without the other: the filter on a kernel without Landlock, Landlock on a processor for which there
// is no filter.
func TestHalves(t *testing.T) {
	t.Parallel()
	halves := map[string][]string{
		"filtered":           {"open", "create", "tcp", "udp", "exec", "start"},
		"filtered in a unit": {"open", "create", "tcp", "udp", "exec", "start"},
	}
	if version, err := abi.LandlockGetABIVersion(); err != nil {
		t.Logf("this kernel has no Landlock (%v): it is the filter alone that is tested", err)
	} else {
		t.Log("Landlock's version here is", version)
		halves["confined"] = []string{"open", "passwd", "list", "create", "remove", "exec", "start"}
	}
	for how, names := range halves {
		for _, name := range names {
			if got := attempt(t, name, how); !strings.HasPrefix(got, "failed: ") {
				t.Errorf("%s: %s: %q", how, name, got)
			}
		}
	}
}

func TestLimitsAreSet(t *testing.T) {
	t.Parallel()
	if got := attempt(t, "limits", "limited"); got != "done" {
		t.Error(got)
	}
}

func init() {
	probes["limits"] = func(*os.File, string) error {
		for what, want := range map[int]uint64{
			unix.RLIMIT_CPU: CPUSeconds, unix.RLIMIT_DATA: Data, unix.RLIMIT_AS: AddressSpace, unix.RLIMIT_NOFILE: Files,
			unix.RLIMIT_FSIZE: 0, unix.RLIMIT_CORE: 0,
		} {
			var is unix.Rlimit
			if err := unix.Getrlimit(what, &is); err != nil {
				return err
			}
			if is.Cur > want || is.Max > want {
				return fmt.Errorf("limit %d is %d and %d, not %d", what, is.Cur, is.Max, want)
			}
		}
		if now := debug.SetMemoryLimit(-1); now != softMemory {
			return fmt.Errorf("the collector's limit is %d", now)
		}
		return nil
	}
}
