package capacity

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
)

func TestShortIsSaidInPlainWords(t *testing.T) {
	for want, short := range map[string]*Short{
		"GPU 1 has 100 MiB free for it, and 4000 MiB are needed with a margin of 512 MiB": {GPU: 1, Need: 4000, Free: 100, Margin: 512},
		"GPU 0 has 100 MiB free for it, and 4000 MiB are needed with a margin of 512 MiB; programs that are no service of this host hold 9000 MiB": {
			Need: 4000, Free: 100, Foreign: 9000, Margin: 512},
		"GPU 2 cannot be measured: the GPU does not answer any more": {GPU: 2, Need: 4000, Problem: gpu.ProblemLost},
	} {
		if got := short.Sentence(); got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
		var f *fault.Error
		if !errors.As(short.Fault(), &f) || f.Code != callv1.Code_CODE_DOES_NOT_FIT || f.Message != "it does not fit: "+want {
			t.Errorf("the fault is %v", f)
		}
	}
}

// device is a GPU of 24,000 MiB with 500 reserved; processes say what services hold, claims what they declare.
func device(index uint32, foreign uint32, holds, claims map[string]uint32) gpu.Device {
	d := gpu.Device{Index: index, Total: 24000, Reserved: 500, Foreign: foreign, Used: foreign}
	for id, mib := range holds {
		d.Used += mib
		d.Processes = append(d.Processes, gpu.Process{PID: 7, MiB: mib, Service: id})
	}
	for id, mib := range claims {
		d.Claims = append(d.Claims, gpu.Share{Service: id, MiB: mib})
	}
	d.Free = d.Total - d.Reserved - d.Used
	return d
}

func host(devices ...gpu.Device) gpu.Host { return gpu.Host{Source: gpu.SourceNVML, GPUs: devices} }

func entry(id string, mib uint32, gpus ...uint32) *catalog.Service {
	return &catalog.Service{ID: id, VRAMMiB: mib, GPUs: gpus}
}

