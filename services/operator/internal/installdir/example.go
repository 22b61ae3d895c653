package installdir

import (
	"bytes"
	"os"
	"strconv"

	"durward.internal/services/platform/pattern"
)

// demoOffset is the first port of the example's services, from the base port.
const demoOffset = 20

var demoPort = pattern.New(`\b745([0-2])\b`)

// exampleCatalog is the example with its services' ports above the installation's.
func exampleCatalog(base int) ([]byte, error) {
	example, err := templates.ReadFile("templates/catalogue.yaml")
	return demoPort().ReplaceAllFunc(example, func(port []byte) []byte {
		return strconv.AppendInt(nil, int64(base+demoOffset)+int64(port[3]-'0'), 10)
	}), err
}

var firstPort = pattern.New(`-port, "([0-9]{1,5})"`)

// IsExampleCatalog reports whether the catalog is still the example that Init wrote.
func (h Home) IsExampleCatalog() bool {
	actual, err := os.ReadFile(h.Config("catalogue"))
	port := firstPort().FindSubmatch(actual)
	if err != nil || port == nil {
		return false
	}
	first, err := strconv.Atoi(string(port[1]))
	if err != nil {
		return false
	}
	example, err := exampleCatalog(first - demoOffset)
	return err == nil && bytes.Equal(actual, example)
}
