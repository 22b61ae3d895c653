//go:build drill

package drill_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"durward.internal/deploy/e2e/drill"
	"durward.internal/services/platform/platformtest/full"
)

// TestDrillHost carries each attack out once, 3 times in a full drill, or SOAK times where that is set.
func TestDrillHost(t *testing.T) {
	t.Parallel()
	chosen := chosenLines(t)
	rounds := 1
	if full.Set() {
		rounds = 3
	}
	if soak := os.Getenv("SOAK"); soak != "" {
		var err error
		if rounds, err = strconv.Atoi(soak); err != nil || rounds < 1 {
			t.Fatalf("SOAK=%s is not a number of rounds", soak)
		}
	}
	drill.RunHost(t, worlds(), rounds, chosen.MatchString, func(line string) { fmt.Println(line) })
}
