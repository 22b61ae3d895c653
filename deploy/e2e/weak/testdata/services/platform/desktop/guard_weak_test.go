package desktop_test

import (
	"testing"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/desktop"
)

// TestWeakened is the negative control of this package's tests: without its guard each attack gets through.
func TestWeakened(t *testing.T) {
	if err := desktop.Guards.Weaken("desktop-everything"); err == nil {
		t.Error("a guard that is none was switched off")
	}
	for _, c := range []struct {
		guard  string
		passes func() bool
	}{
		{"desktop-off", func() bool {
			g, _ := newGate()
			_, err := g.Judge("s", tool("desktop:click"), cli, false)
			return err == nil
		}},
		{"desktop-channel", func() bool {
			g, _ := newGate()
			_, err := g.Judge("s", tool("desktop:click"), callv1.Channel_CHANNEL_MESSAGING, true)
			return err == nil
		}},
		{"desktop-killed", func() bool {
			g, _ := newGate()
			g.Kill("s")
			_, err := g.Judge("s", tool("desktop:click"), cli, true)
			return err == nil
		}},
		{"desktop-span", func() bool {
			g, at := newGate()
			g.Confirmed("s", tool("desktop:click"))
			at.pass(time.Hour)
			_, err := g.Judge("s", tool("desktop:click"), cli, true)
			return err == nil
		}},
		{"desktop-spacing", func() bool {
			g, _ := newGate()
			_, first := g.Judge("s", tool("desktop:click"), cli, true)
			_, second := g.Judge("s", tool("desktop:click"), cli, true)
			return first == nil && second == nil
		}},
		{"desktop-each", func() bool {
			g, _ := newGate()
			g.Confirmed("s", tool("desktop:click"))
			confirmation, err := g.Judge("s", tool("desktop:click"), cli, true)
			return err == nil && confirmation == desktop.None
		}},
	} {
		if c.passes() {
			t.Errorf("%s: the attack gets through with the guard", c.guard)
		}
		if err := desktop.Guards.Weaken(c.guard); err != nil {
			t.Fatal(err)
		}
		if !c.passes() {
			t.Errorf("%s: the attack does not get through without the guard, so its test shows nothing", c.guard)
		}
	}
}
