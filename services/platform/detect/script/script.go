// Package script tells what of a text beyond ASCII is written with letters and blanks between words, and what stands by itself.
package script

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// joined are the signs beyond ASCII that names, houses and addresses are written with; an apostrophe is one before a letter.
const joined, apostrophe = "’º°ª", '’'

// unspaced are scripts whose words stand without blanks between them, and beside what is of another script.
var unspaced = []*unicode.RangeTable{unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar}

// Apart is a text with a byte that belongs to nothing in the place of each byte of what stands between words beyond ASCII: “ ” « » – • …, blanks
// that do not break, and whatever is of a script that has no blanks. What is left beyond ASCII may be taken for letters. It is as long as the
// text, so that places in one are places in the other.
func Apart(text string) string {
	const nothing = 0x1f
	var out []byte
	for i := 0; i < len(text); {
		if text[i] < utf8.RuneSelf {
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		next, _ := utf8.DecodeRuneInString(text[i+n:])
		belongs := strings.ContainsRune(joined, r) && (r != apostrophe || unicode.IsLetter(next))
		if r != utf8.RuneError && !belongs && (!unicode.In(r, unicode.L, unicode.M, unicode.N) || unicode.In(r, unspaced...)) {
			if out == nil {
				out = []byte(text)
			}
			for k := range n {
				out[i+k] = nothing
			}
		}
		i += n
	}
	if out == nil {
		return text
	}
	return string(out)
}
