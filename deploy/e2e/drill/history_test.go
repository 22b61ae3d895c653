//go:build drill

package drill_test

import (
	"fmt"
	"testing"

	"durward.internal/deploy/e2e/drill/history"
)

func TestDrillHistory(t *testing.T) {
	t.Parallel()
	chosen := chosenLines(t)
	history.Run(t, worlds(), full, chosen.MatchString, func(line string) { fmt.Println(line) })
}
