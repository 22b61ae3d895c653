//go:build drill

package drill_test

import (
	"fmt"
	"testing"

	"durward.internal/deploy/e2e/drill/history"
	"durward.internal/services/platform/platformtest/full"
)

func TestDrillHistory(t *testing.T) {
	t.Parallel()
	chosen := chosenLines(t)
	history.Run(t, worlds(), full.Set(), chosen.MatchString, func(line string) { fmt.Println(line) })
}
