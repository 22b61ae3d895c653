package mcpserver

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// No call is held for longer than clients wait, whatever it waits for.
func TestBounds(t *testing.T) {
	began := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for hold, want := range map[time.Duration][3]time.Duration{
		time.Second:      {time.Second, 11 * time.Second, time.Second},
		40 * time.Second: {40 * time.Second, 45 * time.Second, 2 * time.Second},
		LongestHold:      {45 * time.Second, 45 * time.Second, 2 * time.Second},
	} {
		s := &Server{conf: Config{Hold: hold}}
		held, asTask := s.held(began), s.heldAsTask(began)
		got := [3]time.Duration{held.decided.Sub(began), held.done.Sub(began), asTask.done.Sub(began)}
		if diff := cmp.Diff(want, got); diff != "" || asTask.decided != asTask.done {
			t.Errorf("with a hold of %v (-want +got):\n%s", hold, diff)
		}
	}
}
