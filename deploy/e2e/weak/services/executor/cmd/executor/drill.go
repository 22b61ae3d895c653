package main

import (
	"flag"
	"strings"

	"durward.internal/services/executor/internal/driver/pin"
	"durward.internal/services/executor/internal/driver/process"
	"durward.internal/services/executor/internal/mode"
	"durward.internal/services/platform/sink"
)

// drillFlags lets a drill switch guards off, to show that its attack works without them, and kill the executor in the middle of
// a switch.
func drillFlags(flags *flag.FlagSet) {
	flags.Func("weaken", "DRILL BUILD: switch off these `guards`, separated by commas: "+strings.Join(append(sink.Guards, "files", "log"), ", "), func(names string) error {
		var others []string
		for name := range strings.SplitSeq(names, ",") {
			switch name {
			case "files":
				if err := pin.Weaken(name); err != nil {
					return err
				}
			case "log":
				process.WeakenLog()
			default:
				others = append(others, name)
			}
		}
		if len(others) == 0 {
			return nil
		}
		return sink.Weaken(strings.Join(others, ","))
	})
	flags.Func("weaken-switch", "DRILL BUILD: switch off these `guards` of switches: "+strings.Join(mode.Guards, ", "), mode.Weaken)
	flags.Func("weaken-files", "DRILL BUILD: switch off the guard \"files\", by which a service is held to the files that it is given", pin.Weaken)
	flags.Func("crash-at", "DRILL BUILD: end by SIGKILL at the n-th `point` around a write of the switch journal", mode.CrashAt)
}
