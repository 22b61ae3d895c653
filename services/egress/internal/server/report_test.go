package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	"durward.internal/services/platform/connections"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/sink"
	"durward.internal/services/platform/telemetry/telemetrytest"
)

// TestRequestsAreCounted: by how they ended and the rule that refused, and by nothing that an agent chose.
func TestRequestsAreCounted(t *testing.T) {
	server := serve(t, answering("text/plain", "x"))
	registry := prometheus.NewRegistry()
	list, err := destination.ParseList(destination.Source{File: "domains.yaml"}, fmt.Appendf(nil, "allow: [%q, \"127.0.0.1\"]\n", strings.TrimPrefix(server.URL, "http://")))
	must(t, err)
	tools, err := NewTools(Config{
		Metrics: registry, Domains: func() *destination.List { return list },
		Dialer: dialer.Config{Local: []netip.AddrPort{netip.MustParseAddrPort(strings.TrimPrefix(server.URL, "http://"))}},
	})
	must(t, err)
	const count = `durward_egress_requests_total{result=%q,rule=%q}`
	refused := fmt.Sprintf(count, "refused", "address")
	if n, there := telemetrytest.Samples(t, registry)[refused]; !there || n != 0 {
		t.Error("what an alert looks at is not there from the start")
	}
	for _, url := range []string{server.URL, "http://127.0.0.1/", "http://other.example/secret"} {
		_, _ = fetch(tools, url) // what they return, others test
	}
	shown := telemetrytest.Samples(t, registry)
	for name, want := range map[string]float64{fmt.Sprintf(count, "answered", ""): 1, refused: 1, fmt.Sprintf(count, "refused", "destination"): 1} {
		if shown[name] != want {
			t.Errorf("%s is %v, want %v", name, shown[name], want)
		}
	}
	for name := range shown {
		if strings.Contains(name, "example") {
			t.Errorf("%s names a host", name)
		}
	}
}

// A report tells of what was asked for, refused and answered, by which origin, and nothing that a server or a URL said.
func TestSecurityReport(t *testing.T) {
	other := serve(t, answering("text/plain", "what the server said"))
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(w, r, other.URL+"/there", http.StatusFound)
			return
		}
		_, _ = fmt.Fprint(w, "what the server said")
	})
	tools := listed(t, dialer.Limits{}, "", server, other)
	report := func(format string, override *string) (*egressv1.SecurityReportResponse, error) {
		return tools.SecurityReport(t.Context(), &egressv1.SecurityReportRequest{Format: &format, SeverityOverride: override})
	}
	for name, c := range map[string]struct {
		format   string
		override *string
		field    string
	}{
		"another format":       {"pdf", nil, "format"},
		"no severity":          {"sarif", new("none"), "severity_override"},
		"beyond a human's own": {"sarif", new("high"), "severity_override"},
	} {
		if got, err := report(c.format, c.override); got != nil || !fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT) || fault.From(err).Field != c.field {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if got, err := report("csp", nil); err != nil || !strings.Contains(got.GetReport(), "connect-src 'none'") {
		t.Errorf("of nothing: %v, %v", got, err)
	}
	for url, fails := range map[string]bool{server.URL + "/away?key=secret": false, "https://g1thub.com/secret": true, "https://docs-x.zip/secret": true} {
		if _, err := fetch(tools, url); (err != nil) != fails {
			t.Fatalf("%s: %v", url, err)
		}
	}
	for format, want := range map[string][]string{
		"csp":   {"connect-src " + min(server.URL, other.URL) + " " + max(server.URL, other.URL) + ";"},
		"har":   {`"url":"` + other.URL + `/"`, `"serverIPAddress":"127.0.0.1"`},
		"sarif": {"g1thub.com", "docs-x.zip", "it is an address", `"ruleId":"destination"`},
	} {
		got, err := report(format, nil)
		if err != nil || strings.Contains(got.GetReport(), "secret") || strings.Contains(got.GetReport(), "server said") {
			t.Errorf("%s: %v, %v", format, got, err)
		}
		for _, part := range want {
			if !strings.Contains(got.GetReport(), part) {
				t.Errorf("%s: there is no %s in %s", format, part, got.GetReport())
			}
		}
	}
	// The names' flags below what was asked for are left out, what was refused is not.
	got, err := report("sarif", new("medium"))
	if err != nil || strings.Count(got.GetReport(), `"ruleId":"destination"`) != 2 || strings.Contains(got.GetReport(), "it is an address") || !strings.Contains(got.GetReport(), "docs-x.zip: ") {
		t.Errorf("from medium on: %v, %v", got, err)
	}
}

