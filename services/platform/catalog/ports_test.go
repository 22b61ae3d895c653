package catalog

import (
	"os"
	"path/filepath"
	"testing"
)

// Ports of services are known also where their entries are wrong; what cannot be read is an error, and no empty list.
func TestPorts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(text string) string {
		t.Helper()
		path := filepath.Join(dir, "catalogue.yaml")
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for _, wrong := range []string{"services: {", "services: 7", "services: [{port: many}]", "services: [{port: 70000}]"} {
		if ports, err := Ports(write(wrong)); err == nil {
			t.Errorf("%s: %v", wrong, ports)
		}
	}
	if ports, err := Ports(filepath.Join(dir, "none")); err == nil {
		t.Errorf("one that is not there: %v", ports)
	}
	path := write("version: 1\nservices:\n  - {id: a, port: 8000}\n  - {id: b, port: 8001, nonsense: true}\n  - {id: c}\n")
	for _, place := range []string{path, dir} {
		if ports, err := Ports(place); err != nil || !ports[8000] || !ports[8001] || ports[8002] {
			t.Errorf("%s: %v, %v", place, ports, err)
		}
	}
}
