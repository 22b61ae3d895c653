package main

import (
	"flag"
	"fmt"

	"durward.internal/services/audit/internal/server"
)

// guardFlags adds -weaken, for the negative controls of deploy/e2e.
func guardFlags(flags *flag.FlagSet) {
	flags.Func("weaken", fmt.Sprintf("remove guards: %v", server.Guards.Names()), server.Guards.Weaken)
}
