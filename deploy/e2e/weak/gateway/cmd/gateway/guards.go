package main

import (
	"flag"
	"fmt"

	"durward.internal/gateway/internal/httpfront"
)

// guardFlags adds -weaken, for the negative controls of deploy/e2e.
func guardFlags(flags *flag.FlagSet) {
	flags.Func("weaken", fmt.Sprintf("remove guards: %v", httpfront.Guards.Names()), httpfront.Guards.Weaken)
}
