package envelope

import (
	"testing"

	"durward.internal/services/platform/platformtest"
)

// TestAssemble: what egress took apart is put together as it was, and a place that is not there is refused.
func TestAssemble(t *testing.T) {
	for _, d := range platformtest.ServerData {
		if got, err := assemble(d.Shape, d.Leaves); err != nil || string(got) != d.JSON {
			t.Errorf("%s: %s, %v", d.JSON, got, err)
		}
	}
	for _, shape := range []string{`0`, `{"7":1}`, `{"0":7}`, `["-1"]`, `{"a":0}`, `[1.5]`, ``} {
		if got, err := assemble(shape, nil); err == nil {
			t.Errorf("%s of no leaves: %s", shape, got)
		}
	}
}
