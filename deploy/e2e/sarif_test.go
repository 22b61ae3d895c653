package e2e

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/owenrumney/go-sarif/v3/pkg/report/v210/sarif"
	"github.com/xeipuuv/gojsonschema"

	"durward.internal/services/platform/connections"
)

// TestSARIFFitsItsSchema holds the SARIF of `durward egress sarif` and security_report to the published schema of SARIF 2.1.0, which
// comes with the library.
func TestSARIFFitsItsSchema(t *testing.T) {
	t.Parallel()
	rows := []connections.Connection{
		{Time: time.Unix(30, 0), Principal: "cursor", Tool: "fetch_url", Destination: "g1thub.com:443", Origin: "https://g1thub.com", Verdict: connections.Refused, Rule: "suspicious"},
		{Time: time.Unix(25, 0), Principal: "cursor", Tool: "fetch_url", Destination: "[2606:4700::1111]:443", Origin: "https://[2606:4700::1111]", Verdict: connections.Answered},
		{Time: time.Unix(20, 0), Principal: "cursor", Tool: "http_request", Verdict: connections.Denied},
	}
	for name, rows := range map[string][]connections.Connection{"nothing": nil, "all kinds": rows} {
		report, err := connections.Report("sarif", rows, connections.Options{Version: "v1"})
		must(t, err)
		raw, err := json.Marshal(report)
		must(t, err)
		if err := fitsSARIF(t, raw); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// The control: what the schema does not take is told.
		for what, other := range map[string]string{
			"a level that there is none of": strings.ReplaceAll(string(raw), `"level":"warning"`, `"level":"urgent"`),
			"another version":               strings.Replace(string(raw), `"version":"2.1.0"`, `"version":"3"`, 1),
		} {
			if other != string(raw) && fitsSARIF(t, []byte(other)) == nil {
				t.Errorf("%s: %s fits", name, what)
			}
		}
	}
}

// fitsSARIF validates a report as it is: the library's own types fill in what a report leaves out.
func fitsSARIF(t *testing.T, raw []byte) error {
	t.Helper()
	result, err := gojsonschema.Validate(gojsonschema.NewStringLoader(schemaOfSARIF(t)), gojsonschema.NewBytesLoader(raw))
	if err != nil {
		return err
	}
	var problems []error
	for _, problem := range result.Errors() {
		problems = append(problems, errors.New(problem.String()))
	}
	return errors.Join(problems...)
}

// schemaOfSARIF is the schema that the library's source holds.
func schemaOfSARIF(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", reflect.TypeFor[sarif.Report]().PkgPath()).Output()
	must(t, err)
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(out)), "schema.go"), nil, parser.SkipObjectResolution)
	must(t, err)
	schema := ""
	ast.Inspect(file, func(n ast.Node) bool {
		if text, is := n.(*ast.BasicLit); is && text.Kind == token.STRING {
			schema, err = strconv.Unquote(text.Value)
		}
		return true
	})
	if err != nil || !strings.Contains(schema, "SARIF") {
		t.Fatalf("the library's source holds no schema: %v", err)
	}
	return schema
}
