package fakegpu

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Of two programs that want the same memory at once one gets it, and the other is told that there is none: a GPU is never overfull.
func TestTakeIsRefusedWithoutRoom(t *testing.T) {
	h, err := New(t.TempDir(), GPU{UUID: "GPU-a", Name: "A", Total: 1000, Reserved: 50})
	if err != nil {
		t.Fatal(err)
	}
	var refused atomic.Int32
	var taking sync.WaitGroup
	for i := range 20 {
		taking.Go(func() {
			err := h.Take(strconv.Itoa(i), Hold{PID: os.Getpid(), MiB: 500})
			if full := (*Full)(nil); errors.As(err, &full) && full.MiB == 500 {
				refused.Add(1)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	taking.Wait()
	if got, err := h.Read(); err != nil || refused.Load() != 19 || got[0].Used != 500 {
		t.Errorf("%d are refused, %+v, %v", refused.Load(), got, err)
	}
}

// The folder tells what programs that run hold, and nothing of those that have ended.
func TestHost(t *testing.T) {
	h, err := New(t.TempDir(), GPU{UUID: "GPU-a", Name: "Stand in", Total: 1000, Reserved: 50}, GPU{UUID: "GPU-b", Name: "B", Total: 500})
	if err != nil {
		t.Fatal(err)
	}
	ended := exec.Command("/bin/true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	me := os.Getpid()
	for _, err := range []error{
		h.Take("me", Hold{PID: me, GPU: 0, MiB: 100}, Hold{PID: me, GPU: 1, MiB: 200}), h.Take("nobody", Hold{GPU: 0, MiB: 7}),
		h.Take("ended", Hold{PID: ended.Process.Pid, GPU: 0, MiB: 300}), h.Take("given", Hold{PID: me, GPU: 0, MiB: 1}), h.Give("given"), h.Give("given"),
		h.Take("elsewhere", Hold{PID: me, GPU: 9, MiB: 1}), h.Lose(1, true), h.Unload(true), h.XID(0, 79), h.XID(1, 48), h.Lag(5), h.Hang(true), h.Hang(false),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := h.Read()
	want := []GPU{
		{UUID: "GPU-a", Name: "Stand in", Total: 1000, Reserved: 50, Used: 107, Programs: []Program{{me, 100}}},
		{UUID: "GPU-b", Name: "B", Total: 500, Lost: true, Used: 200, Programs: []Program{{me, 200}}},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" || got[0].Free() != 843 || h.Loaded() {
		t.Errorf("%v, loaded: %v (-want +got):\n%s", err, h.Loaded(), diff)
	}
	if raw, err := os.ReadFile(h.Dir + "/xid"); err != nil || string(raw) != "0 79\n1 48\n" {
		t.Errorf("errors: %q, %v", raw, err)
	}
	if err := h.Take("bad", Hold{PID: me, GPU: 0, MiB: 1}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.Dir+"/alloc/bad", []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Read(); err == nil {
		t.Error("a damaged file was read")
	}
}
