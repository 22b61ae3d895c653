package egress

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/peers"
	"durward.internal/services/platform/connections"
)

func recorded(status auditv1.Status, arguments string, details map[string]string) *auditv1.Entry {
	return &auditv1.Entry{Record: &auditv1.Record{
		Status: status, Tool: "http_request",
		Body: &auditv1.Body{Principal: "cursor", Arguments: arguments, Details: details, Reason: "DENIED"},
	}}
}

func ofServer(status auditv1.Status, details map[string]string) *auditv1.Entry {
	e := recorded(status, "", details)
	e.Record.Tool = connections.ServersTool
	return e
}

// paged is an audit with so many records of each tool, which come ten at a time.
type paged struct {
	auditv1.HistoryServiceClient
	records uint64
}

func (p paged) SearchRecords(_ context.Context, q *auditv1.SearchRecordsRequest, _ ...grpc.CallOption) (*auditv1.SearchRecordsResponse, error) {
	out := &auditv1.SearchRecordsResponse{}
	for i := cmp.Or(q.GetBefore(), p.records+1) - 1; i > 0; i-- {
		if len(out.Entries) == min(10, int(q.GetLimit())) {
			out.NextBefore = i + 1
			break
		}
		out.Entries = append(out.Entries, &auditv1.Entry{Index: i, Record: &auditv1.Record{Tool: q.GetTool(), Body: &auditv1.Body{}}})
	}
	return out, nil
}

// TestConnected: all records come, servers' too, as far as a limit, and what the limit cuts off is said.
func TestConnected(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit uint32
		cut   bool
	}{{1, true}, {35, true}, {1000, false}} {
		run, _, errs := clitest.Printing(false)
		rows, err := (&app{App: run}).connected(t.Context(), &cli.Session{Peers: &peers.Peers{Audit: peers.Audit{HistoryServiceClient: paged{records: 25}}}}, logFilter{limit: c.limit})
		if err != nil {
			t.Fatal(err)
		}
		ofServers := 0
		for _, row := range rows {
			if strings.HasPrefix(row.Tool, "mcp:") {
				ofServers++
			}
		}
		if c.cut && len(rows) != int(c.limit) || !c.cut && (ofServers != 25 || len(rows) < 75 || len(rows)%25 != 0) {
			t.Errorf("of at most %d there are %d, %d of servers", c.limit, len(rows), ofServers)
		}
		if said := strings.Contains(errs.String(), "There may be more"); said != c.cut {
			t.Errorf("at most %d: %q", c.limit, errs)
		}
	}
	run, _, _ := clitest.Printing(false)
	var p *cli.Problem
	if _, err := (&app{App: run}).connected(t.Context(), nil, logFilter{}); !errors.As(err, &p) || p.Code != cli.ExitUsage {
		t.Errorf("a limit of 0: %v", err)
	}
}

// killed is an audit with a server's connections that began before and after egress started last, and did not end.
type killed struct{ auditv1.HistoryServiceClient }

func (killed) SearchRecords(_ context.Context, q *auditv1.SearchRecordsRequest, _ ...grpc.CallOption) (*auditv1.SearchRecordsResponse, error) {
	out := &auditv1.SearchRecordsResponse{}
	switch {
	case q.GetTool() == connections.ServersTool:
		for i, to := range []string{"a.example:443", "b.example:443"} {
			e := ofServer(auditv1.Status_STATUS_PENDING, map[string]string{"server": "web", "destination": to})
			e.Index = uint64(10 + 2*i) // #nosec G115 -- two
			out.Entries = append(out.Entries, e)
		}
	case q.GetWriter() == "egress":
		out.Entries = []*auditv1.Entry{{Index: 11}}
	}
	return out, nil
}

// TestEgressEndedBefore: what was open when egress was killed is over, and what was opened since it started again goes on.
func TestEgressEndedBefore(t *testing.T) {
	t.Parallel()
	run, _, _ := clitest.Printing(false)
	rows, err := (&app{App: run}).connected(t.Context(), &cli.Session{Peers: &peers.Peers{Audit: peers.Audit{HistoryServiceClient: killed{}}}}, logFilter{limit: 9})
	if err != nil || len(rows) != 2 || rows[0].Verdict != connections.Open || rows[1].Verdict != connections.Ended || rows[1].Rule == "" {
		t.Errorf("%+v, %v", rows, err)
	}
}

