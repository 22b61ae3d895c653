package egress

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

func recorded(status auditv1.Status, arguments string, details map[string]string) *auditv1.Entry {
	return &auditv1.Entry{Record: &auditv1.Record{
		Status: status, Tool: "http_request",
		Body: &auditv1.Body{Principal: "cursor", Arguments: arguments, Details: details, Reason: "DENIED"},
	}}
}

// Connections are read from records that strangers had a hand in.
func TestConnectionOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		entry *auditv1.Entry
		want  connection
	}{
		"answered": {
			recorded(auditv1.Status_STATUS_OK, `{"method":"POST","url":"https://API.example:8443/a?key=secret"}`, map[string]string{
				"destination": "api.example:8443", "address": "93.184.216.34:8443", "sent": "7", "bytes": "100", "status": "201",
			}),
			connection{Method: "POST", Destination: "api.example:8443", Origin: "https://api.example:8443", Address: "93.184.216.34:8443", Sent: 7, Received: 100, Status: 201, Verdict: answered},
		},
		"refused by a rule": {
			recorded(auditv1.Status_STATUS_ERROR, `{"url":"http://10.0.0.1/"}`, map[string]string{"rule": "address", "destination": "10.0.0.1:80"}),
			connection{Method: "GET", Destination: "10.0.0.1:80", Origin: "http://10.0.0.1", Verdict: refused, Rule: "address"},
		},
		"denied, of which egress never heard": {
			recorded(auditv1.Status_STATUS_DENIED, `{"url":"https://blocked.example/"}`, nil),
			connection{Method: "GET", Destination: "blocked.example:443", Origin: "https://blocked.example", Verdict: denied, Rule: "DENIED"},
		},
		"failed":     {recorded(auditv1.Status_STATUS_TIMEOUT, `{"url":"https://slow.example/"}`, map[string]string{"sent": "many"}), connection{Method: "GET", Destination: "slow.example:443", Origin: "https://slow.example", Verdict: "failed", Rule: "DENIED"}},
		"no URL":     {recorded(auditv1.Status_STATUS_DENIED, `{"url":"\u001b[31mhttp://x"}`, nil), connection{Method: "GET", Verdict: denied, Rule: "DENIED"}},
		"not JSON":   {recorded(auditv1.Status_STATUS_DENIED, `{`, nil), connection{Verdict: denied, Rule: "DENIED"}},
		"a bad word": {recorded(auditv1.Status_STATUS_OK, `{}`, map[string]string{"address": "\x1b[2J1.2.3.4:80"}), connection{Method: "GET", Address: "1.2.3.4:80", Verdict: answered}},
	} {
		got := connectionOf(c.entry)
		c.want.Principal, c.want.Tool, c.want.Time = "cursor", "http_request", got.Time
		if strings.Contains(got.Address, "\x1b") {
			t.Errorf("%s: %q", name, got.Address)
		}
		if name == "a bad word" {
			c.want.Address = got.Address
		}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

var seen = []connection{
	{Time: time.Unix(30, 0), Principal: "cursor", Tool: "fetch_url", Method: "GET", Destination: "g1thub.com:443", Origin: "https://g1thub.com", Verdict: refused, Rule: "suspicious"},
	{Time: time.Unix(20, 0), Principal: "cursor", Tool: "fetch_url", Method: "GET", Destination: "docs.example:443", Origin: "https://docs.example", Address: "93.184.216.34:443", Received: 10, Status: 200, Verdict: answered},
	{Time: time.Unix(10, 0), Principal: "cursor", Tool: "http_request", Method: "POST", Destination: "docs.example:443", Origin: "https://docs.example", Address: "93.184.216.34:443", Sent: 5, Status: 201, Verdict: answered},
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
	read(findings(seen, "v1"), &sarif)
	run := sarif.Runs[0]
	if sarif.Version != "2.1.0" || run.Tool.Driver.Name != "durward" || len(run.Results) != 2 || len(run.Tool.Driver.Rules) != 1 || run.Tool.Driver.Rules[0].ID != "suspicious" {
		t.Fatalf("%+v", sarif)
	}
	if r := run.Results[1]; r.Level != "error" || !strings.Contains(r.Message.Text, "github.com") || r.Locations[0].PhysicalLocation.ArtifactLocation.URI != "https://g1thub.com" {
		t.Errorf("%+v", r)
	}
	read(findings(nil, "v1"), &sarif)
	if sarif.Runs[0].Results == nil {
		t.Error("no results are no list")
	}
}
