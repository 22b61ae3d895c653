//go:build drill

package drill

import (
	"flag"
	"fmt"
	"regexp"
	"testing"
)

// lines chooses attacks by name. (go test's own -run chooses tests.)
var lines = flag.String("lines", ".", "attacks whose names match this `expression`")

func TestDrill(t *testing.T) {
	chosen, err := regexp.Compile(*lines)
	if err != nil {
		t.Fatal(err)
	}
	Run(t, chosen.MatchString, func(line string) { fmt.Println(line) })
}
