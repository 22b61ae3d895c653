package main

import (
	"flag"
	"fmt"

	"durward.internal/gateway/internal/httpfront"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/weakness"
)

// guardFlags adds -weaken, for the negative controls of deploy/e2e.
func guardFlags(flags *flag.FlagSet) {
	guards := weakness.Of().And(httpfront.Guards).Also(downstream.GuardAccepted, downstream.WeakenAccepted)
	flags.Func("weaken", fmt.Sprintf("remove guards: %v", guards.Names()), guards.Weaken)
}
