package connections

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

var seen = []Connection{
	{Time: time.Unix(30, 0), Principal: "cursor", Tool: "fetch_url", Method: "GET", Destination: "g1thub.com:443", Origin: "https://g1thub.com", Verdict: Refused, Rule: "suspicious"},
	{Time: time.Unix(20, 0), Principal: "cursor", Tool: "fetch_url", Method: "GET", Destination: "docs.example:443", Origin: "https://docs.example", Address: "93.184.216.34:443", Received: 10, Status: 200, Verdict: Answered},
	{Time: time.Unix(10, 0), Principal: "cursor", Tool: "http_request", Method: "POST", Destination: "docs.example:443", Origin: "https://docs.example", Address: "93.184.216.34:443", Sent: 5, Status: 201, Verdict: Answered},
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	if got, want := policy(seen), "default-src 'none'; connect-src https://docs.example; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"; got != want {
		t.Errorf("%s", got)
	}
	if got := policy(seen[:1]); !strings.Contains(got, "connect-src 'none';") {
		t.Errorf("of nothing: %s", got)
	}
}

// The members are those that HAR 1.2 and SARIF 2.1.0 require.
func TestReports(t *testing.T) {
	t.Parallel()
	var har struct {
		Log struct {
			Version string
			Creator struct{ Name, Version string }
			Entries []struct {
				StartedDateTime string
				Time            *float64
				Cache, Timings  map[string]any
				Request         struct {
					Method, URL, HTTPVersion      string
					Cookies, Headers, QueryString []any
					HeadersSize, BodySize         *int
				}
				Response struct {
					Status           int
					StatusText       *string
					Cookies, Headers []any
					Content          struct {
						Size     *int
						MimeType *string
					}
					HeadersSize, BodySize *int
				}
			}
		}
	}
	read := func(report any, into any) {
		t.Helper()
		raw, err := json.Marshal(report)
		if err == nil {
			err = json.Unmarshal(raw, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	read(archive(seen, "v1"), &har)
	if har.Log.Version != "1.2" || har.Log.Creator.Version != "v1" || len(har.Log.Entries) != 2 {
		t.Fatalf("%+v", har)
	}
	first := har.Log.Entries[0]
	if r := first.Request; r.Method != "POST" || r.URL != "https://docs.example/" || r.Cookies == nil || r.Headers == nil || r.QueryString == nil || *r.BodySize != 5 || r.HeadersSize == nil {
		t.Errorf("%+v", r)
	}
	if r := first.Response; r.Status != 201 || r.StatusText == nil || r.Content.Size == nil || r.Content.MimeType == nil || r.Cookies == nil || first.Time == nil || first.Cache == nil || len(first.Timings) != 3 {
		t.Errorf("%+v", first)
	}
	var sarif struct {
		Version string
		Runs    []struct {
			Tool struct {
				Driver struct {
					Name  string
					Rules []struct{ ID string }
				}
			}
			Results []struct {
				RuleID, Level string
				Message       struct{ Text string }
				Locations     []struct {
					PhysicalLocation struct{ ArtifactLocation struct{ URI string } }
				}
			}
		}
	}
	read(findings(seen, Options{Version: "v1"}), &sarif)
	run := sarif.Runs[0]
	if sarif.Version != "2.1.0" || run.Tool.Driver.Name != "durward" || len(run.Results) != 2 || len(run.Tool.Driver.Rules) != 1 || run.Tool.Driver.Rules[0].ID != "suspicious" {
		t.Fatalf("%+v", sarif)
	}
	if r := run.Results[1]; r.Level != "error" || !strings.Contains(r.Message.Text, "github.com") || r.Locations[0].PhysicalLocation.ArtifactLocation.URI != "https://g1thub.com" {
		t.Errorf("%+v", r)
	}
	read(findings(nil, Options{}), &sarif)
	if sarif.Runs[0].Results == nil {
		t.Error("no results are no list")
	}
}

// What a record holds of a connection is read back as it was, and what is no number or no line is none.
func TestDetails(t *testing.T) {
	t.Parallel()
	want := Connection{Destination: "a:443", Address: "93.184.216.34:443", Redirected: "https://b", Sent: 1, Received: 2, Status: 200, Rule: "size"}
	var got Connection
	if got.SetDetails(want.Details()); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if details := (&Connection{Destination: "a:443"}).Details(); len(details) != 1 {
		t.Errorf("what is not known is told: %v", details)
	}
	if got.SetDetails(map[string]string{"bytes": "many", "rule": "a\nb"}); got != (Connection{Rule: "a b"}) {
		t.Errorf("%+v", got)
	}
}
