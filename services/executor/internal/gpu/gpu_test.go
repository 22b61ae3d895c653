package gpu

import (
	"testing"

	"durward.internal/services/platform/catalogue"
)

func TestStatus(t *testing.T) {
	c := &catalogue.Catalogue{GPUs: []catalogue.GPU{{Index: 0, Name: "A", MemoryMiB: 100, Simulated: true}, {Index: 2, Name: "B", MemoryMiB: 100, Simulated: true}}}
	running := []*catalogue.Service{
		{ID: "one", VRAMMiB: 10, GPUs: []uint32{0}}, {ID: "both", VRAMMiB: 5, GPUs: []uint32{0, 2}}, {ID: "none", VRAMMiB: 50},
	}
	got := Status(c, running)
	if len(got) != 2 || got[0].GetMemoryUsedMib() != 13 || got[1].GetMemoryUsedMib() != 3 || len(got[0].GetServices()) != 2 {
		t.Errorf("status is %v", got)
	}
	for _, g := range got {
		if !g.GetSimulated() || g.GetUuid() == "" {
			t.Errorf("GPU %d is not labelled as simulated", g.GetIndex())
		}
	}
	if Source(c) != SourceSimulated || Source(&catalogue.Catalogue{}) != SourceNone || Status(&catalogue.Catalogue{}, running) != nil {
		t.Error("a GPU was made up")
	}
}
