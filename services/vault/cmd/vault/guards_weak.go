//go:build weak

package main

import (
	"flag"
	"fmt"

	"durward.internal/services/vault/internal/operation"
)

// guardFlags adds -weaken, for the negative controls of deploy/e2e. No product carries the tag.
func guardFlags(flags *flag.FlagSet) {
	flags.Func("weaken", fmt.Sprintf("remove guards: %v", operation.Guards), operation.Weaken)
}
