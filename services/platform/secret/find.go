// Package secret finds credentials in text that programs and strangers wrote, and trusts nothing in it. Find says where one is, in a
// log, where words that only look like one must stay; Suspect says whether a text may go into a proposal, and errs on the side
// of no.
//
// Find runs in time linear in the text: it is gone through by hand, or by expressions of RE2 on a few KiB at a time.
package secret

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Span is one value in a text, in bytes.
type Span struct {
	From, To int
	Kind     string
}

// Merge sorts spans and joins those that overlap; what is joined has the kind of the longest.
func Merge(spans []Span) []Span {
	slices.SortStableFunc(spans, func(a, b Span) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(b.To, a.To)) })
	var out []Span
	longest := 0
	for _, s := range spans {
		last := len(out) - 1
		if last < 0 || s.From >= out[last].To {
			out, longest = append(out, s), s.To-s.From
			continue
		}
		out[last].To = max(out[last].To, s.To)
		if n := s.To - s.From; n > longest {
			out[last].Kind, longest = s.Kind, n
		}
	}
	return out
}

// rule is one shape of credential.
type rule struct {
	kind string
	// keywords are words of which the text must hold one, in lower case, for the expression to be tried.
	keywords   []string
	expression func() *regexp.Regexp
	// group is the part of the match that is the secret; 0: the first that is there, or all of it.
	group   int
	entropy float64
	// before: the beginning of the word that the match begins in belongs to it.
	before bool
	// plausible reports whether what was found is a value and not a word; nil: it always is.
	plausible func(text string, match, value [2]int) bool
}

//go:embed gitleaks.json
var gitleaks []byte

// listed is the file of public shapes: see gitleaks.LICENCE.
type listed struct {
	Allow []string `json:"allow"`
	Rules []struct {
		ID       string   `json:"id"`
		Keywords []string `json:"keywords"`
		Regex    string   `json:"regex"`
		Entropy  float64  `json:"entropy"`
		Group    int      `json:"group"`
		Allow    *struct {
			Value []string `json:"value"`
			Match []string `json:"match"`
			Line  []string `json:"line"`
			Words []string `json:"words"`
		} `json:"allow"`
	} `json:"rules"`
}

// inLogs are the keywords of rules whose own are words that stand near the credential in source code alone.
var inLogs = map[string][]string{"airtable-personnal-access-token": {"pat"}, "facebook-access-token": {"|", "%"}}

// Many public shapes take some of what stands before them in the word with them, which costs more than all else and is only
// looked at to tell what is none. It is found by going back.
const wordBefore, maxWordBefore = `(?i)[\w.-]{0,50}?`, 50

// Source code ends a secret in few ways; a log ends one in many.
const (
	endInSource = "(?:[\\x60'\"\\s;]|\\\\[nr]|$)"
	endInLog    = `(?:[^\w-]|$)`
)

// rules are read once from what is linked in, which never changes.
var rules = sync.OnceValue(func() []rule {
	var list listed
	if err := json.Unmarshal(gitleaks, &list); err != nil {
		panic(fmt.Sprintf("secret: the rules that are linked in cannot be read: %v", err))
	}
	placeholder := anyOf(list.Allow)
	out := own()
	for _, r := range list.Rules {
		made := rule{
			kind: strings.ToUpper(strings.ReplaceAll(r.ID, "-", "_")), keywords: r.Keywords, group: r.Group, entropy: r.Entropy,
			expression: sync.OnceValue(func() *regexp.Regexp {
				source, cut := strings.CutPrefix(strings.ReplaceAll(r.Regex, endInSource, endInLog), wordBefore)
				if cut {
					source = `(?i)` + source
				}
				return regexp.MustCompile(source)
			}),
			before:    strings.HasPrefix(r.Regex, wordBefore),
			plausible: func(text string, _, value [2]int) bool { return !placeholder().MatchString(text[value[0]:value[1]]) },
		}
		if words, ok := inLogs[r.ID]; ok {
			made.keywords = words
		}
		if a := r.Allow; a != nil {
			values, matches, lines, words := anyOf(a.Value), anyOf(a.Match), anyOf(a.Line), a.Words
			made.plausible = func(text string, match, value [2]int) bool {
				secret := text[value[0]:value[1]]
				lower := strings.ToLower(secret)
				return !placeholder().MatchString(secret) && !values().MatchString(secret) && !matches().MatchString(text[match[0]:match[1]]) &&
					!lines().MatchString(lineOf(text, match)) &&
					!slices.ContainsFunc(words, func(w string) bool { return strings.Contains(lower, w) })
			}
		}
		out = append(out, made)
	}
	return out
})

