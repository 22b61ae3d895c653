package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/platform/platformtest"
)

// What audit must never link, with the reason. This test is in the command's own package, where the test cache sees every
// change of a dependency.
var forbidden = map[string]string{
	"github.com/moby":                                  "audit never touches the host",
	"github.com/docker":                                "audit never touches the host",
	"github.com/coreos/go-systemd":                     "audit never touches the host",
	"github.com/godbus/dbus":                           "audit never touches the host",
	"github.com/NVIDIA/go-nvml":                        "audit never touches the host",
	"github.com/modelcontextprotocol":                  "agents' protocols end at the gateway",
	"github.com/spf13/cobra":                           "no command line beyond flags",
	"charm.land":                                       "people see the log through their own program",
	"github.com/charmbracelet":                         "people see the log through their own program",
	"code.dny.dev/ssrf":                                "audit dials nobody",
	"durward.internal/gateway":                         "another trust zone",
	"durward.internal/services/executor":               "another trust zone",
	"durward.internal/services/vault":                  "another trust zone",
	"durward.internal/services/operator":               "another trust zone",
	"durward.internal/services/platform/recorder":      "it dials audit, and audit dials nobody",
	"durward.internal/services/platform/sink":          "audit is no sink",
	"durward.internal/services/platform/dialer":        "audit dials nobody",
	"durward.internal/services/audit/internal/relay":   "audit dials nobody; the relay has a process of its own",
	"durward.internal/services/audit/internal/forward": "audit dials nobody; the relay has a process of its own",
	"durward.internal/services/platform/grant":         "audit judges no call",
}

func TestDependencies(t *testing.T) {
	platformtest.Dependencies(t, forbidden, nil)
}

// TestDialsNobody reads this module's sources for calls that open a connection. The packages that could are linked anyway,
// with the servers that they also hold. platform/postgres alone dials, the database server that a human configured; and
// github.com/jackc/pgx, which does it, is imported in internal/store beside it.
func TestDialsNobody(t *testing.T) {
	files := 0
	err := filepath.WalkDir(filepath.Join("..", ".."), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files++
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		folder := filepath.Base(filepath.Dir(path))
		if folder == "relay" || folder == "forward" || folder == "auditrelay" {
			return nil // of another process: TestDependencies keeps the package out of this one
		}
		for _, imported := range file.Imports {
			if strings.Contains(imported.Path.Value, "jackc") && folder != "store" {
				t.Errorf("%s imports %s", path, imported.Path.Value)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if name := s.Sel.Name; strings.HasPrefix(name, "Dial") && !strings.HasPrefix(name, "Dialect") || name == "NewClient" || name == "RoundTrip" || strings.HasSuffix(name, "ServiceClient") {
					t.Errorf("%s uses %s", set.Position(s.Pos()), name)
				}
			}
			return true
		})
		return nil
	})
	must(t, err)
	if files < 5 {
		t.Fatalf("%d files read: the test looks at nothing", files)
	}
}
