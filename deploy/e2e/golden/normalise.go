package golden

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// shapes are values that differ from run to run and are known by their form alone. A kind that is numbered keeps equal values equal;
// the others are times and amounts, of which two may be equal by chance.
var shapes = []struct {
	kind     string
	numbered bool
	pattern  string
}{
	{"TIME", false, `\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?: ?Z\b| ?UTC\b|[+-]\d\d:\d\d\b)?`},
	{"CLOCK", false, `\b\d\d:\d\d:\d\d(?:\.\d+)?\b`},
	{"REQUEST", true, `\br-[a-z2-7]{26}\b`},
	{"SESSION", true, `\bs-[a-z2-7]{16,}\b`},
	{"REFERENCE", true, `\btkn_[a-z2-7]{26}\b`},
	{"TOKEN", true, `\bdurward_[A-Za-z0-9_-]{20,}`},
	{"FINGERPRINT", true, `\bSHA256:[A-Za-z0-9+/]{43}=?`},
	{"DIGEST", true, `\b[0-9a-f]{64}\b`},
	{"ID", true, `\b[0-9a-f]{32}\b`},
	{"PLAN", true, `\b[0-9a-f]{12}\b`},
	{"SHORT", true, `\b[0-9a-f]{4}(?:·[0-9a-f]{4})+`},
	{"PUBLIC_KEY", true, `\bAAAAC3NzaC1[A-Za-z0-9+/]{57,}={0,2}`},
	{"BYTES", true, `[A-Za-z0-9+/]{120,}={0,2}|[A-Za-z0-9+/]{43}=`},
}

// Normaliser replaces what differs from run to run by placeholders that say what stood there. It is not safe for concurrent use.
type Normaliser struct {
	literals map[string]string // value to the whole placeholder, or to a kind that is numbered
	extra    [][2]string       // kind, pattern
}

// Is has a value replaced by <NAME>, wherever it stands.
func (n *Normaliser) Is(value, name string) { n.know(value, "<"+name+">") }

// IsA has a value replaced by <KIND1>, <KIND2>…, in the order in which the values of the kind appear.
func (n *Normaliser) IsA(value, kind string) { n.know(value, kind) }

func (n *Normaliser) know(value, as string) {
	if n.literals == nil {
		n.literals = map[string]string{}
	}
	n.literals[value] = as
}

// Like has what a pattern matches replaced by <NAME>. A pattern with a group replaces the group alone.
func (n *Normaliser) Like(pattern, name string) { n.extra = append(n.extra, [2]string{name, pattern}) }

// Text returns a text with its placeholders. Two or more spaces behind a value are the gap of a table: they grow or shrink by what the
// placeholder is shorter or longer than the value, so that columns stay under each other.
func (n *Normaliser) Text(text string) string {
	for _, e := range n.extra {
		text = replaceGroup(regexp.MustCompile(e[1]), text, "<"+e[0]+">")
	}
	// The longest first: a folder's path begins the paths of what lies in it.
	longest := func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) }
	var patterns []string
	for _, value := range slices.SortedFunc(maps.Keys(n.literals), longest) {
		pattern := regexp.QuoteMeta(value)
		if word(value[0]) {
			pattern = `\b` + pattern
		}
		if word(value[len(value)-1]) {
			pattern += `\b`
		}
		patterns = append(patterns, pattern)
	}
	for _, s := range shapes {
		patterns = append(patterns, s.pattern)
	}
	numbers, counts := map[string]string{}, map[string]int{}
	number := func(kind, value string) string {
		if _, ok := numbers[value]; !ok {
			counts[kind]++
			numbers[value] = fmt.Sprintf("<%s%d>", kind, counts[kind])
		}
		return numbers[value]
	}
	return regexp.MustCompile(`(?:`+strings.Join(patterns, "|")+`)(?: {2,})?`).ReplaceAllStringFunc(text, func(match string) string {
		value := strings.TrimRight(match, " ")
		return pad(n.placeholder(value, number), utf8.RuneCountInString(match), len(match)-len(value))
	})
}

func (n *Normaliser) placeholder(value string, number func(kind, value string) string) string {
	if as, ok := n.literals[value]; ok {
		if strings.HasPrefix(as, "<") {
			return as
		}
		return number(as, value)
	}
	for _, s := range shapes {
		if at := regexp.MustCompile(s.pattern).FindString(value); at == value {
			if s.numbered {
				return number(s.kind, value)
			}
			return "<" + s.kind + ">"
		}
	}
	return value
}

// pad fills a placeholder up to a width if a gap stood behind the value; a gap has two spaces at least.
func pad(placeholder string, width, gap int) string {
	if gap == 0 {
		return placeholder
	}
	return placeholder + strings.Repeat(" ", max(2, width-len(placeholder)))
}

func word(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// replaceGroup replaces the first group of each match, or the whole match of a pattern without groups, with the gap behind it.
func replaceGroup(re *regexp.Regexp, text, with string) string {
	var b strings.Builder
	last := 0
	for _, m := range re.FindAllStringSubmatchIndex(text, -1) {
		from, to := m[0], m[1]
		if len(m) > 2 && m[2] >= 0 {
			from, to = m[2], m[3]
		}
		end := to
		for end < len(text) && text[end] == ' ' {
			end++
		}
		if end-to < 2 {
			end = to
		}
		b.WriteString(text[last:from])
		b.WriteString(pad(with, utf8.RuneCountInString(text[from:end]), end-to))
		last = end
	}
	b.WriteString(text[last:])
	return b.String()
}
