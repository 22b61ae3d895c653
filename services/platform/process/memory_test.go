package process

import (
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/platformtest/testfile"
)

// What can be written, what the loader changed, and what is another file's stays.
func TestFileOnly(t *testing.T) {
	const header = " 00001000 08:01 42                         /opt/durward/vault\n"
	for name, c := range map[string]struct {
		smaps string
		want  []mapping
	}{
		"nothing":                    {"", nil},
		"writable":                   {"1000-2000 rw-p" + header + "Anonymous:             0 kB\n", nil},
		"shared":                     {"1000-2000 r--s" + header + "Anonymous:             0 kB\n", nil},
		"changed by a loader":        {"1000-2000 r--p" + header + "Anonymous:             4 kB\n", nil},
		"not counted":                {"1000-2000 r--p" + header + "Rss:                   0 kB\n", nil},
		"another file":               {"1000-2000 r--p 00001000 08:01 42    /lib/vault\nAnonymous:             0 kB\n", nil},
		"a file that was removed":    {"1000-2000 r-xp 00001000 08:01 42    /opt/durward/vault (deleted)\nAnonymous:  0 kB\n", nil},
		"an anonymous part after it": {"1000-2000 r-xp" + header + "Rss: 4 kB\n2000-3000 r--p 00000000 00:00 0\nAnonymous:  0 kB\n", nil},
		"code and constants": {
			"400000-1335000 r-xp" + header + "Rss: 4 kB\nAnonymous:             0 kB\n1335000-248d000 r--p" + header + "Anonymous:             0 kB\n",
			[]mapping{{0x400000, 0x1335000}, {0x1335000, 0x248d000}},
		},
	} {
		got, err := fileOnly(strings.NewReader(c.smaps), "/opt/durward/vault")
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(mapping{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if _, err := fileOnly(strings.NewReader("x-y r--p"+header), "/opt/durward/vault"); err == nil {
		t.Error("a line that is none was read")
	}
}

// The program goes on without its pages, and has less of them for a while.
func TestReleaseProgram(t *testing.T) {
	before := residentOfFiles(t)
	if err := releaseProgram(); err != nil {
		t.Fatal(err)
	}
	if after := residentOfFiles(t); after >= before {
		t.Errorf("the program's pages: %s before, %s after", before, after)
	}
}

// residentOfFiles is RssFile of this process, as text of one length so that it compares as a number.
func residentOfFiles(t *testing.T) string {
	t.Helper()
	status := testfile.Read(t, "/proc/self/status")
	_, rest, found := strings.Cut(string(status), "RssFile:")
	if !found {
		t.Fatal("the kernel says nothing of files in memory")
	}
	line, _, _ := strings.Cut(rest, "\n")
	return line
}

// A process that holds more than its soft limit gets room for it, and loses that again.
func TestKeepRoom(t *testing.T) {
	const limit = 20 << 20
	before := debug.SetMemoryLimit(limit)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		debug.SetMemoryLimit(before)
	})
	keepRoom(ctx, limit)
	held := new([64 << 20]byte)
	collectUntil(t, func() error {
		if now := debug.SetMemoryLimit(-1); now < 128<<20 || now > 400<<20 {
			return errors.New("the limit is not twice what is in use")
		}
		return nil
	})
	runtime.KeepAlive(held) // not from here on
	collectUntil(t, func() error {
		if now := debug.SetMemoryLimit(-1); now > 64<<20 {
			return errors.New("the limit stays high")
		}
		return nil
	})
}

// collectUntil collects until look finds nothing wrong: what follows a collection has no event.
func collectUntil(t *testing.T, look func() error) {
	t.Helper()
	var err error
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); {
		runtime.GC()
		if err = look(); err == nil {
			return
		}
		runtime.Gosched()
	}
	t.Fatal(err)
}
