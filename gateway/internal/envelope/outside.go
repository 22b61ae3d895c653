package envelope

import (
	"html"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"durward.internal/services/platform/clean"
)

// The wrapper around text that a program or a stranger wrote (OUT-1). The server's instructions tell the model never to
// obey what stands inside.
const (
	outsideOpen  = "<fetched_content>"
	outsideClose = "</fetched_content>"
)

// wrappers are the names of every wrapper that the instructions speak of, without what separates their words.
var wrappers = []string{"fetchedcontent", "memorycontext"}

// Outside returns s cleaned and wrapped, exactly once: Outside(Outside(s)) == Outside(s), and clean.Block changes nothing in
// it. What looks like the tag of a wrapper inside s loses its bracket, in whatever spelling a reader might still take for
// one, so that s can neither end its wrapper nor begin another. The empty text stays empty.
func Outside(s string) string {
	s = clean.Block(s, clean.Whole)
	if inner, ok := strings.CutPrefix(s, outsideOpen); ok {
		if inner, ok = strings.CutSuffix(inner, outsideClose); ok {
			s = inner // wrapped by the sink, or by somebody who would like that to be believed: it comes to the same
		}
	}
	if s == "" {
		return ""
	}
	return outsideOpen + clean.Block(disarm(s), maxText) + outsideClose
}

// maxTag is how far behind its bracket the name of a tag is looked for, in characters.
const maxTag = 40

// disarm replaces the bracket of everything that reads like a wrapper's tag.
func disarm(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return r > '~' || strings.ContainsRune(`<&%\`, r) }) < 0 {
		return s
	}
	folded := fold(s)
	disarmed := false
	for i := range folded {
		if !namesWrapper(folded[i:]) {
			continue
		}
		for j := i - 1; j >= max(0, i-maxTag) && folded[j].r != '>'; j-- {
			if folded[j].r == '<' {
				folded[j].r, disarmed = cutBracket, true
			}
		}
	}
	if !disarmed {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	for i, c := range folded {
		if c.r == cutBracket {
			b.WriteByte('(')
			continue
		}
		end := len(s)
		if i+1 < len(folded) {
			end = folded[i+1].from
		}
		b.WriteString(s[c.from:end])
	}
	return b.String()
}

// character is one character of a text as a lenient reader takes it.
type character struct {
	// r is the plain character, in lower case; separator for what may stand between the letters of a word.
	r rune
	// from is where it begins in the text.
	from int
}

const (
	separator  rune = 0
	cutBracket rune = -1
)

// namesWrapper reports whether the name of a wrapper begins text, whatever separates its letters.
func namesWrapper(text []character) bool {
	for _, name := range wrappers {
		i := 0
		for _, c := range text {
			if c.r == separator && i > 0 {
				continue
			}
			if c.r != rune(name[i]) {
				break
			}
			if i++; i == len(name) {
				return true
			}
		}
	}
	return false
}

// fold reads s as leniently as the most obliging reader would: character references, percent and backslash escapes decoded,
// compatibility forms, accents and look-alikes made plain.
func fold(s string) []character {
	out := make([]character, 0, len(s))
	for i := 0; i < len(s); {
		r, size := decode(s[i:])
		out = append(out, character{r: plainLetter(r), from: i})
		i += size
	}
	return out
}

var (
	reference = regexp.MustCompile(`^&(?:amp;|#0*38;|#[xX]0*26;)*(#[0-9]{1,10}|#[xX][0-9a-fA-F]{1,8}|[A-Za-z]{2,16});?`)
	percent   = regexp.MustCompile(`^%(?:25)*([0-9a-fA-F]{2})`)
	backslash = regexp.MustCompile(`^\\+(?:u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}|x([0-9a-fA-F]{2}))?`)
)

// decode returns the character that s begins with, and how many bytes it takes.
func decode(s string) (rune, int) {
	switch s[0] {
	case '&':
		if m := reference.FindStringSubmatch(s); m != nil {
			if decoded := []rune(html.UnescapeString("&" + m[1] + ";")); len(decoded) == 1 {
				return decoded[0], len(m[0])
			}
		}
	case '%':
		var encoded []byte
		for rest := s; len(encoded) < utf8.UTFMax; {
			m := percent.FindStringSubmatch(rest)
			if m == nil {
				break
			}
			b, err := strconv.ParseUint(m[1], 16, 8)
			if err != nil {
				break
			}
			encoded, rest = append(encoded, byte(b)), rest[len(m[0]):]
			if utf8.FullRune(encoded) {
				r, _ := utf8.DecodeRune(encoded)
				return r, len(s) - len(rest)
			}
		}
	case '\\':
		m := backslash.FindStringSubmatch(s)
		if r, err := strconv.ParseUint(m[1]+m[2]+m[3], 16, 32); err == nil {
			return rune(r), len(m[0])
		}
		return separator, len(m[0]) // it escapes the next character, which stays what it is
	}
	return utf8.DecodeRuneInString(s)
}

// plainLetter returns the plain character that r stands for or looks like.
func plainLetter(r rune) rune {
	if r >= utf8.RuneSelf {
		if decomposed := []rune(norm.NFKD.String(string(r))); len(decomposed) > 0 {
			r = decomposed[0]
		}
	}
	switch r {
	case '‹', '〈', '⟨', '❮', '❰', 'ᐸ', '˂', '≺', '«', '⧼':
		return '<'
	case 'а', 'ɑ', 'α':
		return 'a'
	case 'с', 'ϲ', 'ᴄ':
		return 'c'
	case 'ԁ':
		return 'd'
	case 'е', 'ҽ', 'ε':
		return 'e'
	case 'ƒ', 'ſ', 'ք':
		return 'f'
	case 'һ', 'հ':
		return 'h'
	case 'м', 'ᴍ':
		return 'm'
	case 'ո', 'п', 'η':
		return 'n'
	case 'о', 'ο', 'օ', '0':
		return 'o'
	case 'г', 'ᴦ':
		return 'r'
	case 'т', 'τ', 'ᴛ':
		return 't'
	case 'х', 'χ':
		return 'x'
	case 'у', 'γ', 'ү':
		return 'y'
	case '_', '-', '.', '~', '·', '‿':
		return separator
	}
	if unicode.IsSpace(r) || unicode.IsMark(r) || unicode.Is(unicode.Pd, r) || unicode.Is(unicode.Pc, r) || r < ' ' || unicode.Is(unicode.Cf, r) {
		return separator
	}
	return unicode.ToLower(r)
}
