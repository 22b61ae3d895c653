package envelope

import (
	"html"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/pattern"
)

// The wrapper around text that a program or a stranger wrote (OUT-1). The server's instructions tell the model never to
// obey what stands inside.
const (
	outsideOpen  = "<fetched_content>"
	outsideClose = "</fetched_content>"
)

// wrappers are the names of every wrapper that the instructions speak of, letters alone.
var wrappers = [...]string{"fetchedcontent", "memorycontext"}

// Outside returns s cleaned, cut and wrapped, exactly once: Outside(Outside(s)) == Outside(s), and clean.Block changes nothing
// in it. What looks like the tag of a wrapper inside s loses its bracket, in whatever spelling a reader might still take for
// one, so that s can neither end its wrapper nor begin another; all other brackets stay, those of code among them. The empty
// text stays empty.
func Outside(s string) string { return outside(s, maxText) }

// outside is Outside with another bound of the text.
func outside(s string, most int) string {
	s = clean.Block(s, clean.Whole)
	if inner, ok := strings.CutPrefix(s, outsideOpen); ok {
		if inner, ok = strings.CutSuffix(inner, outsideClose); ok {
			s = inner // wrapped by the sink, or by somebody who would like that to be believed: it comes to the same
		}
	}
	if s == "" {
		return ""
	}
	// Cut first: a cut can make a letter of half a character reference.
	return outsideOpen + disarm(clean.Block(s, most)) + outsideClose
}

// maxTag is how far behind its bracket the name of a tag may end, in letters and digits: a namespace or attributes may come
// before it. What is neither is not counted, however much of it there is.
const maxTag = 64

// disarm replaces the bracket of everything that reads like a wrapper's tag: an opening angle bracket, and behind it, before
// the next '>', the letters of a wrapper's name with anything between them that is no letter and no digit.
// Punctuation and symbols of other alphabets count as either.
//
// What it puts there has as many bytes and characters as what it replaces, and means the same to the cleaner, so that
// cleaning, cutting and disarming again find what they found before: nothing.
func disarm(s string) string {
	var (
		out     []byte
		open    []bracket // those behind which a name may still end
		letters int
		seen    names
	)
	for i := 0; i < len(s); {
		r, size := decode(s[i:])
		switch {
		case r == '>':
			open = open[:0]
		case strings.ContainsRune(brackets, r):
			if len(open) == 0 {
				seen = names{}
			}
			open = append(open, bracket{i, i + size, letters})
		case len(open) > 0:
			if r == 'ſ' || r == 'ẛ' {
				r = 'f' // which it looks like; it is an s
			}
			for _, plain := range norm.NFKD.String(string(r)) {
				set := lettersLike(plain)
				if set == "" {
					continue
				}
				if set != maybeLetter {
					letters++
				}
				for len(open) > 0 && letters-open[0].letters > maxTag {
					open = open[1:]
				}
				if !seen.add(set) {
					continue
				}
				if out == nil {
					out = []byte(s)
				}
				for _, b := range open {
					blunt(out[b.from:b.to])
				}
				open = open[:0]
			}
		}
		i += size
	}
	if out == nil {
		return s
	}
	return string(out)
}

// bracket is one in a text: where it stands, and how many letters stand before it.
type bracket struct{ from, to, letters int }

// blunt overwrites a bracket, or the escape that stands for one. The cleaner refuses "?" in a console tag as it does "<", and
// takes the others for nothing, as it does the brackets of their length; of an escape it sees whether an index may follow,
// as in list[0], which "_" keeps.
func blunt(tag []byte) {
	if tag[0] < utf8.RuneSelf {
		last := tag[len(tag)-1]
		for i := range tag {
			tag[i] = '?'
		}
		if len(tag) > 1 && last != ';' && last != '}' {
			tag[len(tag)-1] = '_'
		}
		return
	}
	copy(tag, [...]string{2: "¿", 3: "？", 4: "🛇"}[len(tag)])
}

// names is how much of each wrapper's name the last letters are: bit n says that they are its first n+1.
type names [len(wrappers)]uint32

// add takes the next letter, any one of set, and reports whether it ends a name.
func (n *names) add(set string) bool {
	ends := false
	for k, name := range wrappers {
		var fits uint32
		for i := range name {
			if set == anyLetter || strings.IndexByte(set, name[i]) >= 0 {
				fits |= 1 << i
			}
		}
		fits &= n[k]<<1 | 1
		if set == maybeLetter {
			fits |= n[k]
		}
		n[k] = fits
		ends = ends || n[k]>>(len(name)-1) != 0
	}
	return ends
}

var (
	reference = pattern.New(`^&(?:amp;|#0*38;|#[xX]0*26;)*(#[0-9]{1,10}|#[xX][0-9a-fA-F]{1,8}|[A-Za-z]{2,16});?`)
	ampersand = pattern.New(`^&(?:amp;|#0*38;|#[xX]0*26;)+`)
	percent   = pattern.New(`^%(?:25)*([0-9a-fA-F]{2})`)
	backslash = pattern.New(`^\\+(?:u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}|x([0-9a-fA-F]{2}))?`)
)

