//go:build drill

package drill

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"testing"
)

// lines chooses attacks by name. (go test's own -run chooses tests.)
var lines = flag.String("lines", ".", "attacks whose names match this `expression`")

// full says that attacks which repeat one thing very often do so at full size.
var full = os.Getenv("DURWARD_FULL") == "1"

func TestDrill(t *testing.T) {
	t.Parallel()
	chosen, err := regexp.Compile(*lines)
	if err != nil {
		t.Fatal(err)
	}
	Run(t, full, chosen.MatchString, func(line string) { fmt.Println(line) })
}
