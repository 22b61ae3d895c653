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

// TestAssembleKeys: keys that are the same by the time they are put together keep their members, in the order in which they came.
func TestAssembleKeys(t *testing.T) {
	leaves := []string{"(hidden)", "a", "(hidden)", "b", "(hidden) (2)", "c", "x", "d", "x", "e", "(hidden)", "f"}
	const want = `{"(hidden)":"a","(hidden) (2)":"b","(hidden) (2) (2)":"c","(hidden) (3)":"f","x":"d","x (2)":"e"}`
	for range 20 {
		if got, err := assemble(`{"0":1,"2":3,"4":5,"6":7,"8":9,"10":11}`, leaves); err != nil || string(got) != want {
			t.Fatalf("%s, %v", got, err)
		}
	}
}
