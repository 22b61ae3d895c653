package approval

import (
	"embed"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
)

var update = flag.Bool("update", false, "write the golden screen anew")

//go:embed testdata/first-approval.txt
var goldens embed.FS

// first is the first approval that a newcomer meets.
func first(t *testing.T) Document {
	t.Helper()
	op, p := operation(t), preview()
	op.KeyBound, op.ClientName, op.Rule, op.AgentReason = true, "Claude Code", "may-be-asked-for", "The user wants to chat with the demo model."
	p.Plan = []string{
		"start demo-chat: /opt/durward/durward-demo -port 7450 -model demo as the executor's own user, port 7450, GPU 0 (simulated), 8192 MiB declared",
		"pinned: /opt/durward/durward-demo",
	}
	p.Fit = &executorv1.SimulateModeResponse{Fits: true,
		Steps: []*executorv1.PlanStep{{Action: executorv1.PlanAction_PLAN_ACTION_START, ServiceId: "demo-chat"}},
		Needs: []*executorv1.ServiceNeed{{ServiceId: "demo-chat", NeedMib: 8192, Source: "declared"}},
		Gpus:  []*executorv1.GpuForecast{{Index: 0, AfterMib: 8192, FreeMib: 16384, TotalMib: 24576, Source: "declared"}}}
	st, err := signer(t).Approve(op, p)
	must(t, err)
	d := DocumentOf(st, p.GetSubject().GetEntry())
	d.About = Card{Number: "K7F3", Operation: op, Preview: p, SessionNumber: 1, Session: &vaultv1.OpenSession{}}.Sheet(testNow)
	return d
}

func texts(lines []Line) string {
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(line.Text + "\n")
	}
	return b.String()
}

// TestABriefCountsTheLinesOfATerminalThatKnowsNoClusters: what such a terminal breaks by itself pushes no term off the screen.
func TestABriefCountsTheLinesOfATerminalThatKnowsNoClusters(t *testing.T) {
	d := first(t)
	d.About[0].Text += " body=" + strings.Repeat("क"+strings.Repeat("\u093e", 200), 20)
	lines, whole := Brief(testNow, 80, 23, d)
	if whole {
		t.Errorf("4,000 characters fit on 23 lines of 80 columns")
	}
	for _, line := range lines {
		if width := ansi.StringWidthWc(line.Text); width > 80 {
			t.Fatalf("a line has %d columns: %q", width, line.Text)
		}
	}
}

// TestTheFirstApprovalFitsOneScreen of 24 lines by 80 columns, with who, what, target, fit, risk and the agent's words.
func TestTheFirstApprovalFitsOneScreen(t *testing.T) {
	lines, whole := Brief(testNow, 80, 23, first(t))
	if !whole {
		t.Errorf("it has %d lines", len(lines))
	}
	got := texts(lines)
	const file = "testdata/first-approval.txt"
	if *update {
		must(t, os.WriteFile(file, []byte(got), 0o644))
		return
	}
	want, err := goldens.ReadFile(file)
	must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got); if it is meant to, run: make golden-accept\n%s", file, diff)
	}
}

// TestTermsAreNeverFoldedAway: whatever the screen's size, a brief that says it is whole holds every line but an agent's words, and one
// that lacks a line does not say so.
func TestTermsAreNeverFoldedAway(t *testing.T) {
	short := first(t)
	long := first(t)
	long.About[len(long.About)-1].Text = `      agent says (untrusted): "` + strings.Repeat("word ", 100) + `"`
	terms := func(d Document) (out []string) {
		for _, line := range append(d.About[:len(d.About)-1:len(d.About)-1], d.terms(testNow)...) {
			out = append(out, line.Text)
		}
		return out
	}
	wholes := 0
	for _, documents := range [][]Document{{short}, {long}, {long, short}} {
		for width := 20; width <= 200; width += 9 {
			for height := 1; height <= 60; height++ {
				lines, whole := Brief(testNow, width, height, documents...)
				if whole != (len(lines) <= height) {
					t.Fatalf("%d lines on %d: whole is %v", len(lines), height, whole)
				}
				if whole {
					wholes++
				}
				// What goes on behind a gutter is put together again.
				shown := ""
				for _, line := range lines {
					if ansi.StringWidth(line.Text) > width {
						t.Fatalf("%q has more than %d columns", line.Text, width)
					}
					if rest, goesOn := strings.CutPrefix(strings.TrimLeft(line.Text, " "), "│ "); goesOn {
						shown += rest
					} else {
						shown += "\n" + line.Text
					}
				}
				for _, d := range documents {
					for _, want := range terms(d) {
						if !strings.Contains(shown+"\n", "\n"+want+"\n") {
							t.Fatalf("%d by %d: %q is not on the screen:\n%s", width, height, want, texts(lines))
						}
					}
				}
			}
		}
	}
	if wholes == 0 {
		t.Error("nothing ever fits")
	}
	if lines, whole := Brief(testNow, 80, 18, long); !whole || !strings.Contains(texts(lines), "more lines of these words: v") {
		t.Errorf("an agent's words keep the terms off the screen:\n%s", texts(lines))
	}
	// Arguments that fill the screen are not cut: it is read whole before it is signed.
	op, p := operation(t), preview()
	st, err := signer(t).Approve(op, p)
	must(t, err)
	d := Document{Statement: st, About: []Line{{Heading, "K7F3  WRITE  start_service " + strings.Repeat("argument=value ", 200)}}}
	if lines, whole := Brief(testNow, 80, 23, d); whole || strings.Count(texts(lines), "argument=value") != 200 {
		t.Errorf("whole is %v:\n%s", whole, texts(lines))
	}
}

// TestABriefSaysHowOftenAndUntilWhen of every kind of statement that is signed below one.
func TestABriefSaysHowOftenAndUntilWhen(t *testing.T) {
	d := first(t)
	if got := texts(d.terms(testNow)); !strings.Contains(got, "start_service on service demo-chat, once, until ") {
		t.Errorf("an approval: %s", got)
	}
	resume := DocumentOf(signer(t).Resume("spiffe://durward.local", 7), nil)
	if got := texts(resume.terms(testNow)); !strings.Contains(got, "epoch 7 begins, at spiffe://durward.local, until ") {
		t.Errorf("a resume: %s", got)
	}
	op := operation(t)
	op.KeyBound = true
	scope, err := NewScope(op, Within{For: time.Hour, Uses: 3})
	must(t, err)
	st, err := signer(t).Scope(scope, []*executorv1.PreviewCallResponse{preview()})
	must(t, err)
	lines, _ := Brief(testNow, 200, 60, Document{Statement: st})
	for _, want := range append(Words(st, testNow), "  3 times at most, until") {
		if !strings.Contains(texts(lines), want) {
			t.Errorf("a scope does not say %q:\n%s", want, fmt.Sprint(lines))
		}
	}
}
