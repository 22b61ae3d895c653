package desktop_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/desktop"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
)

// clock is a clock that a test moves.
type clock struct{ at time.Time }

func (c *clock) now() time.Time         { return c.at }
func (c *clock) pass(d time.Duration)   { c.at = c.at.Add(d) }
func tool(tags ...string) contract.Tool { return contract.Tool{Name: "t", Tags: tags} }
func newGate() (*desktop.Gate, *clock) {
	c := &clock{at: time.Unix(1_800_000_000, 0)}
	return desktop.New(c.now), c
}
func code(err error) string {
	if err == nil {
		return "ok"
	}
	return fault.CodeName(fault.From(err).Code)
}

const cli = callv1.Channel_CHANNEL_CLI

// TestRefused: what never passes, and says no more than any other refusal.
func TestRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		tags    []string
		channel callv1.Channel
		allowed bool
		session string
	}{
		"off":                     {[]string{"desktop:click"}, cli, false, "s"},
		"off, a screenshot":       {[]string{"desktop:screenshot"}, cli, false, "s"},
		"messaging":               {[]string{"desktop:screenshot"}, callv1.Channel_CHANNEL_MESSAGING, true, "s"},
		"no channel":              {[]string{"desktop:click"}, callv1.Channel_CHANNEL_UNSPECIFIED, true, "s"},
		"a channel of the future": {[]string{"desktop:click"}, 99, true, "s"},
		"a kind that is unknown":  {[]string{"desktop:everything"}, cli, true, "s"},
		"a kind that is missing":  {[]string{"desktop"}, cli, true, "s"},
		"one unknown of two":      {[]string{"desktop:click", "desktop:x"}, cli, true, "s"},
		"a kind in capitals":      {[]string{"desktop:Click"}, cli, true, "s"},
		"no session":              {[]string{"desktop:click"}, cli, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g, _ := newGate()
			confirmation, err := g.Judge(tc.session, tool(tc.tags...), tc.channel, tc.allowed)
			f := fault.From(err)
			if err == nil || f.Code != callv1.Code_CODE_DENIED || f.Message != fault.NotAllowed || confirmation != desktop.Needed {
				t.Fatalf("Judge = %v, %v", confirmation, err)
			}
		})
	}
}

// TestOtherTools: the gate has no say over tools that control no desktop.
func TestOtherTools(t *testing.T) {
	g, _ := newGate()
	for _, tags := range [][]string{nil, {"shell"}, {"desktopish"}} {
		for range 3 {
			if c, err := g.Judge("s", tool(tags...), callv1.Channel_CHANNEL_MESSAGING, false); c != desktop.None || err != nil {
				t.Errorf("%v: Judge = %v, %v", tags, c, err)
			}
		}
	}
	if desktop.Controls(tool("desktopish")) || !desktop.Controls(tool("shell", "desktop:type")) {
		t.Error("Controls does not go by the tags")
	}
}

// TestConfirmation: which kinds a human confirms each time, and which once a session.
func TestConfirmation(t *testing.T) {
	each := []desktop.Confirmation{desktop.Needed, desktop.Needed, desktop.Needed}
	once := []desktop.Confirmation{desktop.Needed, desktop.None, desktop.None}
	for tag, want := range map[string][]desktop.Confirmation{
		"desktop:screenshot": once, "desktop:pointer": once,
		"desktop:click": each, "desktop:type": each, "desktop:shortcut": each, "desktop:window": each,
	} {
		t.Run(tag, func(t *testing.T) {
			g, c := newGate()
			var got []desktop.Confirmation
			for range want {
				confirmation, err := g.Judge("s", tool(tag), cli, true)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, confirmation)
				g.Confirmed("s", tool(tag))
				c.pass(desktop.Spacing)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			if confirmation, err := g.Judge("another", tool(tag), cli, true); err != nil || confirmation != desktop.Needed {
				t.Errorf("another session inherits a consent: %v, %v", confirmation, err)
			}
		})
	}
}

// TestConfirmationOfKinds: a consent to one kind is none to another, and a tool of several kinds needs the strictest.
func TestConfirmationOfKinds(t *testing.T) {
	g, c := newGate()
	g.Confirmed("s", tool("desktop:screenshot"))
	for _, tc := range []struct {
		tags []string
		want desktop.Confirmation
	}{
		{[]string{"desktop:screenshot"}, desktop.None},
		{[]string{"desktop:pointer"}, desktop.Needed},
		{[]string{"desktop:screenshot", "desktop:pointer"}, desktop.Needed},
		{[]string{"desktop:click", "desktop:screenshot"}, desktop.Needed},
	} {
		if got, err := g.Judge("s", tool(tc.tags...), cli, true); got != tc.want || err != nil {
			t.Errorf("%v: Judge = %v, %v; want %v", tc.tags, got, err, tc.want)
		}
		c.pass(desktop.Spacing)
	}
	// An unconfirmed ask is not a consent.
	if got, _ := g.Judge("s", tool("desktop:pointer"), cli, true); got != desktop.Needed {
		t.Error("asking once was taken for a yes")
	}
}