// anyOf is the expression that matches where one of them does.
func anyOf(expressions []string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp {
		if len(expressions) == 0 {
			return regexp.MustCompile(`\z.`) // nothing
		}
		return regexp.MustCompile("(?:" + strings.Join(expressions, ")|(?:") + ")")
	})
}

func lineOf(text string, at [2]int) string {
	from := strings.LastIndexByte(text[:at[0]], '\n') + 1
	if to := strings.IndexByte(text[at[1]:], '\n'); to >= 0 {
		return text[from : at[1]+to]
	}
	return text[from:]
}

// Expressions are tried on so much of a text at a time, at least one on the beginning of which the next begins, so that time
// is linear in the text, whatever an expression does.
const (
	step    = 8 << 10
	overlap = 4 << 10
)

// Find returns the places in a text that look like credentials, merged. It ends early, with ctx's error, when ctx does.
func Find(ctx context.Context, text string) ([]Span, error) {
	if len(text) < minValue {
		return nil, ctx.Err()
	}
	lower := asciiLower(text)
	out := append(keys(text, lower), settings(text, lower)...)
	for from, next := 0, 0; next < len(text); from = next {
		to := len(text)
		if next = to; to-from > step+overlap {
			to, next = runeStart(text, from+step+overlap), gap(text, from+step)
		}
		found, err := shapes(ctx, text[from:to], lower[from:to], next-from)
		if err != nil {
			return nil, err
		}
		for _, s := range found {
			s.From, s.To = s.From+from, s.To+from
			if s.To == to && to < len(text) {
				// It goes on beyond what was looked at; so does what is hidden, to the end of the line.
				if s.To = len(text); strings.IndexByte(text[to:], '\n') >= 0 {
					s.To = to + strings.IndexByte(text[to:], '\n')
				}
			}
			out = append(out, s)
		}
	}
	return Merge(out), nil
}

// shapes finds what has the shape of one rule or another and begins before a place.
func shapes(ctx context.Context, text, lower string, before int) ([]Span, error) {
	var out []Span
	list := rules()
	for _, i := range called(lower) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		out = append(out, list[i].spans(text, before)...)
	}
	return out, nil
}

// keyword calls for a rule.
type keyword struct {
	rest string // behind its first byte
	rule int
}

// keywords are those of all rules by their first byte: a text is gone through once for all of them.
var keywords = sync.OnceValue(func() *[256][]keyword {
	var table [256][]keyword
	for i, r := range rules() {
		for _, k := range r.keywords {
			table[k[0]] = append(table[k[0]], keyword{k[1:], i})
		}
	}
	return &table
})

// called returns the rules one of whose keywords a text holds, in order.
func called(lower string) []int {
	table := keywords()
	var found []int
	for i := range len(lower) {
		for _, k := range table[lower[i]] {
			if strings.HasPrefix(lower[i+1:], k.rest) && !slices.Contains(found, k.rule) {
				found = append(found, k.rule)
			}
		}
	}
	slices.Sort(found)
	return found
}

// gap returns a place not far before another where a word begins, or the place.
func gap(text string, at int) int {
	if i := strings.LastIndexAny(text[at-overlap/4:at], "\n \t"); i >= 0 {
		return at - overlap/4 + i + 1
	}
	return runeStart(text, at)
}

func runeStart(text string, at int) int {
	for back := 0; back < utf8.UTFMax && !utf8.RuneStart(text[at]); back++ {
		at--
	}
	return at
}

// spans returns the values of the rule's shape in a text that begin before a place.
func (r rule) spans(text string, before int) []Span {
	var out []Span
	for _, m := range r.expression().FindAllStringSubmatchIndex(text, -1) {
		if m[0] >= before {
			break
		}
		value := secretOf(m, r.group)
		if value[0] == value[1] || r.entropy > 0 && entropy(text[value[0]:value[1]]) <= r.entropy {
			continue
		}
		match := [2]int{m[0], m[1]}
		for least := max(m[0]-maxWordBefore, 0); r.before && match[0] > least && nameByte(text[match[0]-1]); {
			match[0]--
		}
		if r.plausible == nil || r.plausible(text, match, value) {
			out = append(out, Span{From: value[0], To: value[1], Kind: r.kind})
		}
	}
	return out
}