func TestCheck(t *testing.T) {
	full := map[string]uint32{"chat": 16000}
	starting := device(0, 0, nil, full) // it claims, and has taken nothing yet
	silent := device(0, 0, nil, full)
	silent.Used, silent.Free = 16000, 7500
	silent.Processes = []gpu.Process{{PID: 7, Service: "chat"}}
	excess := device(0, 0, nil, map[string]uint32{"chat": 8000, "code": 6000}) // chat has more than it claims, and code nothing yet
	excess.Used, excess.Free, excess.Processes = 10000, 13500, silent.Processes
	strange := silent // a stranger's share is not told either, and may be all of it
	strange.Processes = []gpu.Process{{PID: 7, Service: "chat"}, {PID: 8}}
	lost := gpu.Device{Index: 0, Problem: gpu.ProblemLost}
	over := gpu.Device{Index: 0, Simulated: true, Total: 8000, Used: 12000, Processes: []gpu.Process{{MiB: 12000, Service: "chat"}},
		Claims: []gpu.Share{{Service: "chat", MiB: 12000}}}
	for name, c := range map[string]struct {
		h        gpu.Host
		need     map[uint32]uint32
		released map[uint32]uint32
		want     *Short
	}{
		"no need at all":                {host(), nil, nil, nil},
		"a need of nothing":             {host(), map[uint32]uint32{3: 0}, nil, nil},
		"a GPU that is not there":       {host(), map[uint32]uint32{3: 1}, nil, &Short{GPU: 3, Need: 1, Problem: gpu.ProblemAbsent}},
		"a GPU that is lost":            {host(lost), map[uint32]uint32{0: 1}, map[uint32]uint32{0: 24000}, &Short{Need: 1, Problem: gpu.ProblemLost}},
		"to the last MiB":               {host(device(0, 0, nil, nil)), map[uint32]uint32{0: 23000}, nil, nil},
		"one more":                      {host(device(0, 0, nil, nil)), map[uint32]uint32{0: 23001}, nil, &Short{Need: 23001, Free: 23500, Margin: 500}},
		"reserved memory":               {host(device(0, 0, nil, nil)), map[uint32]uint32{0: 23400}, nil, &Short{Need: 23400, Free: 23500, Margin: 500}},
		"a stranger":                    {host(device(0, 9000, nil, nil)), map[uint32]uint32{0: 16000}, nil, &Short{Need: 16000, Free: 14500, Foreign: 9000, Margin: 500}},
		"a service that starts":         {host(starting), map[uint32]uint32{0: 10000}, nil, &Short{Need: 10000, Free: 7500, Margin: 500}},
		"a service that runs":           {host(device(0, 0, full, full)), map[uint32]uint32{0: 7001}, nil, &Short{Need: 7001, Free: 7500, Margin: 500}},
		"and beside it":                 {host(device(0, 0, full, full)), map[uint32]uint32{0: 7000}, nil, nil},
		"a driver that is silent":       {host(silent), map[uint32]uint32{0: 7000}, nil, nil},
		"a silent program's excess":     {host(excess), map[uint32]uint32{0: 7001}, nil, &Short{Need: 7001, Free: 7500, Margin: 500}},
		"and what fits beside it":       {host(excess), map[uint32]uint32{0: 7000}, nil, nil},
		"a stranger that is silent too": {host(strange), map[uint32]uint32{0: 1}, nil, &Short{Need: 1, Free: 0, Margin: 500}},
		"once it is released":           {host(device(0, 0, full, full)), map[uint32]uint32{0: 23000}, map[uint32]uint32{0: 16000}, nil},
		"more promised than is":         {host(over), map[uint32]uint32{0: 1}, nil, &Short{Need: 1, Free: 0, Margin: 500}},
		"and half of it given back":     {host(over), map[uint32]uint32{0: 1000}, map[uint32]uint32{0: 5000}, &Short{Need: 1000, Free: 1000, Margin: 500}},
		"the second GPU": {host(device(0, 0, nil, nil), device(1, 23000, nil, nil)), map[uint32]uint32{0: 1000, 1: 1000}, nil,
			&Short{GPU: 1, Need: 1000, Free: 500, Foreign: 23000, Margin: 500}},
	} {
		if diff := cmp.Diff(c.want, Check(c.h, c.need, c.released, 500)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// D1: the sum of what is declared was compared with what the GPU has in all.
func TestGpumodD1ForeignSleepingAndReservedMemoryCount(t *testing.T) {
	sleeper := entry("chat", 16000, 0)
	sleeper.SleepMiB = 2000
	residue := map[string]uint32{"chat": 2600} // more than it declares for its sleep
	h := host(device(0, 6000, residue, map[string]uint32{"chat": 2000}))
	// 24,000 in all would do for 15,000; 500 reserved, 6,000 of strangers and 2,600 of a sleeper leave 14,900.
	err := Admit(Declared{}, h, entry("code", 14401, 0), 500)
	if f := fault.From(err); f == nil || f.Code != callv1.Code_CODE_DOES_NOT_FIT ||
		f.Message != "code does not fit: GPU 0 has 14900 MiB free for it, and 14401 MiB are needed with a margin of 500 MiB; "+
			"programs that are no service of this host hold 6000 MiB" {
		t.Errorf("admitted: %v", err)
	}
	if err := Admit(Declared{}, h, entry("code", 14400, 0), 500); err != nil {
		t.Errorf("what fits is refused: %v", err)
	}
	// What the sleeper keeps is no reason against waking it.
	if err := Admit(Declared{}, h, sleeper, 500); err != nil {
		t.Errorf("the sleeper is refused: %v", err)
	}
}

// D2: only the first GPU was read.
func TestGpumodD2EveryGPUCounts(t *testing.T) {
	h := host(device(0, 0, nil, nil), device(1, 20000, nil, nil))
	both := entry("big", 40000, 0, 1)
	if diff := cmp.Diff(map[uint32]uint32{0: 20000, 1: 20000}, Need(Declared{}, both)); diff != "" {
		t.Errorf("need (-want +got):\n%s", diff)
	}
	if short := Fits(Declared{}, h, []*catalog.Service{both}, nil, 500); short == nil || short.GPU != 1 || short.Free != 3500 {
		t.Errorf("it is short of %+v", short)
	}
	if err := Admit(Declared{}, h, entry("one", 20000, 0), 500); err != nil {
		t.Errorf("a full GPU that it does not use: %v", err)
	}
}

// D3: what was waited for was the largest of those to come, not all of them.
func TestGpumodD3TheSumIsNeeded(t *testing.T) {
	h := host(device(0, 4000, nil, nil))
	if short := Fits(Declared{}, h, []*catalog.Service{entry("a", 10000, 0), entry("b", 10000, 0)}, nil, 500); short == nil || short.Need != 20000 {
		t.Errorf("two of 10000 fit into 19500: %+v", short)
	}
	if short := Fits(Declared{}, h, []*catalog.Service{entry("a", 10000, 0)}, nil, 500); short != nil {
		t.Errorf("one of them does not: %+v", short)
	}
}

func TestReleased(t *testing.T) {
	sleeper := entry("chat", 16000, 0)
	sleeper.SleepMiB = 1000
	h := host(device(0, 0, map[string]uint32{"chat": 17000, "old": 3000}, map[string]uint32{"chat": 16000, "old": 4000}), device(1, 0, nil, nil))
	got := Released(Declared{}, h, []*catalog.Service{entry("old", 4000, 0), entry("gone", 100, 1)}, []*catalog.Service{sleeper})
	// old was promised 4000 and took 3000; chat took more than it declares.
	if diff := cmp.Diff(map[uint32]uint32{0: 4000 + 16000}, got); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
}

func TestForecasts(t *testing.T) {
	sleeper := entry("chat", 16000, 0)
	sleeper.SleepMiB = 1000
	h := host(device(0, 500, map[string]uint32{"chat": 17000, "old": 3000}, nil), gpu.Device{Index: 1, Simulated: true, Total: 8000, Free: 8000})
	want := []Forecast{
		{GPU: 0, Total: 24000, Now: 20500, After: 500 + 1000 + 20000, Free: 2000, Foreign: 500, Measured: true},
		{GPU: 1, Total: 8000, After: 4000, Free: 4000},
	}
	got := Forecasts(Declared{}, h, []*catalog.Service{entry("old", 4000, 0)}, []*catalog.Service{sleeper},
		[]*catalog.Service{entry("code", 20000, 0), entry("embed", 4000, 1)})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("forecast (-want +got):\n%s", diff)
	}
}

// sized are services by what they take of GPU 0 awake, while they load, and asleep.
type sized map[string][3]uint32

func (z sized) of(s *catalog.Service, i int) map[uint32]uint32 {
	if mib, ok := z[s.ID]; ok {
		return map[uint32]uint32{0: mib[i]}
	}
	return nil
}

func (z sized) Awake(s *catalog.Service) map[uint32]uint32   { return z.of(s, 0) }
func (z sized) Loading(s *catalog.Service) map[uint32]uint32 { return z.of(s, 1) }
func (z sized) Asleep(s *catalog.Service) map[uint32]uint32  { return z.of(s, 2) }

// TestSizes: what starts needs what it takes while it loads, what runs then is what it takes awake, and what is declared counts for
// nothing where something better is known.
func TestSizes(t *testing.T) {
	chat, code, blank := entry("chat", 1, 0), entry("code", 90000, 0), entry("blank", 90000, 0)
	z := sized{"chat": {10000, 14000, 800}, "code": {9000, 3000, 500}}
	if diff := cmp.Diff(map[uint32]uint32{0: 23000}, Need(z, chat, code, blank)); diff != "" {
		t.Errorf("need (-want +got):\n%s", diff)
	}
	empty := host(device(0, 0, nil, nil))
	for margin, fits := range map[uint32]bool{9500: true, 9501: false} {
		if err := Admit(z, empty, chat, margin); (err == nil) != fits {
			t.Errorf("with a margin of %d: %v", margin, err)
		}
	}
	running := host(device(0, 0, map[string]uint32{"chat": 10000}, map[string]uint32{"chat": 10000}))
	if diff := cmp.Diff(map[uint32]uint32{0: 9200}, Released(z, running, nil, []*catalog.Service{chat})); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
	got := Forecasts(z, running, nil, []*catalog.Service{chat}, []*catalog.Service{code})
	if len(got) != 1 || got[0].After != 9800 || got[0].Free != 23500-9800 {
		t.Errorf("forecast %+v", got)
	}
	huge := sized{"chat": {1<<32 - 1, 0, 0}, "code": {1<<32 - 1, 0, 0}}
	if short := Fits(huge, empty, []*catalog.Service{chat, code}, nil, 0); short == nil || short.Need != 1<<32-1 {
		t.Errorf("sizes that wrap: %+v", short)
	}
}
