package gpu

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/platformtest/testfile"
)

const (
	first  = "GPU-11111111-0000-0000-0000-000000000000"
	second = "GPU-22222222-0000-0000-0000-000000000000"
)

// driver is a Source that tests steer.
type driver struct {
	mu      sync.Mutex
	devices []Device
	err     error
	reads   int
	// hold, if set, keeps Read until it is closed.
	hold chan struct{}
	tell func(string, uint32)
	told chan struct{}
}

func (*driver) Name() string { return SourceNVML }
func (*driver) Close() error { return nil }

func (d *driver) Read(context.Context) ([]Device, error) {
	d.mu.Lock()
	hold := d.hold
	d.reads++
	d.mu.Unlock()
	if hold != nil {
		<-hold
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Device(nil), d.devices...), d.err
}

func (d *driver) Watch(ctx context.Context, tell func(string, uint32)) {
	d.tell = tell
	close(d.told)
	<-ctx.Done()
}

func (d *driver) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reads
}

func (d *driver) set(change func(*driver)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

func real2() []Device {
	return []Device{
		{Index: 0, UUID: first, Name: "NVIDIA One", Total: 1000, Reserved: 100, Used: 300, Free: 600},
		{Index: 1, UUID: second, Name: "NVIDIA Two", Total: 2000, Free: 2000},
	}
}

func monitor(t *testing.T, source Source, gpus []catalog.GPU, claims ...Claim) *Monitor {
	t.Helper()
	m := New(Config{
		Source: source, Catalog: func() *catalog.Catalog { return &catalog.Catalog{GPUs: gpus} },
		Logger: platformtest.Logger(),
	})
	m.Claimed(func() []Claim { return claims })
	m.proc = t.TempDir()
	return m
}

// program adds a process to the monitor's /proc.
func program(t *testing.T, m *Monitor, pid, parent int, cgroup string) {
	t.Helper()
	dir := filepath.Join(m.proc, strconv.Itoa(pid))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"cgroup": cgroup, "comm": "prog ) S 9 \x1b[31m\n",
		"stat": strconv.Itoa(pid) + " (prog ) S 9 \x1b[31m) S " + strconv.Itoa(parent) + " 1 1 0 -1",
	} {
		testfile.Write(t, filepath.Join(dir, name), text)
	}
}