// secretOf returns where the secret of a match is.
func secretOf(m []int, group int) [2]int {
	if group > 0 && 2*group+1 < len(m) && m[2*group] >= 0 {
		return [2]int{m[2*group], m[2*group+1]}
	}
	for i := 2; i+1 < len(m); i += 2 {
		if m[i] >= 0 && m[i+1] > m[i] {
			return [2]int{m[i], m[i+1]}
		}
	}
	return [2]int{m[0], m[1]}
}

// entropy is Shannon's, in bits a character.
func entropy(s string) float64 {
	counts := map[rune]int{}
	for _, r := range s {
		counts[r]++
	}
	n, e := float64(utf8.RuneCountInString(s)), 0.0
	for _, c := range counts {
		p := float64(c) / n
		e -= p * math.Log2(p)
	}
	return e
}

// asciiLower keeps every byte where it is, which strings.ToLower does not.
func asciiLower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// own are the shapes, found by expressions, that logs have and source code has not: URLs with a password, headers, and credentials
// of which a log shows only the beginning.
func own() []rule {
	return []rule{
		{
			kind: "SETTING", keywords: []string{"</"},
			expression: expression(`(?i)<[\w:.-]{0,64}(?:token|secret|passw(?:or)?d|pass(?:phrase|code)?|pwd|credential|key)s?(?:[ \t][^<>\n]{0,100})?>` +
				`[ \t]{0,8}([^<\s][^<\n]{0,1000})`),
			plausible: func(text string, _, value [2]int) bool { return !nothing(text[value[0]:value[1]]) },
		},
		{
			kind: "QUERY", keywords: []string{"?", "&"},
			expression: expression(`(?i)[?&](?:amp;)?(?:(?:x-(?:amz|goog)-)?(?:sig|signature|credential|security-token)|key|auth|pw|code)=([^&\s"'<>]{6,1000})`),
		},
		{
			// The password goes to the last @: it may hold one itself.
			kind: "URL_PASSWORD", keywords: []string{"://"},
			expression: expression(`://[^\s/:@"']{0,256}:([^\s"']{1,512})@`),
		},
		{
			kind: "AUTHORIZATION", keywords: []string{"authorization", "cookie"},
			expression: expression(`(?i)\b(?:authorization|cookie)\\?["']?[ \t]{0,8}[:=][ \t]{0,8}\\?["']?([^\n"']{4,})`),
			plausible:  func(text string, _, value [2]int) bool { return !nothing(text[value[0]:value[1]]) },
		},
		{
			kind: "BEARER", keywords: []string{"bearer"},
			expression: expression(`(?i)\bbearer[ \t]{1,8}([A-Za-z0-9._~+/=-]{6,})`), plausible: oddValue,
		},
		{
			kind: "BASIC_AUTH", keywords: []string{"basic"},
			expression: expression(`(?i)\bbasic[ \t]{1,8}([A-Za-z0-9+/]{6,}={0,2})`), plausible: oddValue,
		},
		{
			kind: "API_KEY", keywords: []string{"sk-", "sk_", "rk-", "rk_", "nvapi", "hf_", "hf-", "xai", "tgp", "ghp", "gho", "ghu", "ghs", "ghr", "durward"},
			expression: expression(`\b((?:sk|rk|nvapi|hf|gsk|xai|tgp|gh[pousr]|durward)[-_][A-Za-z0-9_-]{16,})`), plausible: oddValue,
		},
		{
			kind: "API_KEY", keywords: []string{"aiza"},
			expression: expression(`\b(AIza[A-Za-z0-9_-]{8,})`), plausible: oddValue,
		},
	}
}

func expression(source string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(source) })
}

func oddValue(text string, _, value [2]int) bool { return odd(text[value[0]:value[1]]) }

// odd reports whether a word is none of a language's: it has a digit, or capitals within.
func odd(word string) bool {
	for i, r := range word {
		if unicode.IsDigit(r) || i > 0 && unicode.IsUpper(r) || strings.ContainsRune("=+/", r) {
			return true
		}
	}
	return false
}
