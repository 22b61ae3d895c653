package audit

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
)

// TestSearchFlags: what the flags say is what audit is asked, and a word that means nothing is refused with those that do.
func TestSearchFlags(t *testing.T) {
	core, _, said := clitest.Printing(false)
	a := &app{core}
	f := &filter{tier: "destructive", channel: "desktop-ui", kinds: []string{"sink-refused", "NOTE"}, statuses: []string{"timeout"}}
	f.Text, f.Limit = "out of memory", 50
	q, err := a.fillSearch(f)
	want := &auditv1.SearchRecordsRequest{
		Tier: optionsv1.Tier_TIER_DESTRUCTIVE, Channel: callv1.Channel_CHANNEL_DESKTOP_UI, Text: "out of memory", Limit: 50,
		Kinds: []auditv1.Kind{auditv1.Kind_KIND_SINK_REFUSED, auditv1.Kind_KIND_NOTE}, Statuses: []auditv1.Status{auditv1.Status_STATUS_TIMEOUT},
	}
	if diff := cmp.Diff(want, q, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for text, ago := range map[string]time.Duration{"7d": 7 * 24 * time.Hour, "36h": 36 * time.Hour} {
		if at, err := a.ParseTime("since", text); err != nil || !at.AsTime().Equal(a.Now().Add(-ago)) {
			t.Errorf("--since %s: %v, %v", text, at, err)
		}
	}
	for _, bad := range []*filter{
		{since: "d"}, {since: "7x"}, {since: "99999999d"},
		{tier: "denied"}, {channel: "phone"}, {kinds: []string{"unspecified"}}, {statuses: []string{"fine"}}, {since: "yesterday"}, {until: "x"},
		{until: "9999-12-31T20:00:00-08:00"}, {until: "9999-12-31T23:59:59.5Z"}, {since: "0001-01-01T00:00:00+09:00"},
	} {
		var p *cli.Problem
		bad.Limit = 50
		if _, err := a.fillSearch(bad); !errors.As(err, &p) || p.Code != cli.ExitUsage {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	// A word that is nearly one is answered with that one, and any other with all of them.
	for word, want := range map[string]string{"approvd": "Did you mean approved?", "sink-refusd": "Did you mean sink_refused?", "zzz": "Use approved, "} {
		said.Reset()
		_, err := a.fillSearch(&filter{kinds: []string{word}, SearchRecordsRequest: auditv1.SearchRecordsRequest{Limit: 50}})
		if code := a.Explain(err); code != cli.ExitUsage || !strings.Contains(said.String(), want) {
			t.Errorf("--kind %s: exit code %d, %s", word, code, said)
		}
	}
	var p *cli.Problem
	if _, err := a.fillSearch(&filter{}); !errors.As(err, &p) || p.Code != cli.ExitUsage {
		t.Errorf("a limit of 0: %v", err)
	}
}

// TestSearchNamesWriters: what the table shows of a writer can be searched for.
func TestSearchNamesWriters(t *testing.T) {
	const audit = "spiffe://example.org/audit/main"
	for name, want := range map[string]string{
		"": "", "executor": "executor", "executor/local": "spiffe://example.org/executor/local",
		"spiffe://durward.local/vault/main": "spiffe://durward.local/vault/main",
	} {
		if got, err := writer(name, audit); got != want || err != nil {
			t.Errorf("%q becomes %q, %v", name, got, err)
		}
	}
	for _, bad := range []string{"nonsense", "nonsense/main", "executor/", "spiffe://durward.local/nonsense/main", "/"} {
		var p *cli.Problem
		if got, err := writer(bad, audit); !errors.As(err, &p) || p.Code != cli.ExitUsage || !strings.Contains(p.Error(), bad) {
			t.Errorf("%q becomes %q, %v", bad, got, err)
		}
	}
}

// TestSearchShowsPages: a page that is not the last says how to get the next one, however short it is.
func TestSearchShowsPages(t *testing.T) {
	core, out, _ := clitest.Printing(false)
	a := &app{core}
	found := &auditv1.SearchRecordsResponse{Entries: []*auditv1.Entry{{Index: 41, Writer: "spiffe://durward.local/vault/main", Record: &auditv1.Record{}}}}
	for next, want := range map[uint64]bool{41: true, 0: false} {
		out.Reset()
		found.NextBefore = next
		if err := a.showSearch(found); err != nil || strings.Contains(out.String(), "--before 41") != want {
			t.Errorf("next %d: %v\n%s", next, err, out)
		}
	}
	// A refusal has no summary: its reason stands in the column.
	out.Reset()
	found.Entries[0].Record.Body = &auditv1.Body{Reason: "the token is unknown"}
	if err := a.showSearch(found); err != nil || !strings.Contains(out.String(), "the token is unknown") {
		t.Errorf("a refusal: %v\n%s", err, out)
	}
	if len(a.auditCommand().Commands()) < 5 {
		t.Error("commands are missing")
	}
}
