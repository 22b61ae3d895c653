package secret

import (
	"context"
	"iter"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"
	"testing"
)

// keyLine is a line of a key's; no scanner of this repository should take it for one.
var keyLine = "MIIEpAIBAAKCAQEA0123456789abcdefghij" + "ABCDEFGHIJKLMNOPQRSTUVWXYZab"

// madeOf makes texts of a rule's own shape, as a log may show them.
func madeOf(i int, r rule, n int) iter.Seq[string] {
	shape := parse(r.source).Simplify()
	return func(yield func(string) bool) {
		for n := range n {
			g := generator{state: uint64(i*1000+n) + 1}
			text := "log line: " + g.text(shape) + "\nnext"
			if !r.announced(text) {
				text = r.keywords[0] + " " + text // some are known by what stands near them alone
			}
			if !yield(text) {
				return
			}
		}
	}
}

// TestEveryPublicShape makes texts of each rule's own shape and finds none of them afterwards.
func TestEveryPublicShape(t *testing.T) {
	if n := len(rules()); n < 220 {
		t.Fatalf("%d rules", n)
	}
	for i, r := range rules() {
		made := 0
		for text := range madeOf(i, r, 200) {
			spans := r.everywhere(text)
			if len(spans) == 0 {
				continue // too uniform, or a placeholder
			}
			if made++; made > 5 {
				break
			}
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

// announced reports whether one of the rule's keywords is in a text.
func (r rule) announced(text string) bool {
	lower := asciiLower(text)
	return slices.ContainsFunc(r.keywords, func(k string) bool { return strings.Contains(lower, k) })
}

// everywhere tries the rule's expression on all of a text, which is what Find saves.
func (r rule) everywhere(text string) []Span {
	s := scan{text: text, ends: make([]int, 1)}
	for _, m := range compiled(r.source).FindAllStringSubmatchIndex(text, -1) {
		s.take(0, &prepared{rule: r}, m, 0, len(text))
	}
	return s.spans
}

// compiled keeps what it compiled.
var compiled = func() func(string) *regexp.Regexp {
	var all sync.Map
	return func(source string) *regexp.Regexp {
		re, ok := all.Load(source)
		if !ok {
			re, _ = all.LoadOrStore(source, regexp.MustCompile(source))
		}
		return re.(*regexp.Regexp)
	}
}()

// What is tried only where it can begin is found as if it was tried everywhere; a keyword, with which a rule is published, may be missing
// where an expression takes any character for the keyword's dot.
func TestFindTriesWhereAMatchCanBegin(t *testing.T) {
	var made []string
	for i, r := range rules() {
		made = slices.AppendSeq(made, madeOf(i, r, 2))
	}
	check := func(text string) {
		t.Helper()
		s := scan{text: text, noSettings: true}
		if err := s.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, r := range rules() {
			for _, span := range r.everywhere(text) {
				at := slices.Index(s.spans, span)
				if at < 0 && r.announced(text) {
					t.Fatalf("%q: %v is missing in %v", text, span, s.spans)
				}
				if at >= 0 {
					s.spans = slices.Delete(s.spans, at, at+1)
				}
			}
		}
		if len(s.spans) > 0 {
			t.Fatalf("%q: %v is found, and no expression matches", text, s.spans)
		}
	}
	g := generator{state: 42}
	for i, text := range made {
		check(text)
		// Cut, joined and with a byte changed.
		other := made[g.next(len(made))]
		check(text[g.next(len(text)):] + other[:g.next(len(other))])
		changed := []byte(text)
		changed[g.next(len(changed))] = byte(' ' + g.next(95))
		check(string(changed))
		if i%8 == 0 {
			check(strings.ToUpper(text) + other)
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
	words := strings.Join(keywords, " ")
	for _, part := range []string{
		words + " -----BEGIN PRIVATE " + "KEY----- ab://a:b ", "curl ", "://a:", "key=", "token: abcdefghijk ", "<token>", "?key=", "eyeyey ey", "% 1234567890123456 ",
		"sk-", "sgp_ ", "xoxb-1", "AKIA", "s.", "bearer ", "q~",
	} {
		asked := func(n int) int {
			ctx := &counting{Context: t.Context()}
			if _, err := Find(ctx, strings.Repeat(part, n/len(part))); err != nil {
				t.Fatal(err)
			}
			return ctx.asked
		}
		few, many := asked(64<<10), asked(128<<10)
		if many > 3*few+8 || many > 128<<10 {
			t.Errorf("%.20q: asked %d times for half the text, %d for all", part, few, many)
		}
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
		s := scan{text: text}
		if err := s.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, s := range append(keys(text), s.spans...) {
			size += s.To - s.From
		}
		if size > 3*len(text) {
			t.Errorf("%q: %d bytes are found in %d", part, size, len(text))
		}
	}
}

// BenchmarkFind: what most texts are, and the text that is dearest.
func BenchmarkFind(b *testing.B) {
	for name, part := range map[string]string{
		"log":       "INFO 11-22 01:00:00 [loader.py:12] Loading weights took 12.34 seconds, token throughput 3.4, key cache 12%\n",
		"prose":     "The quick brown fox jumps over the lazy dog while the server restarts; we then looked at what the operator wrote down.\n",
		"hostile":   "api_key=a token:b secret= ey ey ey key key bearer basic --api-key twitter cloudflare discord sk- hf_ -----begin://a:b",
		"addresses": "://a:", "secrets": "api_key=a1B2c3D4e5F6g7H8 and hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH\n", "curl": "curl ",
	} {
		text := strings.Repeat(part, 1<<20/len(part))
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := Find(b.Context(), text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestPublicShapesRate: of values generated from the public rules, 95 of 100 are found, those included that a rule's own bounds of entropy or its
// list of placeholders leave alone.
func TestPublicShapesRate(t *testing.T) {
	made, found := 0, 0
	for i, r := range rules() {
		missed := 0
		for text := range madeOf(i, r, 40) {
			spans, err := Find(t.Context(), text)
			if err != nil {
				t.Fatal(err)
			}
			if made++; len(spans) > 0 {
				found++
			} else {
				missed++
			}
		}
		if missed > 0 {
			t.Logf("%s: %d of 40 are missed", r.kind, missed)
		}
	}
	rate := float64(found) / float64(made)
	t.Logf("%d of %d values generated from %d public rules are found: %.2f %%", found, made, len(rules()), 100*rate)
	if rate < 0.95 {
		t.Errorf("%.2f %% are found", 100*rate)
	}
}

// What issuers make today is found bare, whole, and where a URL holds it.
func TestKeysOfToday(t *testing.T) {
	const word = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6" // no scanner of this repository should take what is made of it for a key
	for _, before := range []string{
		"dckr_" + "pat_", "dckr_" + "oat_", "figd" + "_", "lsv2_" + "pt_", "lsv2_" + "sk_", "pcsk" + "_", "sb_" + "secret_", "syt" + "_", "tskey-" + "auth-", "tvly" + "-", "tvly-" + "dev-",
		"wandb_" + "v1_", "csk" + "-", "cfut" + "_", "e2b" + "_", "fw" + "_", "jina" + "_", "napi" + "_", "nfp" + "_", "NRAK" + "-", "phx" + "_", "r8" + "_", "rnd" + "_", "rpa" + "_",
		"sbp" + "_", "secret" + "_", "vck" + "_", "vcp" + "_", "whsec" + "_", "GOCSPX" + "-", "ya29" + ".", "1/" + "/0", "AQ" + ".", "123456789:" + "AAa", "glpat" + "-",
	} {
		key := before + word
		for _, around := range []string{"%", "using %.", `{"x":"%"}`, "https://api.example.org/x?y=%&z=1", "(%)"} {
			text := strings.ReplaceAll(around, "%", key)
			found, err := Find(t.Context(), text)
			if err != nil || len(found) != 1 || text[found[0].From:found[0].To] != key {
				t.Errorf("of %q is found %v, %v", text, found, err)
			}
		}
	}
	for text, want := range map[string]string{
		"glpat" + "-" + word + ".01.0a1b2c3d4 is out":                                  "glpat" + "-" + word + ".01.0a1b2c3d4",
		"https://api.telegram.org/bot123456789:" + "AAa" + word + "/getMe":             "123456789:" + "AAa" + word,
		"https://discord.com/api/webhooks/123456789012345678/" + word + word + "?wait": word + word,
		"MC4CAQAwBQYDK2Vw" + "BCIEI" + word + "abcdefghij\n":                           "MC4CAQAwBQYDK2Vw" + "BCIEI" + word + "abcdefghij",
	} {
		found, err := Find(t.Context(), text)
		if err != nil || len(found) != 1 || text[found[0].From:found[0].To] != want {
			t.Errorf("of %q is found %v, %v", text, found, err)
		}
	}
	for _, text := range []string{
		"fw_upgrade_2024_11_03_stable_build_12", "secret_key_base_of_the_application_2", "rnd_uniform_distribution_seed_42", "at 12:AA:BB:CC:DD:EE:FF up", "phx_websocket_transport_v2_closed",
	} {
		if found, _ := Find(t.Context(), text); len(found) != 0 {
			t.Errorf("in %q is found %v", text, found)
		}
	}
}
