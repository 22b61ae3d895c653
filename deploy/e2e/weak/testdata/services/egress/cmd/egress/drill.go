package main

import (
	"flag"
	"strings"

	"durward.internal/services/egress/internal/sandbox"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/sink"
	"durward.internal/services/platform/weakness"
)

// drillFlags lets a drill switch guards off, to show that its attack works without them.
func drillFlags(flags *flag.FlagSet) {
	guards := weakness.Of().And(sink.Guards).And(dialer.Guards).And(sandbox.Guards).Also(downstream.GuardAccepted, downstream.WeakenAccepted)
	flags.Func("weaken", "DRILL BUILD: switch off these `guards`, separated by commas: "+strings.Join(guards.Names(), ", "), guards.Weaken)
}
