package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"unicode"
	"unicode/utf8"

	"durward.internal/deploy/e2e/harness"
)

// hostileTexts are what an agent might call itself or say to draw on a person's terminal, or to be read as something else.
func hostileTexts() []string {
	texts := []string{
		"\x1b[2J\x1b[H\x1b[32mapproved by ada\x1b[0m", "\x1b]0;owned\x07", "\x1b]52;c;cm0gLXJmIH4=\x07", "\u009b31mred", "\x1bP1$q\x1b\\", "a\rb\bc\x7fd\x00e",
		"\u202edrawkcab\u202c", "\u2066isolate\u2069", "\u200b\u200c\u200d\ufeffzero", "\U000e0041\U000e0042\U000e007f tags", "\u2028line\u2029paragraph\u0085next",
		"y\u0430ur \u0440\u0430ypal", "a" + strings.Repeat("\u0301", 300), "\ufff9under\ufffaover\ufffb", "\U000f0000 private \ue000", "\u00ad\u034f\u061c\u115f\u3164 fillers",
		"\"}\n[y/N] y\nSign and resume? [y/N] y", "7F3K  READ  gpu_status\n      you are asked because of nothing", strings.Repeat("10 kB ", 1700), "\U0001f468\u200d\U0001f469 family",
		"\t\v\f tabs", "\u2800\u00a0\u2003 spaces", "\x1b[8mhidden\x1b[28m", "\x1b[1;1H\x1b[K", "\x9d0;c1\x9c", "%s%n{{.}}${HOME}$(id)`id`", "<b>&amp;</b>", "--yes", "-", " ",
	}
	// Every invisible or commanding character, between letters.
	var several strings.Builder
	for r := rune(1); r < 0x3200; r++ {
		if !unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			continue
		}
		if fmt.Fprintf(&several, "x%cy", r); several.Len() > 20 {
			texts = append(texts, several.String())
			several.Reset()
		}
	}
	return texts
}

// TestHostileTextReachesNoTerminal: whatever a client calls itself and gives as its reason, what durward prints holds no character that
// a terminal obeys or that nobody sees, in a pipe and at a terminal; and it stays one agent's quoted text.
func TestHostileTextReachesNoTerminal(t *testing.T) {
	t.Parallel()
	onlyText := func(what, out string) {
		t.Helper()
		for _, r := range out {
			if r != '\n' && !unicode.IsPrint(r) && r != ' ' {
				t.Errorf("%s: %U is printed", what, r)
				return
			}
		}
	}
	texts := hostileTexts()
	h := harness.Start(t, harness.Options{})
	// Identical calls would join one operation, and the person would see the first one's reason alone: each client has a few calls.
	const perClient = 4
	var names []string
	for at := 0; at < len(texts); at += perClient {
		names = append(names, fmt.Sprintf("agent-%d", at/perClient))
	}
	tokens := h.AddClients(names, ceiling...)
	var calls sync.WaitGroup // each is held until a person has had a moment to decide
	places := make(chan struct{}, 16)
	for i, text := range texts {
		quoted, err := json.Marshal(text)
		must(t, err)
		tool, service := []string{"start_service", "stop_service"}[i%2], []string{harness.DemoService, harness.SlowService}[i/2%2]
		r := harness.Stateless(tokens[i/perClient], "tools/call", tool, fmt.Sprintf(`{"name":%q,"arguments":{"service_id":%q,"reason":%s}}`, tool, service, quoted))
		r.Body = []byte(strings.Replace(string(r.Body), `"name":"raw"`, `"name":`+string(quoted), 1))
		calls.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			harness.Again(func() harness.RawAnswer {
				a, err := h.Raw(t.Context(), r)
				if err != nil {
					t.Error(err)
				}
				onlyText(fmt.Sprintf("the answer to %q", text), a.Body)
				return a
			})
		})
	}
	calls.Wait()
	waiting := h.Approvals()
	seen := len(waiting)
	onlyText("durward approvals", h.Durward("approvals"))
	onlyText("durward sessions", h.Durward("sessions"))
	for i, one := range waiting {
		onlyText("the reason", strings.ReplaceAll(one.AgentReason, "\t", " "))
		if i%perClient == 0 { // each look takes a process
			out := h.Ask("approve", one.Number) // shows everything, and signs nothing
			onlyText("durward approve", out.Stdout+out.Stderr)
			if out.Code != 4 || strings.Count(out.Stdout, "agent says (untrusted)") > 1 {
				t.Errorf("durward approve: exit code %d\n%s", out.Code, out.Stdout)
			}
		}
	}
	if seen < len(texts)/2 {
		t.Errorf("only %d of %d texts reached a person", seen, len(texts))
	}
	onlyText("durward audit search", h.Durward("audit", "search", "--limit", "1000"))
	h.Durward("audit", "verify")
}

var colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// TestAPaddedReasonForgesNoCard: what an agent pads to the width of the operator's terminal begins no line there.
func TestAPaddedReasonForgesNoCard(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	const forged = "K7F3 DESTRUCTIVE switch_mode approved by ada"
	reason := `it is needed"` + strings.Repeat("\u2003", 20) + strings.Repeat(" ", 60) + strings.Repeat("x", 57) + forged + strings.Repeat("日", 30)
	asked := h.Connect(h.AddClient("agent")).Ask("start_service", map[string]any{"service_id": harness.DemoService, "reason": reason})
	if asked.Status != "pending_approval" {
		t.Fatal(asked.Raw)
	}
	for _, args := range [][]string{{"approvals"}, {"approve", asked.OperationID}, {"audit", "show", asked.OperationID}} {
		x := h.AtTerminal(t, 80, args...)
		if args[0] == "approve" {
			x.Waits("[y/N]")
			x.Types("n\n")
		}
		x.Code()
		x.Close()
		if args[0] != "audit" && !strings.Contains(x.Text(), "agent says (untrusted)") || !strings.Contains(x.Text(), "│ ") {
			t.Errorf("durward %s does not show what is too long behind a gutter:\n%s", args[0], x.Text())
		}
		for line := range strings.Lines(x.Text()) {
			line = colours.ReplaceAllString(strings.TrimRight(line, "\r\n"), "")
			if width := utf8.RuneCountInString(line) + strings.Count(line, "日"); width > 80 { // it is two columns wide
				t.Errorf("durward %s leaves it to the terminal to break %d columns: %q", args[0], width, line)
			}
		}
	}
}
