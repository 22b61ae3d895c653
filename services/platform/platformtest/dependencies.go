package platformtest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// everywhere is what no program of ours links, with the reason.
var everywhere = map[string]string{
	"C":              "no cgo",
	"runtime/cgo":    "no cgo",
	"plugin":         "no code arrives at run time",
	"net/http/pprof": "no debugging surface",
	"expvar":         "no debugging surface",
	"net/rpc":        "one kind of RPC",
	"testing":        "tests stay out of the product",
	"durward.internal/services/platform/platformtest": "tests stay out of the product",
}

// excused are packages that one library may link though they are forbidden, with the reason why that is harmless.
var excused = map[string]string{
	// The Prometheus client has a collector for expvar. What that package registers is on http.DefaultServeMux, which no
	// server of ours serves.
	"expvar": "github.com/prometheus/client_golang/prometheus",
	// The interfaces that a value of SQL has, and no database: OpenTelemetry's resources are numbered by that library.
	"database/sql/driver": "github.com/google/uuid",
}

// reason says why a package is forbidden by the lists, by its own name or that of one above it; "": it is not.
func reason(pkg string, lists ...map[string]string) string {
	for _, list := range lists {
		for prefix, why := range list {
			if pkg == prefix || strings.HasPrefix(pkg, prefix+"/") {
				return why
			}
		}
	}
	return ""
}

// Dependencies fails the test if the command in whose folder it runs links a forbidden package, or a package below one;
// the map's values say why. mayExec names the packages that may import os/exec; nil asks nothing of that.
//
// It must be called from a test in the command's own package main: elsewhere the test cache does not see a change of what
// the command links.
func Dependencies(t *testing.T, forbidden map[string]string, mayExec []string) {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports", ".")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := 0
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; packages++ {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if _, excuse := excused[p.ImportPath]; !excuse {
			if why := reason(p.ImportPath, everywhere, forbidden); why != "" {
				t.Errorf("%s is linked: %s", p.ImportPath, why)
			}
		}
		for _, imported := range p.Imports {
			if by, excuse := excused[imported]; excuse && p.ImportPath != by {
				if why := reason(imported, everywhere, forbidden); why != "" {
					t.Errorf("%s imports %s: %s", p.ImportPath, imported, why)
				}
			}
		}
		if mayExec != nil && slices.Contains(p.Imports, "os/exec") && !slices.Contains(mayExec, p.ImportPath) {
			t.Errorf("%s imports os/exec: this program starts no other", p.ImportPath)
		}
	}
	if packages < 100 {
		t.Fatalf("go list named %d packages: the test looks at nothing", packages)
	}
}
