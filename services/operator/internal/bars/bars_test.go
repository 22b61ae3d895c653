package bars

import (
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
)

func plain(_ Kind, s string) string { return s }

func TestOf(t *testing.T) {
	for _, c := range []struct {
		name string
		gpu  *executorv1.Gpu
		want Sizes
	}{
		{"lost", &executorv1.Gpu{Problem: "the GPU does not answer any more"}, Sizes{}},
		{"numbers that do not fit together", &executorv1.Gpu{MemoryTotalMib: 100, MemoryUsedMib: 120, MemoryForeignMib: 200, MemoryReservedMib: 10},
			Sizes{Foreign: 90, Reserved: 10}},
		{"more claimed than there is", &executorv1.Gpu{MemoryTotalMib: 100, MemoryUsedMib: 20, MemoryClaimedMib: 4000000000},
			Sizes{Services: 20, Claimed: 80}},
		{"idle", &executorv1.Gpu{MemoryTotalMib: 100}, Sizes{Free: 100}},
		{"everything", &executorv1.Gpu{
			MemoryTotalMib: 1000, MemoryUsedMib: 300, MemoryForeignMib: 100, MemoryClaimedMib: 500, MemoryReservedMib: 50, MemoryFreeMib: 650,
		}, Sizes{Services: 200, Foreign: 100, Claimed: 300, Free: 350, Reserved: 50}},
		{"a stranger alone", &executorv1.Gpu{MemoryTotalMib: 1000, MemoryUsedMib: 108, MemoryForeignMib: 100, MemoryReservedMib: 50},
			Sizes{Foreign: 100, Free: 842, Reserved: 58}},
		{"services use more than they declared", &executorv1.Gpu{MemoryTotalMib: 1000, MemoryUsedMib: 300, MemoryClaimedMib: 200},
			Sizes{Services: 300, Free: 700}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, Of(c.gpu)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestForecast(t *testing.T) {
	f := &executorv1.GpuForecast{NowMib: 300, AfterMib: 700, FreeMib: 250, ForeignMib: 100, TotalMib: 1000}
	if diff := cmp.Diff(Sizes{Services: 600, Foreign: 100, Free: 250, Reserved: 50}, Forecast(f, true)); diff != "" {
		t.Errorf("after (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(Sizes{Services: 200, Foreign: 100, Free: 700}, Forecast(f, false)); diff != "" {
		t.Errorf("now (-want +got)\n%s", diff)
	}
	if got := Forecast(&executorv1.GpuForecast{AfterMib: 2000, TotalMib: 1000}, true); got.Total() != 1000 {
		t.Errorf("a forecast beyond the GPU adds up to %d", got.Total())
	}
}

func TestDraw(t *testing.T) {
	for _, c := range []struct {
		name  string
		sizes Sizes
		width int
		want  string
	}{
		{"nothing", Sizes{}, 10, ""},
		{"no room", Sizes{Free: 1}, 0, ""},
		{"negative room", Sizes{Free: 1}, -3, ""},
		{"all kinds", Sizes{Services: 40, Foreign: 20, Claimed: 10, Free: 20, Reserved: 10}, 10, "████▓▓░··▒"},
		{"a trace is seen", Sizes{Services: 1, Free: 100000}, 10, "█·········"},
		{"too narrow for all", Sizes{Services: 1, Foreign: 1, Claimed: 1, Free: 1, Reserved: 1}, 2, "█▓"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Draw(c.sizes, c.width, plain); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// FuzzDraw: whatever a driver says, a bar has its width and every part that there is room for.
func FuzzDraw(f *testing.F) {
	f.Add(uint32(24576), uint32(6144), uint32(100), uint32(8192), uint32(300), 40)
	f.Add(uint32(1), uint32(4294967295), uint32(4294967295), uint32(4294967295), uint32(4294967295), 3)
	f.Fuzz(func(t *testing.T, total, used, foreign, claimed, reserved uint32, width int) {
		width = min(max(width, 0), 500)
		s := Of(&executorv1.Gpu{
			MemoryTotalMib: total, MemoryUsedMib: used, MemoryForeignMib: foreign, MemoryClaimedMib: claimed, MemoryReservedMib: reserved,
		})
		if s.Total() != uint64(total) {
			t.Fatalf("the parts of %d add up to %d", total, s.Total())
		}
		want := width
		if total == 0 {
			want = 0
		}
		if got := utf8.RuneCountInString(Draw(s, width, plain)); got != want {
			t.Errorf("%v in %d characters takes %d", s, width, got)
		}
		if cells := share(s, width); width >= 2*int(kinds) {
			for _, k := range Kinds() {
				if s[k] > 0 && cells[k] == 0 {
					t.Errorf("%s of %v is not seen in %d characters", k.Word(), s, width)
				}
			}
		}
	})
}

func TestSize(t *testing.T) {
	for mib, want := range map[uint32]string{0: "0 MiB", 1023: "1023 MiB", 1024: "1.0 GiB", 24064: "23.5 GiB"} {
		if got := Size(mib); got != want {
			t.Errorf("Size(%d) = %q, want %q", mib, got, want)
		}
	}
}
