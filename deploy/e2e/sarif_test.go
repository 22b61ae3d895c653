package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/owenrumney/go-sarif/v3/pkg/report/v210/sarif"

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
		if err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(report)
		if err != nil {
			t.Fatal(err)
		}
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

// fitsSARIF validates what the library read of a report, once it is shown that the library read all of it.
func fitsSARIF(t *testing.T, raw []byte) error {
	t.Helper()
	report, err := sarif.FromBytes(raw)
	if err != nil {
		return err
	}
	again, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	var ours, theirs any
	if err := json.Unmarshal(raw, &ours); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(again, &theirs); err != nil {
		t.Fatal(err)
	}
	if at := missing(ours, theirs); at != "" {
		t.Errorf("the library leaves out %s of %s", at, raw)
	}
	return report.Validate()
}

// missing is where a JSON value has something that another has not; "" where it has nothing more.
func missing(value, in any) string {
	switch v := value.(type) {
	case map[string]any:
		other, _ := in.(map[string]any)
		for name, item := range v {
			if at := missing(item, other[name]); at != "" {
				return "." + name + at
			}
		}
	case []any:
		other, _ := in.([]any)
		if len(other) != len(v) {
			return "[]"
		}
		for i, item := range v {
			if at := missing(item, other[i]); at != "" {
				return "[]" + at
			}
		}
	default:
		if value != in {
			return "a value"
		}
	}
	return ""
}
