//go:build drill

package drill_test

import (
	"flag"
	"fmt"
	"regexp"
	"sync"
	"testing"

	"durward.internal/deploy/e2e/drill"
	"durward.internal/services/platform/platformtest/full"
)

// lines chooses attacks by name. (go test's own -run chooses tests.)
var lines = flag.String("lines", ".", "attacks whose names match this `expression`")

// installations bounds how many there are at once. Most of the time they wait, so that many share a core.
var installations = flag.Int("worlds", 8, "how many `installations` run at the same time")

// controls leaves out what shows that attacks still find holes, and nothing of the programs as they are shipped.
var controls = flag.Int("controls", 1, "the negative control of one attack in `n` is tried, but in a full drill each; full.Picks chooses which")

// worlds is shared by all tests.
var worlds = sync.OnceValue(func() drill.Worlds { return make(drill.Worlds, max(*installations, 1)) })

// chosenLines returns what lines says.
func chosenLines(t *testing.T) *regexp.Regexp {
	t.Helper()
	chosen, err := regexp.Compile(*lines)
	if err != nil {
		t.Fatal(err)
	}
	return chosen
}

func TestDrill(t *testing.T) {
	t.Parallel()
	chosen := chosenLines(t)
	drill.Run(t, worlds(), full.Set(), chosen.MatchString, full.Picks(t, max(*controls, 1)), func(line string) { fmt.Println(line) })
}
