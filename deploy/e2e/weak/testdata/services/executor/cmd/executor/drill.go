package main

import (
	"flag"
	"strings"

	"durward.internal/services/executor/internal/driver/launch"
	"durward.internal/services/executor/internal/driver/pin"
	"durward.internal/services/executor/internal/driver/process"
	"durward.internal/services/executor/internal/mode"
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/platform/sink"
	"durward.internal/services/platform/weakness"
)

// drillFlags lets a drill switch guards off, to show that its attack works without them, and kill the executor in the middle of
// a switch.
func drillFlags(flags *flag.FlagSet) {
	guards := weakness.Of().And(sink.Guards).Also("files", pin.WeakenFiles).Also("log", process.WeakenLog).Also("prompt", process.WeakenPrompt).
		Also("handover", launch.WeakenHandover).Also(progress.GuardBegun, progress.WeakenBegun)
	list := func(of *weakness.Guards) string { return strings.Join(of.Names(), ", ") }
	flags.Func("weaken", "DRILL BUILD: switch off these `guards`, separated by commas: "+list(guards), guards.Weaken)
	flags.Func("weaken-switch", "DRILL BUILD: switch off these `guards` of switches: "+list(mode.Guards), mode.Guards.Weaken)
	flags.Func("crash-at", "DRILL BUILD: end by SIGKILL at the n-th `point` around a write of the switch journal", mode.CrashAt)
}
