//go:build drill

package drill_test

import (
	"fmt"
	"regexp"
	"testing"

	"durward.internal/deploy/e2e/drill/history"
)

func TestDrillHistory(t *testing.T) {
	t.Parallel()
	chosen, err := regexp.Compile(*lines)
	if err != nil {
		t.Fatal(err)
	}
	history.Run(t, worlds(), full, chosen.MatchString, func(line string) { fmt.Println(line) })
}