// TestSpacing: two actions of a session are half a second apart, whatever they are; other sessions are not held up.
func TestSpacing(t *testing.T) {
	g, c := newGate()
	if _, err := g.Judge("s", tool("desktop:click"), cli, true); err != nil {
		t.Fatal(err)
	}
	c.pass(desktop.Spacing - time.Millisecond)
	for range 3 { // a refusal does not move the limit
		_, err := g.Judge("s", tool("desktop:pointer"), cli, true)
		f := fault.From(err)
		if code(err) != "RATE_LIMITED" || !f.Retryable || f.RetryAfter != time.Millisecond {
			t.Fatalf("an action after 499 ms: %v, retry after %v", err, f.RetryAfter)
		}
	}
	if _, err := g.Judge("other", tool("desktop:click"), cli, true); err != nil {
		t.Errorf("another session was held up: %v", err)
	}
	c.pass(time.Millisecond)
	if _, err := g.Judge("s", tool("desktop:click"), cli, true); err != nil {
		t.Errorf("an action after 500 ms: %v", err)
	}
	c.pass(-time.Hour)
	if _, err := g.Judge("s", tool("desktop:click"), cli, true); code(err) != "RATE_LIMITED" {
		t.Errorf("a clock that went back let an action through: %v", err)
	}
}

// TestSpanOfASuspendedMachine: it is over by the wall clock too.
func TestSpanOfASuspendedMachine(t *testing.T) {
	g, c := newGate()
	c.at = time.Now()
	g.Confirmed("s", tool("desktop:click"))
	if _, active := g.Active("s"); !active {
		t.Fatal("a confirmed action starts nothing")
	}
	c.at = platformtest.Suspended(c.at, desktop.Span)
	if _, err := g.Judge("s", tool("desktop:click"), cli, true); code(err) != "DENIED" {
		t.Errorf("after it was suspended for as long: %v", err)
	}
}

// TestSpan: five minutes after the first confirmed action it is over, whatever is confirmed later.
func TestSpan(t *testing.T) {
	g, c := newGate()
	if _, active := g.Active("s"); active {
		t.Error("active before anything was confirmed")
	}
	if _, err := g.Judge("s", tool("desktop:click"), cli, true); err != nil {
		t.Fatal(err)
	}
	c.pass(20 * time.Minute) // a human takes their time
	g.Confirmed("s", tool("desktop:click"))
	until, active := g.Active("s")
	if !active || !until.Equal(c.at.Add(desktop.Span)) {
		t.Errorf("Active = %v, %v", until, active)
	}
	c.pass(desktop.Span - time.Second)
	g.Confirmed("s", tool("desktop:click")) // does not prolong it
	if _, err := g.Judge("s", tool("desktop:click"), cli, true); err != nil {
		t.Errorf("within the span: %v", err)
	}
	c.pass(time.Second)
	for range 2 {
		if _, err := g.Judge("s", tool("desktop:click"), cli, true); code(err) != "DENIED" {
			t.Errorf("after the span: %v", err)
		}
		g.Confirmed("s", tool("desktop:click")) // does not begin it again
	}
	if _, active := g.Active("s"); active {
		t.Error("active after the span")
	}
}

// TestKill: the kill switch ends one session or all, for good, also one that has done nothing yet.
func TestKill(t *testing.T) {
	g, c := newGate()
	for _, s := range []string{"a", "b"} {
		g.Confirmed(s, tool("desktop:pointer"))
	}
	g.Kill("a")
	g.Kill("new")
	for _, s := range []string{"a", "new"} {
		g.Confirmed(s, tool("desktop:pointer"))
		if _, err := g.Judge(s, tool("desktop:pointer"), cli, true); code(err) != "DENIED" {
			t.Errorf("%s was killed: %v", s, err)
		}
		if _, active := g.Active(s); active {
			t.Errorf("%s was killed and is active", s)
		}
	}
	if got, err := g.Judge("b", tool("desktop:pointer"), cli, true); got != desktop.None || err != nil {
		t.Errorf("b was not killed: %v, %v", got, err)
	}
	g.Kill("")
	c.pass(time.Second)
	if _, err := g.Judge("b", tool("desktop:pointer"), cli, true); code(err) != "DENIED" {
		t.Errorf("all were killed: %v", err)
	}
}

// TestBounded: a flood of sessions is refused, forgets no kill, and passes with time.
func TestBounded(t *testing.T) {
	g, c := newGate()
	g.Kill("killed")
	refused := 0
	for i := range 6000 {
		if _, err := g.Judge(fmt.Sprint("s", i), tool("desktop:click"), cli, true); code(err) == "DENIED" {
			refused++
		}
	}
	if refused != 6000-4095 {
		t.Errorf("%d of 6000 sessions were refused", refused)
	}
	g.Kill("late")
	for _, s := range []string{"killed", "late"} {
		if _, err := g.Judge(s, tool("desktop:click"), cli, true); code(err) != "DENIED" {
			t.Errorf("%s was forgotten: %v", s, err)
		}
	}
	c.pass(25 * time.Hour)
	if _, err := g.Judge("s5999", tool("desktop:click"), cli, true); err != nil {
		t.Errorf("a day later: %v", err)
	}
}