// What is simulated is reckoned from what services claim, on several GPUs evenly and rounded up, and the driver is not asked.
func TestSimulated(t *testing.T) {
	gpus := []catalog.GPU{
		{Index: 0, Name: "A", MemoryMiB: 100, Simulated: true}, {Index: 2, Name: "B", MemoryMiB: 100, Simulated: true},
	}
	asked := &driver{devices: real2()}
	for name, source := range map[string]Source{"without a driver": nil, "with a driver": asked} {
		t.Run(name, func(t *testing.T) {
			m := monitor(t, source, gpus,
				Claim{Service: "one", MiB: 10, GPUs: []uint32{0}, PID: 7}, Claim{Service: "both", MiB: 5, GPUs: []uint32{0, 2}},
				Claim{Service: "none", MiB: 50}, Claim{Service: "greedy", MiB: 200, GPUs: []uint32{2}, On: map[uint32]uint32{2: 120, 0: 7}})
			got := m.Read(t.Context())
			want := Host{Source: SourceSimulated, GPUs: []Device{
				{
					Index: 0, UUID: "simulated-0", Name: "A", Simulated: true, Total: 100, Used: 13, Free: 87,
					Processes: []Process{{PID: 7, MiB: 10, Service: "one"}, {MiB: 3, Service: "both"}},
					Claims:    []Share{{"one", 10, 10}, {"both", 3, 3}},
				},
				{
					Index: 2, UUID: "simulated-2", Name: "B", Simulated: true, Total: 100, Used: 123,
					Processes: []Process{{MiB: 3, Service: "both"}, {MiB: 120, Service: "greedy"}},
					Claims:    []Share{{"both", 3, 3}, {"greedy", 120, 200}},
				},
			}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got := m.Last(); got.GPUs[0].Used != 13 || got.GPUs[0].ServiceMiB("both") != 3 || got.GPUs[0].Outstanding() != 0 {
				t.Errorf("the last one is %+v", got)
			}
		})
	}
	if asked.count() != 0 {
		t.Error("the driver was asked although everything is simulated")
	}
	if got := monitor(t, nil, nil).Read(t.Context()); got.Source != SourceNone || got.GPUs != nil || got.Problem != "" {
		t.Errorf("a GPU was made up: %+v", got)
	}
}

// A GPU of the catalog is the one with its UUID, else the one that the driver first counted at its index.
func TestNames(t *testing.T) {
	for name, tc := range map[string]struct {
		gpus []catalog.GPU
		want []Device
	}{
		"none is named": {nil, []Device{{Index: 0, UUID: first, Name: "NVIDIA One"}, {Index: 1, UUID: second, Name: "NVIDIA Two"}}},
		"by index": {
			[]catalog.GPU{{Index: 1, Name: "Right"}},
			[]Device{{Index: 1, UUID: second, Name: "Right"}, {Index: 0, UUID: first, Name: "NVIDIA One"}},
		},
		"by UUID": {
			[]catalog.GPU{{Index: 0, UUID: second}, {Index: 1, UUID: first}},
			[]Device{{Index: 0, UUID: second, Name: "NVIDIA Two"}, {Index: 1, UUID: first, Name: "NVIDIA One"}},
		},
		"another's index": {
			[]catalog.GPU{{Index: 0, UUID: second}},
			[]Device{{Index: 0, UUID: second, Name: "NVIDIA Two"}, {Index: 1, UUID: first, Name: "NVIDIA One"}},
		},
		"simulated beside real": {
			[]catalog.GPU{{Index: 0, Simulated: true, Name: "S"}, {Index: 1, UUID: first}},
			[]Device{
				{Index: 0, UUID: "simulated-0", Name: "S"}, {Index: 1, UUID: first, Name: "NVIDIA One"},
				{Index: 2, UUID: second, Name: "NVIDIA Two"},
			},
		},
		"absent": {
			[]catalog.GPU{{Index: 0, UUID: "GPU-3", Name: "C"}, {Index: 7}},
			[]Device{
				{Index: 0, UUID: "GPU-3", Name: "C", Problem: ProblemAbsent}, {Index: 7, Problem: ProblemAbsent},
				{Index: 1, UUID: first, Name: "NVIDIA One"}, {Index: 2, UUID: second, Name: "NVIDIA Two"},
			},
		},
		"a slice": {
			[]catalog.GPU{{Index: 0, UUID: "MIG-3", Name: "C"}},
			[]Device{
				{Index: 0, UUID: "MIG-3", Name: "C", Problem: ProblemSlice},
				{Index: 1, UUID: first, Name: "NVIDIA One"}, {Index: 2, UUID: second, Name: "NVIDIA Two"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := monitor(t, &driver{devices: real2()}, tc.gpus).Read(t.Context())
			only := cmp.FilterPath(func(p cmp.Path) bool {
				switch p.Last().String() {
				case ".Total", ".Reserved", ".Used", ".Free", ".Simulated":
					return true
				}
				return false
			}, cmp.Ignore())
			if diff := cmp.Diff(tc.want, got.GPUs, only); diff != "" || got.Source != SourceNVML {
				t.Errorf("from %s (-want +got):\n%s", got.Source, diff)
			}
		})
	}
}

// A driver that does not answer and a GPU that falls away are states. No other GPU takes the place of a lost one.
func TestLost(t *testing.T) {
	d := &driver{devices: real2()}
	gpus := []catalog.GPU{{Index: 0}, {Index: 1}, {Index: 2, Simulated: true, MemoryMiB: 10}}
	m := monitor(t, d, gpus)
	m.Read(t.Context())
	problems := func() (string, []string) {
		h := m.Read(t.Context())
		var out []string
		for _, g := range h.GPUs {
			out = append(out, g.UUID+" "+g.Problem)
		}
		return h.Problem, out
	}
	for name, tc := range map[string]struct {
		change  func(*driver)
		problem string
		want    []string
	}{
		"one says so": {
			func(d *driver) { d.devices[0] = Device{Index: 0, UUID: first, Problem: ProblemLost} },
			"", []string{first + " " + ProblemLost, second + " "},
		},
		"one is gone and the other counted anew": {
			func(d *driver) { d.devices = []Device{{Index: 0, UUID: second}} },
			"", []string{first + " " + ProblemLost, second + " "},
		},
		"the driver": {
			func(d *driver) { d.err = errors.New("gone") },
			ProblemDriver, []string{first + " " + ProblemDriver, second + " " + ProblemDriver},
		},
	} {
		d.set(tc.change)
		problem, got := problems()
		if diff := cmp.Diff(append(tc.want, "simulated-2 "), got); diff != "" || problem != tc.problem {
			t.Errorf("%s: %q (-want +got):\n%s", name, problem, diff)
		}
		d.set(func(d *driver) { d.devices, d.err = real2(), nil })
		if problem, got := problems(); problem != "" || got[0] != first+" " {
			t.Errorf("%s: it did not come back: %q %q", name, problem, got)
		}
	}
	// Without names the catalog has no GPU to show; what was measured once is not forgotten.
	m = monitor(t, d, nil)
	m.Read(t.Context())
	d.set(func(d *driver) { d.err = errors.New("gone") })
	if problem, got := problems(); problem != ProblemDriver || len(got) != 2 || got[0] != first+" "+ProblemDriver {
		t.Errorf("unnamed: %q %q", problem, got)
	}
	// A host without a driver has none that the catalog could name.
	if h := monitor(t, nil, gpus).Read(t.Context()); h.Source != SourceNone || h.Problem != ProblemDriver || h.GPUs[1].Problem != ProblemDriver {
		t.Errorf("without a driver: %+v", h)
	}
}

// A program belongs to the service whose control group it is in, or that it descends from; everybody else is foreign.
func TestAttribution(t *testing.T) {
	claims := []Claim{
		{Service: "unit", CGroup: "/system.slice/unit.service", PID: 20, MiB: 500, GPUs: []uint32{0}},
		{Service: "nested", CGroup: "/system.slice/unit.service/nested", MiB: 50, GPUs: []uint32{0}},
		{Service: "tree", PID: 30, MiB: 100, GPUs: []uint32{0}},
		{Service: "root", CGroup: "/", MiB: 1, GPUs: []uint32{0}},
	}
	for name, tc := range map[string]struct {
		pid     int
		cgroup  string
		service string
	}{
		"stranger":                {40, "0::/user.slice/user-1000.slice\n", ""},
		"a name that begins so":   {41, "0::/system.slice/unit.service-2\n", ""},
		"below another's":         {42, "0::/user.slice/system.slice/unit.service\n", ""},
		"no control group":        {43, "0::/\n", ""},
		"nothing is known":        {44, "", ""},
		"the unit's":              {45, "0::/system.slice/unit.service\n", "unit"},
		"beneath the unit":        {46, "0::/system.slice/unit.service/workers\n", "unit"},
		"the longest":             {47, "0::/system.slice/unit.service/nested/x\n", "nested"},
		"version 1":               {48, "9:name=systemd:/system.slice/unit.service\n8:pids:/\n0::/\n", "unit"},
		"the first program":       {30, "0::/user.slice\n", "tree"},
		"its child":               {31, "0::/user.slice\n", "tree"},
		"a worker of the unit's":  {21, "0::/elsewhere\n", "unit"},
		"a colon in the path":     {49, "0::/system.slice/unit.service/a:b\n", "unit"},
		"a line that is no group": {50, "nonsense\n0::/system.slice/unit.service\n", "unit"},
	} {
		t.Run(name, func(t *testing.T) {
			d := &driver{devices: real2()}
			d.devices[0].Processes = []Process{{PID: tc.pid, MiB: 300}}
			m := monitor(t, d, nil, claims...)
			program(t, m, 1, 0, "0::/init.scope\n")
			program(t, m, 20, 1, "0::/system.slice/unit.service\n")
			program(t, m, 30, 1, "0::/user.slice\n")
			parent := map[int]int{21: 20, 31: 30}[tc.pid]
			program(t, m, tc.pid, parent, tc.cgroup)
			got := m.Read(t.Context()).GPUs[0]
			if got.Processes[0].Service != tc.service || got.ServiceMiB(tc.service) != 300 {
				t.Errorf("it belongs to %q", got.Processes[0].Service)
			}
			if want := map[bool]uint32{true: 300}[tc.service == ""]; got.Foreign != want {
				t.Errorf("%d MiB are foreign", got.Foreign)
			}
			if p := got.Processes[0]; p.User == "" || strings.ContainsAny(p.Name, "\x1b\n") || !strings.HasPrefix(p.Name, "prog") {
				t.Errorf("it is called %q of %q", p.Name, p.User)
			}
		})
	}
}

// A program that was started from an open file is called by its number: its command line has its name.
func TestNameOfAnOpenFile(t *testing.T) {
	m := monitor(t, nil, nil)
	program(t, m, 7, 1, "")
	for name, text := range map[string]string{"comm": "3\n", "cmdline": "/opt/llama/llama-\x1bserver\x00-m\x00model"} {
		testfile.Write(t, filepath.Join(m.proc, "7", name), text)
	}
	if name, _ := m.describe(7); !strings.HasPrefix(name, "llama-") || strings.Contains(name, "\x1b") {
		t.Errorf("it is called %q", name)
	}
}

// What claims do not show in measurements yet is outstanding; what ended a moment ago still belongs to its service.
func TestAccounting(t *testing.T) {
	d := &driver{devices: real2()}
	d.devices[0].Processes = []Process{{PID: 20, MiB: 150}, {PID: 40, MiB: 100}, {PID: 41}}
	m := monitor(t, d, nil,
		Claim{Service: "half", CGroup: "/half", MiB: 200, GPUs: []uint32{0}}, Claim{Service: "fresh", MiB: 70, GPUs: []uint32{0, 1}})
	program(t, m, 20, 1, "0::/half\n")
	program(t, m, 40, 1, "0::/\n")
	program(t, m, 41, 1, "0::/\n")
	got := m.Read(t.Context()).GPUs[0]
	if got.Claimed() != 235 || got.ClaimedMiB("half") != 200 || got.Outstanding() != 50+35 {
		t.Errorf("claimed %d, outstanding %d", got.Claimed(), got.Outstanding())
	}
	// The driver does not say what 41 uses: it is what nobody else does.
	if got.Foreign != 150 {
		t.Errorf("%d MiB are foreign", got.Foreign)
	}
	if diff := cmp.Diff([]string{"half", "fresh"}, got.Services()); diff != "" {
		t.Error(diff)
	}
	if err := os.RemoveAll(filepath.Join(m.proc, "20")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := m.Read(t.Context()).GPUs[0]; got.ServiceMiB("half") != 150 {
			t.Errorf("a program that has just ended became a stranger: %+v", got.Processes)
		}
	}
}

// Critical errors are kept with their GPU, also where it is lost.
func TestXID(t *testing.T) {
	d := &driver{devices: real2(), told: make(chan struct{})}
	m := monitor(t, d, nil)
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { m.Run(ctx) })
	<-d.told
	d.tell(second, 79)
	d.tell(second, 48)
	d.tell(second, 45)
	stop()
	done.Wait()
	if got := m.Read(t.Context()).GPUs; got[0].LastXID != 0 || got[1].LastXID != 45 || got[0].HardwareXID != 0 || got[1].HardwareXID != 48 {
		t.Errorf("the errors are %d and %d, the hardware's %d and %d", got[0].LastXID, got[1].LastXID, got[0].HardwareXID, got[1].HardwareXID)
	}
}

// The driver is asked once for all who wait, never before they asked, and not at all while Last is fresh. One that does not
// come back is a state, and is not asked again until it does.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &driver{devices: real2(), hold: make(chan struct{})}
		m := monitor(t, d, nil)
		answers := make(chan Host, 10)
		go func() { answers <- m.Read(t.Context()) }()
		synctest.Wait()
		time.Sleep(time.Second)
		for range 5 {
			go func() { answers <- m.Read(t.Context()) }()
		}
		synctest.Wait()
		d.set(func(d *driver) { close(d.hold); d.hold = nil })
		for range 6 {
			if h := <-answers; h.Problem != "" || len(h.GPUs) != 2 {
				t.Errorf("got %+v", h)
			}
		}
		if d.count() != 2 {
			t.Errorf("the driver was asked %d times, want 2", d.count())
		}
		m.Last()
		time.Sleep(freshness)
		m.Last()
		if d.count() != 2 {
			t.Errorf("a fresh reading was not used")
		}
		time.Sleep(time.Millisecond)
		m.Last()
		if d.count() != 3 {
			t.Errorf("an old reading was used")
		}

		time.Sleep(time.Millisecond)
		hold := make(chan struct{})
		d.set(func(d *driver) { d.hold = hold })
		began := time.Now()
		if h := m.Read(t.Context()); h.Problem != ProblemDriver || time.Since(began) != patience {
			t.Errorf("a driver that hangs: %+v after %v", h, time.Since(began))
		}
		time.Sleep(time.Second)
		began = time.Now()
		for range 3 {
			if h := m.Last(); h.Problem != ProblemDriver || h.GPUs[0].Problem != ProblemDriver || time.Since(began) != 0 {
				t.Errorf("a driver that still hangs: %+v after %v", h, time.Since(began))
			}
		}
		if d.count() != 4 {
			t.Errorf("a driver that hangs was asked %d times", d.count()-3)
		}
		d.set(func(d *driver) { d.hold = nil })
		close(hold)
		time.Sleep(time.Millisecond)
		if h := m.Read(t.Context()); h.Problem != "" {
			t.Errorf("it came back, and is still %q", h.Problem)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		m.Read(gone)
		if h := m.Last(); h.Problem != "" {
			t.Error("a caller that gave up is taken for a driver that hangs")
		}
	})
}

