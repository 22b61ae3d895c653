//go:build drill

package drill_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"sync"
	"testing"

	"durward.internal/deploy/e2e/drill"
)

// lines chooses attacks by name. (go test's own -run chooses tests.)
var lines = flag.String("lines", ".", "attacks whose names match this `expression`")

// installations bounds how many there are at once. Most of the time they wait, so that many share a core.
var installations = flag.Int("worlds", 8, "how many `installations` run at the same time")

// worlds is shared by all tests.
var worlds = sync.OnceValue(func() drill.Worlds { return make(drill.Worlds, max(*installations, 1)) })

// full says that attacks which repeat one thing very often do so at full size.
var full = os.Getenv("DURWARD_FULL") == "1"

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
	drill.Run(t, worlds(), full, chosen.MatchString, func(line string) { fmt.Println(line) })
}
