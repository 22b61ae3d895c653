package main

import (
	"flag"
	"io"
	"testing"

	"durward.internal/services/executor/internal/mode"
	"durward.internal/services/platform/desktop"
	"durward.internal/services/platform/sink"
)

// TestGuardsAreKnown: a drill build of the executor knows every guard that it lists, desktop control's and the reserve's among
// them, and refuses other names. It removes them all: run it alone.
func TestGuardsAreKnown(t *testing.T) {
	weaken := func(of, name string) error {
		flags := flag.NewFlagSet("executor", flag.ContinueOnError)
		flags.SetOutput(io.Discard)
		drillFlags(flags)
		return flags.Parse([]string{of, name})
	}
	for _, of := range []string{"-weaken", "-weaken-switch"} {
		for _, name := range []string{"", "nothing", "reserve ", "reserve,nothing", "margin,nothing"} {
			if weaken(of, name) == nil {
				t.Errorf("%s %q was taken", of, name)
			}
		}
	}
	listed := map[string]bool{}
	for _, name := range sink.Guards.Names() {
		listed[name] = true
		if err := weaken("-weaken", name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range mode.Guards.Names() {
		if err := weaken("-weaken-switch", name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range append([]string{"reserve", "ownership", "any-subject", "unattended-arguments", "dangerous-flag"}, desktop.Guards.Names()...) {
		if !listed[name] {
			t.Errorf("%s is no guard of the executor", name)
		}
	}
}
