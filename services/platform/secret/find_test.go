package secret

import (
	"context"
	"regexp/syntax"
	"slices"
	"strings"
	"testing"
)

// keyLine is a line of a key's; no scanner of this repository should take it for one.
var keyLine = "MIIEpAIBAAKCAQEA0123456789abcdefghij" + "ABCDEFGHIJKLMNOPQRSTUVWXYZab"

// TestEveryPublicShape makes texts of each rule's own shape and finds none of them afterwards.
func TestEveryPublicShape(t *testing.T) {
	if n := len(rules()); n < 220 {
		t.Fatalf("%d rules", n)
	}
	for i, r := range rules() {
		parsed, err := syntax.Parse(r.expression().String(), syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		made := 0
		for n := 0; n < 200 && made < 5; n++ {
			g := generator{state: uint64(i*1000+n) + 1}
			text := "log line: " + g.text(parsed.Simplify()) + "\nnext"
			if lower := asciiLower(text); !slices.ContainsFunc(r.keywords, func(k string) bool { return strings.Contains(lower, k) }) {
				text = r.keywords[0] + " " + text // some are known by what stands near them alone
			}
			spans := r.spans(text, len(text))
			if len(spans) == 0 {
				continue // too uniform, or a placeholder
			}
			made++
			found, err := Find(t.Context(), text)
			if err != nil || !slices.ContainsFunc(found, func(s Span) bool { return s.From <= spans[0].From && s.To >= spans[0].To }) {
				t.Errorf("%s: of %q is found %v, %v", r.kind, text, found, err)
			}
			if !Suspect(text) {
				t.Errorf("%s: %q is taken for no secret", r.kind, text)
			}
		}
		if made == 0 {
			t.Errorf("%s: no text of its shape was made", r.kind)
		}
	}
}

// generator makes texts that an expression matches, always the same ones.
type generator struct{ state uint64 }

func (g *generator) next(n int) int {
	g.state ^= g.state << 13
	g.state ^= g.state >> 7
	g.state ^= g.state << 17
	return int(g.state % uint64(n))
}

func (g *generator) text(re *syntax.Regexp) string {
	switch re.Op {
	case syntax.OpLiteral:
		return string(re.Rune)
	case syntax.OpCharClass:
		return string(g.class(re.Rune))
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return string(rune('a' + g.next(26)))
	case syntax.OpCapture:
		return g.text(re.Sub[0])
	case syntax.OpStar:
		return g.repeat(re.Sub[0], g.next(12))
	case syntax.OpPlus:
		return g.repeat(re.Sub[0], 12+g.next(12))
	case syntax.OpQuest:
		return g.repeat(re.Sub[0], g.next(2))
	case syntax.OpConcat:
		var b strings.Builder
		for _, sub := range re.Sub {
			b.WriteString(g.text(sub))
		}
		return b.String()
	case syntax.OpAlternate:
		return g.text(re.Sub[g.next(len(re.Sub))])
	}
	return "" // an assertion
}

func (g *generator) repeat(re *syntax.Regexp, n int) string {
	var b strings.Builder
	for range n {
		b.WriteString(g.text(re))
	}
	return b.String()
}

// class picks a character, of ASCII where there is one.
func (g *generator) class(ranges []rune) rune {
	var all []rune
	for i := 0; i < len(ranges); i += 2 {
		for r := max(ranges[i], '!'); r <= min(ranges[i+1], '~'); r++ {
			all = append(all, r)
		}
	}
	if len(all) == 0 {
		return ranges[0]
	}
	return all[g.next(len(all))]
}

// counting is a context that counts how often it is asked whether it has ended.
type counting struct {
	context.Context
	asked int
}

func (c *counting) Err() error { c.asked++; return c.Context.Err() }

// Between two looks at whether anybody still waits lies one expression on a few KiB, whatever the text; twice the text is twice the
// work.
func TestWorkGrowsWithTheText(t *testing.T) {
	var keywords []string
	for _, r := range rules() {
		keywords = append(keywords, r.keywords...)
	}
	all := strings.Join(keywords, " ") + " -----BEGIN PRIVATE " + "KEY----- ab://a:b "
	asked := func(n int) int {
		ctx := &counting{Context: t.Context()}
		if _, err := Find(ctx, strings.Repeat(all, n)); err != nil {
			t.Fatal(err)
		}
		return ctx.asked
	}
	few, many := asked(10), asked(20)
	if chunks := 20 * len(all) / step; many > 3*few || many < (chunks-1)*len(rules()) {
		t.Errorf("asked %d times for half the text, %d for all", few, many)
	}
}

// What is found by hand is gone through once: no value twice, and no key's lines for another key.
func TestNoPlaceIsFoundTwice(t *testing.T) {
	for _, part := range []string{
		"-----BEGIN PRIVATE " + "KEY-----", "-----BEGIN PRIVATE " + "KEY-----\nZm9v\n", "Zm9v\n-----END PRIVATE " + "KEY-----\n", "token=", `token="`,
		`password:\n`, "api_key=(((", "password='", keyLine + "\n",
	} {
		text := strings.Repeat(part, 500)
		size := 0
		for _, s := range append(keys(text, asciiLower(text)), settings(text, asciiLower(text))...) {
			size += s.To - s.From
		}
		if size > 3*len(text) {
			t.Errorf("%q: %d bytes are found in %d", part, size, len(text))
		}
	}
}