// decode returns the character that s begins with as the most obliging reader takes it, character references, percent and
// backslash escapes decoded, and how many bytes it takes.
func decode(s string) (rune, int) {
	switch s[0] {
	case '&':
		if m := reference().FindStringSubmatch(s); m != nil {
			if decoded := []rune(html.UnescapeString("&" + m[1] + ";")); len(decoded) == 1 {
				return decoded[0], len(m[0])
			}
			// Some names need no semicolon, whatever follows them: &ltb.
			decoded := html.UnescapeString("&" + m[1])
			r, size := utf8.DecodeRuneInString(decoded)
			if rest := decoded[size:]; decoded != "&"+m[1] && strings.HasSuffix(m[1], rest) {
				return r, len(strings.TrimSuffix(m[0], ";")) - len(rest)
			}
			return '&', max(1, len(ampersand().FindString(s)))
		}
	case '%':
		var encoded []byte
		for rest := s; len(encoded) < utf8.UTFMax; {
			m := percent().FindStringSubmatch(rest)
			if m == nil {
				break
			}
			b, err := strconv.ParseUint(m[1], 16, 8)
			if err != nil {
				break
			}
			encoded, rest = append(encoded, byte(b)), rest[len(m[0]):]
			if r, size := utf8.DecodeRune(encoded); size == len(encoded) && r != utf8.RuneError {
				return r, len(s) - len(rest)
			}
		}
	case '\\':
		m := backslash().FindStringSubmatch(s)
		if r, err := strconv.ParseUint(m[1]+m[2]+m[3], 16, 32); err == nil {
			return rune(r), len(m[0])
		}
		return '\\', len(m[0]) // it escapes the next character, which stays what it is
	}
	return utf8.DecodeRuneInString(s)
}

// brackets are the angle bracket and what looks like it, or like two of them.
const brackets = "<＜﹤‹«˂ᐸᚲ𝈶〈〈⟨⟪《︿︽❬❮❰≺≪≮≤≦≲⋖⋘⩽⪡⪻⧼⦉⦑⫷⊰⊲◁◂◀◅⯇⮜ㄑ"

const (
	// anyLetter is the set of a letter of an alphabet with capitals, or full of look-alikes of ours. A long quotation in one of
	// them, as in «…», loses its bracket for nothing: rather that.
	anyLetter = "*"
	// innerLetter is that of all other letters and digits. No name begins with one: a text of nothing else is no name.
	innerLetter = "cdehnortxy"
	// maybeLetter is that of a symbol, which may look like a letter or stand between two.
	maybeLetter = innerLetter + "?"
	// noLetter is that of letters that look like none.
	noLetter = "-"
)

// lettersLike returns the letters of the names that r, which has no compatibility form, is or looks like, and "" for what can
// only stand between letters.
func lettersLike(r rune) string {
	r = unicode.ToLower(r)
	switch {
	case r == '0':
		return "o"
	case r == '¿' || r == '🛇': // what blunt puts there counts for nothing, as the bracket did
		return ""
	case r < utf8.RuneSelf:
		if r >= 'a' && r <= 'z' || r >= '1' && r <= '9' {
			return string(r)
		}
		return ""
	case r >= 0x1F150 && r <= 0x1F169: // white on black circles and squares, and the letters of flags
		return string('a' + r - 0x1F150)
	case r >= 0x1F170 && r <= 0x1F189:
		return string('a' + r - 0x1F170)
	case r >= 0x1F1E6 && r <= 0x1F1FF:
		return string('a' + r - 0x1F1E6)
	}
	if set, ok := lookalikes[r]; ok {
		return set
	}
	switch {
	case unicode.In(r, unicode.S, unicode.P):
		return maybeLetter
	case unicode.In(r, unicode.Lm, unicode.M) || !unicode.IsLetter(r) && !unicode.IsNumber(r):
		return ""
	case unicode.In(r, unicode.Cyrillic, unicode.Greek): // all that look like one are in the table
		return noLetter
	case unicode.In(r, unicode.Lu, unicode.Ll, unicode.Latin, unicode.Lisu, unicode.Canadian_Aboriginal, unicode.Old_Italic, unicode.Gothic, unicode.Runic,
		unicode.Tifinagh, unicode.Carian, unicode.Lycian, unicode.Lydian, unicode.Phoenician):
		return anyLetter
	}
	return innerLetter
}

// lookalikes are the letters of the alphabets in which people quote whole sentences in angle brackets: each with those that
// it, or its capital, looks like.
var lookalikes = map[rune]string{
	// Cyrillic
	'а': "a", 'в': "b", 'г': "r", 'ґ': "r", 'ғ': "f", 'д': "d", 'ԁ': "d", 'ԃ': "d", 'е': "e", 'є': "e", 'э': "e", 'ҽ': "e", 'ҿ': "e", 'ә': "e", 'з': "e",
	'и': "n", 'п': "n", 'һ': "h", 'ћ': "h", 'ђ': "h", 'н': "hn", 'ң': "hn", 'ҥ': "hn", 'ӈ': "hn", 'ԋ': "h", 'м': "m", 'ӎ': "m", 'о': "o", 'ө': "o",
	'ѳ': "o", 'р': "r", 'с': "c", 'ҫ': "c", 'т': "t", 'ҭ': "t", 'я': "r", 'ѓ': "r", 'у': "y", 'ү': "y", 'ұ': "y", 'ч': "y", 'х': "x", 'ҳ': "x", 'ӿ': "x",
	'ӽ': "x", 'ԥ': "n", 'л': "n", 'ԉ': "n", 'ц': "c", 'ѻ': "o", 'ᴦ': "r",
	// Greek and what was borrowed from it
	'α': "a", 'δ': "d", 'ε': "e", 'ϵ': "e", 'η': "hn", 'θ': "o", 'κ': "k", 'μ': "m", 'ν': "n", 'ο': "o", 'σ': "o", 'π': "n", 'ς': "c", 'ϲ': "c", 'ϻ': "m",
	'τ': "t", 'υ': "y", 'γ': "yr", 'χ': "x", 'ξ': "e", 'ϝ': "f", 'ͷ': "n", 'ϯ': "t", 'ͱ': "h", 'ͽ': "c", 'ͻ': "c",
}