// TestOpen: that a server's connection began is told as long as it is not recorded that one there ended since.
func TestOpen(t *testing.T) {
	t.Parallel()
	row := func(tool, to, verdict string) connections.Connection {
		return connections.Connection{Principal: "cursor", Tool: tool, Destination: to, Verdict: verdict}
	}
	again, other, others := row("mcp:web", "a.example:443", connections.Open), row("mcp:web", "b.example:443", connections.Open), row("mcp:two", "a.example:443", connections.Open)
	end, refused := row("mcp:web", "a.example:443", connections.Answered), row("mcp:web", "b.example:443", connections.Denied)
	got := open([]connections.Connection{again, refused, end, other, others, again})
	if want := []connections.Connection{again, refused, end, other, others}; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// by says where the decision came from that a record tells of.
func by(source string, e *auditv1.Entry) *auditv1.Entry {
	e.GetRecord().GetBody().DecisionSource = source
	return e
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
		"refused before a rule was asked": {
			by("spiffe://durward.local/gateway/main", recorded(auditv1.Status_STATUS_DENIED, `{"url":"https://a.example/"}`, nil)),
			connections.Connection{Method: "GET", Destination: "a.example:443", Origin: "https://a.example", Verdict: connections.Denied, Rule: "DENIED"},
		},
		"denied by a rule of the vault's": {
			by("no-pages", recorded(auditv1.Status_STATUS_DENIED, `{"url":"https://a.example/"}`, nil)),
			connections.Connection{Method: "GET", Destination: "a.example:443", Origin: "https://a.example", Verdict: connections.Denied, Rule: "no-pages"},
		},
		"failed":     {recorded(auditv1.Status_STATUS_TIMEOUT, `{"url":"https://slow.example/"}`, map[string]string{"sent": "many"}), connections.Connection{Method: "GET", Destination: "slow.example:443", Origin: "https://slow.example", Verdict: "failed", Rule: "DENIED"}},
		"no URL":     {recorded(auditv1.Status_STATUS_DENIED, `{"url":"\u001b[31mhttp://x"}`, nil), connections.Connection{Method: "GET", Verdict: connections.Denied, Rule: "DENIED"}},
		"not JSON":   {recorded(auditv1.Status_STATUS_DENIED, `{`, nil), connections.Connection{Verdict: connections.Denied, Rule: "DENIED"}},
		"a bad word": {recorded(auditv1.Status_STATUS_OK, `{}`, map[string]string{"address": "\x1b[2J1.2.3.4:80"}), connections.Connection{Method: "GET", Address: "1.2.3.4:80", Verdict: connections.Answered}},
		"of a server": {
			ofServer(auditv1.Status_STATUS_OK, map[string]string{"server": "web", "destination": "a.example:443", "address": "93.184.216.34:443", "sent": "517", "bytes": "4000"}),
			connections.Connection{
				Tool: "mcp:web", Method: "CONNECT", Destination: "a.example:443", Origin: "https://a.example", Address: "93.184.216.34:443",
				Sent: 517, Received: 4000, Verdict: connections.Answered,
			},
		},
		"a server's that goes on": {ofServer(auditv1.Status_STATUS_PENDING, map[string]string{"server": "web", "destination": "a.example:443", "address": "93.184.216.34:443"}), connections.Connection{
			Tool: "mcp:web", Method: "CONNECT", Destination: "a.example:443", Origin: "https://a.example", Address: "93.184.216.34:443", Verdict: connections.Open,
		}},
		"refused to a server": {ofServer(auditv1.Status_STATUS_DENIED, map[string]string{"server": "web", "destination": "a.example:80", "rule": "destination"}), connections.Connection{
			Tool: "mcp:web", Method: "CONNECT", Destination: "a.example:80", Origin: "http://a.example", Verdict: connections.Denied, Rule: "destination",
		}},
	} {
		got := connectionOf(c.entry)
		c.want.Principal, c.want.Tool, c.want.Time = "cursor", cmp.Or(c.want.Tool, "http_request"), got.Time
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

// TestReportsHaveNoIDs: with --quiet a report is refused, where the name of the program that made it stood in its place.
func TestReportsHaveNoIDs(t *testing.T) {
	t.Parallel()
	run, _, _ := clitest.Printing(false)
	for _, cmd := range (&app{App: run}).reportCommands() {
		for format, want := range map[output.Format]bool{output.Quiet: true, output.Text: false, output.JSON: false} {
			run.Format = format
			if err := cmd.PreRunE(cmd, nil); (err != nil) != want {
				t.Errorf("%s as %s: %v", cmd.Name(), format, err)
			}
		}
	}
}
