package main

import (
	"flag"
	"strings"

	"durward.internal/services/executor/internal/mode"
	"durward.internal/services/platform/sink"
)

// drillFlags lets a drill switch guards off, to show that its attack works without them, and kill the executor in the middle of
// a switch.
func drillFlags(flags *flag.FlagSet) {
	flags.Func("weaken", "DRILL BUILD: switch off these `guards`, separated by commas: "+strings.Join(sink.Guards, ", "), sink.Weaken)
	flags.Func("weaken-switch", "DRILL BUILD: switch off these `guards` of switches: "+strings.Join(mode.Guards, ", "), mode.Weaken)
	flags.Func("crash-at", "DRILL BUILD: end by SIGKILL at the n-th `point` around a write of the switch journal", mode.CrashAt)
}