// What is remembered is bounded, and one session is told nothing of another's.
func TestObserved(t *testing.T) {
	t.Parallel()
	var o observed
	one, two := sink.Party{Client: "a", Session: "1"}, sink.Party{Client: "a", Session: "2"}
	for i := range mostRequests + 7 {
		o.add(one, connections.Connection{Sent: i})
	}
	if rows := o.of(one); len(rows) != mostRequests || rows[0].Sent != mostRequests+6 || rows[mostRequests-1].Sent != 7 {
		t.Errorf("%d, %d", len(rows), rows[0].Sent)
	}
	if rows := o.of(two); rows != nil {
		t.Errorf("%v", rows)
	}
	if rows := o.of(sink.Party{Client: "b", Session: "1"}); rows != nil {
		t.Errorf("%v", rows)
	}
	for i := range mostSessions {
		o.add(sink.Party{Client: "b", Session: fmt.Sprint(i)}, connections.Connection{})
	}
	if rows := o.of(one); rows != nil || len(o.sessions) != mostSessions {
		t.Errorf("%d sessions, %v", len(o.sessions), rows)
	}
	if raw, err := json.Marshal(o.of(sink.Party{Client: "b", Session: "9"})); err != nil || !strings.Contains(string(raw), `"sent":0`) {
		t.Errorf("%s, %v", raw, err)
	}
}

// Hosts that answered are known after a restart, but for a line that was cut short; of too many none is.
func TestHosts(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "hosts")
	open := func() *Hosts {
		t.Helper()
		h, err := OpenHosts(file)
		must(t, err)
		t.Cleanup(func() { _ = h.Close() })
		return h
	}
	h := open()
	if h.has("new.example") {
		t.Error("a host is known before it answered")
	}
	h.add("new.example")
	h.add("new.example")
	raw, err := os.ReadFile(file)
	if err != nil || string(raw) != "new.example\n" {
		t.Errorf("%q, %v", raw, err)
	}
	must(t, os.WriteFile(file, append(raw, "NO HOST\n\ncut.exam"...), 0o600))
	if h = open(); !h.has("new.example") || h.has("cut.exam") || len(h.names) != 1 {
		t.Errorf("after a restart: %v", h.names)
	}
	h.add("other.example")
	if h = open(); !h.has("other.example") || len(h.names) != 2 {
		t.Errorf("after another: %v", h.names)
	}
	for i := range mostHosts {
		h.add(fmt.Sprintf("h%d.example", i))
	}
	if again := open(); len(h.names) != len(again.names) || again.has("new.example") || !again.has(fmt.Sprintf("h%d.example", mostHosts-1)) {
		t.Errorf("%d hosts are remembered, and %d after a restart", len(h.names), len(again.names))
	}
}

// What answered is known to cards, what was refused is not.
func TestWhatAnsweredIsKnown(t *testing.T) {
	server := serve(t, answering("text/plain", "x"))
	tools := listed(t, dialer.Limits{}, "", server)
	known := func(url string) bool {
		_, to, err := destination.ParseURL(url)
		must(t, err)
		return !strings.Contains(strings.Join(tools.remarks(to), "\n"), "NEW (low)")
	}
	for url, want := range map[string]bool{server.URL: true, "http://other.example/": false} {
		if known(url) {
			t.Errorf("%s is known before it was asked", url)
		}
		_, _ = fetch(tools, url) // what it returns, others test
		if known(url) != want {
			t.Errorf("%s is known: %t", url, !want)
		}
	}
}
