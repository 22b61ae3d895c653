//go:build real && nvml && cgo

package nvml

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/platformtest"
)

const (
	first  = "GPU-f0000000-0000-4000-8000-000000000001"
	second = "GPU-f0000000-0000-4000-8000-000000000002"
)

// folder is the one that the stand-in of the library reads.
type folder struct {
	t   testing.TB
	dir string
}

// fake opens the stand-in under the real binding.
func fake(t testing.TB) (*source, folder) {
	t.Helper()
	file := os.Getenv("DURWARD_FAKE_NVML")
	if file == "" {
		t.Fatal("DURWARD_FAKE_NVML names no library: run scripts/real-gpu.sh")
	}
	f := folder{t, t.TempDir()}
	if err := os.Mkdir(filepath.Join(f.dir, "alloc"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.write("gpus", first+" Stand-in_One 24576 300\n"+second+" Stand-in_Two 16384 0\n")
	t.Setenv("DURWARD_FAKE_GPU", f.dir)
	s, err := New(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s.(*source), f
}

func (f folder) write(name, text string) {
	f.t.Helper()
	file := filepath.Join(f.dir, name)
	next := filepath.Join(filepath.Dir(file), "."+filepath.Base(file))
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(next, file); err != nil {
		f.t.Fatal(err)
	}
}

func (f folder) remove(name string) {
	f.t.Helper()
	if err := os.Remove(filepath.Join(f.dir, name)); err != nil {
		f.t.Fatal(err)
	}
}

func (f folder) hold(name string, pid, index, mib int) {
	f.t.Helper()
	f.write(filepath.Join("alloc", name), strconv.Itoa(pid)+" "+strconv.Itoa(index)+" "+strconv.Itoa(mib)+"\n")
}

func read(t testing.TB, s gpu.Source, want int) []gpu.Device {
	t.Helper()
	got, err := s.Read(context.Background())
	if err != nil || len(got) != want {
		t.Fatalf("%d GPUs, %v, want %d", len(got), err, want)
	}
	return got
}

// stranger is a program that does nothing.
func stranger(t testing.TB) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func TestNew(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"/nonexistent/libnvidia-ml.so.1", text, "libm.so.6"} {
		if _, err := New(file); !errors.Is(err, ErrNoLibrary) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestMemoryChangesWhileItIsRead(t *testing.T) {
	s, f := fake(t)
	got := read(t, s, 2)
	if got[0].UUID != first || got[0].Name != "Stand-in One" || got[0].Total != 24576 || got[0].Reserved != 300 || got[0].Used != 0 ||
		got[0].Free != 24276 || got[1].Index != 1 || got[0].Processes != nil {
		t.Errorf("at first: %+v", got)
	}
	if d := got[0]; *d.Utilisation != 0 || *d.Temperature != 41 || *d.Power != 120 || *d.ECC != 0 {
		t.Errorf("its sensors: %d %d %d %d", *d.Utilisation, *d.Temperature, *d.Power, *d.ECC)
	}
	f.hold("me", os.Getpid(), 0, 8192)
	f.hold("me-too", os.Getpid(), 1, 100)
	f.hold("nobody", 0, 0, 7)
	got = read(t, s, 2)
	if got[0].Used != 8199 || got[0].Free != 16077 || len(got[0].Processes) != 1 || got[0].Processes[0] != (gpu.Process{PID: os.Getpid(), MiB: 8192}) {
		t.Errorf("with a program: %+v", got[0])
	}
	if *got[0].Utilisation != 37 || got[1].Used != 100 {
		t.Errorf("the other: %+v", got[1])
	}
	// A library without version 2 of the call counts what is reserved as used.
	s.hasV2 = false
	if got := read(t, s, 2)[0]; got.Used != 8499 || got.Reserved != 0 || got.Free != 16077 || got.Total != 24576 {
		t.Errorf("by version 1: %+v", got)
	}
	f.remove("alloc/me")
	if got := read(t, s, 2)[0]; got.Used != 307 || got.Processes != nil {
		t.Errorf("given back: %+v", got)
	}
}

// What a killed program held is given back, after a while.
func TestAKilledProgramHoldsNothing(t *testing.T) {
	s, f := fake(t)
	cmd := stranger(t)
	f.write("lag", "200")
	f.hold("killed", cmd.Process.Pid, 0, 1000)
	if got := read(t, s, 2)[0]; got.Used != 1000 {
		t.Fatalf("it holds %d", got.Used)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := read(t, s, 2)[0]; got.Used != 1000 || got.Processes[0].PID != cmd.Process.Pid {
		t.Errorf("the driver noticed at once: %+v", got)
	}
	eventually(t, "its memory is free", func() bool { return read(t, s, 2)[0].Used == 0 })
}

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(10 * time.Millisecond) { // no event: the driver is asked
		if time.Now().After(deadline) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

func TestALostGPUAndALostDriverAreStates(t *testing.T) {
	s, f := fake(t)
	read(t, s, 2)
	f.write("lost-0", "")
	got := read(t, s, 2)
	if got[0].Problem != gpu.ProblemLost || got[0].UUID != first || got[0].Total != 0 || got[1].Problem != "" || got[1].Total != 16384 {
		t.Errorf("lost: %+v", got)
	}
	f.remove("lost-0")
	if got := read(t, s, 2); got[0].Problem != "" {
		t.Errorf("back: %+v", got)
	}
	f.write("gone", "")
	for range 3 {
		if got, err := s.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "Driver Not Loaded") {
			t.Errorf("without a driver: %+v, %v", got, err)
		}
	}
	f.remove("gone")
	read(t, s, 2)

	// One that is made while the driver is away finds it later.
	f.write("gone", "")
	late, err := New(os.Getenv("DURWARD_FAKE_NVML"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := late.Read(t.Context()); err == nil {
		t.Error("it reads without a driver")
	}
	f.remove("gone")
	read(t, late, 2)
}

func TestXID(t *testing.T) {
	s, f := fake(t)
	f.write("xid", "0 13\n")
	var mu sync.Mutex
	var told []string
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		s.Watch(ctx, func(uuid string, xid uint32) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, uuid+" "+strconv.FormatUint(uint64(xid), 10))
		})
	})
	// lost is where the error of the GPU that is lost by then is, -1 before it is heard.
	lost := func() int { return slices.Index(told, first+" 48") }
	heard := func(there func() bool) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return there()
		}
	}
	// What is written before the watch stands is old: try until it does. Several of these may be heard.
	text := "0 13\n"
	some := heard(func() bool { return len(told) > 0 })
	eventually(t, "the first error is heard", func() bool {
		text += "1 79\n"
		f.write("xid", text)
		time.Sleep(50 * time.Millisecond) // no event: the driver is asked
		return some()
	})
	f.write("lost-1", "")
	f.write("xid", text+"0 48\n1 79\n")
	eventually(t, "those of a lost GPU and of the other are heard", heard(func() bool { return lost() >= 0 && len(told) > lost()+1 }))
	read(t, s, 2)
	cancel()
	done.Wait()
	others := slices.Delete(slices.Clone(told), lost(), lost()+1)
	if len(told) != lost()+2 || slices.ContainsFunc(others, func(s string) bool { return s != second+" 79" }) {
		t.Errorf("told %q", told)
	}
}

// The Monitor over the real binding: whose memory it is, a driver that hangs, and errors.
func TestMonitor(t *testing.T) {
	s, f := fake(t)
	ours, theirs := stranger(t), stranger(t)
	m := gpu.New(gpu.Config{
		Source: s, Logger: platformtest.Logger(),
		Catalog: func() *catalog.Catalog {
			return &catalog.Catalog{GPUs: []catalog.GPU{{Index: 5, UUID: second}}}
		},
	})
	m.Claimed(func() []gpu.Claim {
		return []gpu.Claim{{Service: "ours", PID: ours.Process.Pid, MiB: 900, GPUs: []uint32{5}}}
	})
	f.hold("ours", ours.Process.Pid, 1, 800)
	f.hold("theirs", theirs.Process.Pid, 1, 300)
	h := m.Read(t.Context())
	d, ok := h.Find(5)
	if !ok || h.Source != gpu.SourceNVML || d.UUID != second || d.Used != 1100 || d.Foreign != 300 || d.ServiceMiB("ours") != 800 ||
		d.Outstanding() != 100 || len(d.Processes) != 2 {
		t.Errorf("got %+v of %+v", d, h)
	}
	for _, p := range d.Processes {
		if p.Name != "sleep" || p.User == "" || (p.Service == "ours") != (p.PID == ours.Process.Pid) {
			t.Errorf("program %+v", p)
		}
	}
	f.write("hang", "")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if h := m.Read(ctx); h.Problem != gpu.ProblemDriver || h.GPUs[0].Problem != gpu.ProblemDriver {
		t.Errorf("a driver that hangs: %+v", h)
	}
	f.remove("hang")
	if h := m.Read(t.Context()); h.Problem != "" || h.GPUs[0].Used != 1100 {
		t.Errorf("it is back: %+v", h)
	}
}

func BenchmarkReadStandIn(b *testing.B) {
	s, _ := fake(b)
	bench(b, s)
}

// BenchmarkReadMonitor is a whole reading, with whose the programs are: 8 on each GPU.
func BenchmarkReadMonitor(b *testing.B) {
	s, f := fake(b)
	var text strings.Builder
	for range 8 {
		pid := strconv.Itoa(stranger(b).Process.Pid)
		text.WriteString(pid + " 0 100\n" + pid + " 1 100\n")
	}
	f.write("alloc/all", text.String())
	m := gpu.New(gpu.Config{
		Source: s, Logger: platformtest.Logger(), Catalog: func() *catalog.Catalog { return &catalog.Catalog{} },
	})
	m.Claimed(func() []gpu.Claim {
		return []gpu.Claim{{Service: "ours", CGroup: "/nowhere", MiB: 900, GPUs: []uint32{0}}}
	})
	for b.Loop() {
		if h := m.Read(b.Context()); h.Problem != "" || len(h.GPUs[1].Processes) != 8 {
			b.Fatalf("%+v", h)
		}
	}
}

func bench(b *testing.B, s gpu.Source) {
	for b.Loop() {
		if _, err := s.Read(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
