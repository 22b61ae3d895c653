package main

import (
	"flag"
	"strings"

	"durward.internal/services/egress/internal/sandbox"
)

// drillFlags lets a drill switch guards off, to show that its attack works without them.
func drillFlags(flags *flag.FlagSet) {
	flags.Func("weaken", "DRILL BUILD: switch off these `guards`, separated by commas: "+strings.Join(sandbox.Guards.Names(), ", "), sandbox.Guards.Weaken)
}