// TestModels: what GPUs are is known from the first measurement on, also to who is asked for claims in it, and outlives a driver that
// ceases to answer.
func TestModels(t *testing.T) {
	source := &driver{devices: real2()}
	gpus := []catalog.GPU{{Index: 7, UUID: second, Name: "Upstairs"}}
	asked := 0
	m := New(Config{
		Source: source, Catalog: func() *catalog.Catalog { return &catalog.Catalog{GPUs: gpus} }, Logger: platformtest.Logger(),
	})
	m.Claimed(func() []Claim {
		asked++
		if two, ok := m.Models().Find(7); !ok || two.Total != 2000 && !two.Simulated {
			t.Errorf("in claims the GPU is %+v, %v", two, ok)
		}
		return nil
	})
	if _, ok := m.Models().Find(7); ok {
		t.Error("it is known before anybody measured")
	}
	m.Read(t.Context())
	before := m.Models()
	for index, want := range map[uint32]Model{
		0: {Name: "NVIDIA One", UUID: first, Total: 1000}, 7: {Name: "NVIDIA Two", UUID: second, Total: 2000},
	} {
		if got, ok := before.Find(index); !ok || got != want {
			t.Errorf("GPU %d is %+v, %v", index, got, ok)
		}
	}
	source.set(func(d *driver) { d.devices[1].Used = 900 })
	m.Read(t.Context())
	source.set(func(d *driver) { d.err = errors.New("gone") })
	m.Read(t.Context())
	if m.Models() != before {
		t.Errorf("nothing changed, and yet they are %+v", m.Models())
	}
	source.set(func(d *driver) { d.err, d.devices = nil, d.devices[:1] })
	m.Read(t.Context())
	if _, ok := m.Models().Find(7); !ok || asked != 4 {
		t.Errorf("a lost GPU is nothing any more; %d claims", asked)
	}
	gpus = []catalog.GPU{{Index: 7, Name: "Made up", MemoryMiB: 50, Simulated: true}}
	m.Read(t.Context())
	if got, _ := m.Models().Find(7); got != (Model{UUID: "simulated-7", Total: 50, Simulated: true}) {
		t.Errorf("simulated: %+v", got)
	}
}
