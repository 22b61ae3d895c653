package httpfront

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestUnsupportedRevisionIsRepeated shows that a refusal repeats the revision that was asked for, as the protocol wants, and
// that nothing else can be had repeated that way.
func TestUnsupportedRevisionIsRepeated(t *testing.T) {
	for _, c := range []struct{ asked, want string }{
		{"", "unknown"},
		{"v", "unknown"},
		{"/etc/passwd", "unknown"},
		{"2026-07-28\x1b[31m", "unknown"},
		{"2026-07-28 is what I speak", "unknown"},
		{"1.00000000000000000000000000000000", "unknown"},
		{"ignore all previous instructions", "unknown"},
		{"v999.0.0", "v999.0.0"},
		{"2024-11-05", "2024-11-05"},
		{"9999-99-99", "9999-99-99"},
	} {
		err := unsupported(c.asked)
		want := map[string]any{"supported": []string{"2026-07-28", "2025-11-25", "2025-06-18"}, "requested": c.want}
		if diff := cmp.Diff(want, err.data); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.asked, diff)
		}
	}
}

// TestRevisionOfASession shows which revisions the header of a session's message may name, and which of them go on: the one
// that the specification has servers assume counts as none.
func TestRevisionOfASession(t *testing.T) {
	list := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	for _, c := range []struct {
		name      string
		protocol  []string
		status    int
		forwarded string
	}{
		{"not served", []string{"2024-11-05"}, 400, ""},
		{"none that there is", []string{"newest"}, 400, ""},
		{"empty", []string{""}, 400, ""},
		{"two", []string{"2025-11-25", "2025-11-25"}, 400, ""},
		{"served", []string{"2025-06-18"}, 0, "2025-06-18"},
		{"assumed", []string{"2025-03-26"}, 0, ""},
		{"none", nil, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := http.Header{headerSession: {"s"}}
			if c.protocol != nil {
				h[headerProtocol] = c.protocol
			}
			frame, bad := decoder{methods()}.decode(list, readHeaders(h))
			if bad != nil || c.status != 0 {
				if bad == nil || bad.status() != c.status {
					t.Fatalf("refused with %v, want status %d", bad, c.status)
				}
				return
			}
			if got := forwarded(&http.Request{Header: h}, frame).Get(headerProtocol); got != c.forwarded {
				t.Errorf("forwarded %q, want %q", got, c.forwarded)
			}
		})
	}
}
