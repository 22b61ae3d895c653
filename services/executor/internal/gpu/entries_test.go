package gpu

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/platformtest"
)

// Two entries of the catalog are never one GPU, however the driver counts, and whichever of them named it first.
func TestEntriesAreDifferentGPUs(t *testing.T) {
	third := strings.ReplaceAll(second, "2", "3")
	for name, c := range map[string]struct {
		before, gpus []catalog.GPU
		swapped      bool // the driver counts the second and the third in the other order by now
		want         []string
	}{
		"a card in a lower slot":       {nil, []catalog.GPU{{Index: 0, UUID: second}, {Index: 1}}, false, []string{"0 " + second, "1  " + ProblemTaken, "2 " + first, "3 " + third}},
		"the other way round":          {nil, []catalog.GPU{{Index: 1}, {Index: 0, UUID: second}}, false, []string{"1  " + ProblemTaken, "0 " + second, "2 " + first, "3 " + third}},
		"the other card":               {nil, []catalog.GPU{{Index: 3, UUID: second}, {Index: 0}}, false, []string{"3 " + second, "0 " + first, "2 " + third}},
		"named by its uuid afterwards": {[]catalog.GPU{{Index: 1}}, []catalog.GPU{{Index: 0, UUID: second}, {Index: 1}}, false, []string{"0 " + second, "1  " + ProblemTaken, "2 " + first, "3 " + third}},
		"by index, and counted anew":   {[]catalog.GPU{{Index: 1}}, []catalog.GPU{{Index: 1}, {Index: 2}}, true, []string{"1 " + second, "2  " + ProblemTaken, "0 " + first, "3 " + third}},
	} {
		d := &driver{devices: append(real2(), Device{Index: 2, UUID: third, Name: "NVIDIA Three", Total: 2000, Free: 2000})}
		gpus := c.before
		m := New(Config{Source: d, Catalog: func() *catalog.Catalog { return &catalog.Catalog{GPUs: gpus} }, Logger: platformtest.Logger()})
		m.Claimed(func() []Claim { return nil })
		m.proc = t.TempDir()
		m.Read(t.Context())
		gpus = c.gpus
		if c.swapped {
			d.set(func(d *driver) { d.devices[1].Index, d.devices[2].Index = 2, 1 })
		}
		var got []string
		for _, g := range m.Read(t.Context()).GPUs {
			got = append(got, strings.TrimSpace(strconv.Itoa(int(g.Index))+" "+g.UUID+" "+g.Problem))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
