package token

import (
	"encoding/base64"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/reference"
)

// kind is what a value is.
type kind struct {
	class reference.Class
	// name is a type of personal data, or a kind of secret.
	name string
}

// span is a value in a text, in bytes.
type span struct {
	From, To int
	kind
}

// merge sorts spans and joins those that overlap. What is joined is a secret where a part is, and has the name of the longest such part.
func merge(spans []span) []span {
	slices.SortStableFunc(spans, func(a, b span) int {
		if a.From != b.From {
			return a.From - b.From
		}
		return b.To - a.To
	})
	var out []span
	length := 0 // of the span that gave the last one its kind
	for _, s := range spans {
		last := len(out) - 1
		if last < 0 || s.From >= out[last].To {
			out, length = append(out, s), s.To-s.From
			continue
		}
		o, n := &out[last], s.To-s.From
		o.To = max(o.To, s.To)
		if s.class == o.class && n > length || s.class == reference.Secret && o.class != reference.Secret {
			o.kind, length = s.kind, n
		}
	}
	return out
}

// view is a text as it reads: as it stands, or once decoded.
type view struct {
	text  string
	spans []span
	// from is where each byte of it begins in the text that it is decoded from; nil: it is that text.
	from []int32
	// whole: it is decoded from this run of base64, which is replaced as one.
	whole *span
}

// back returns the view's spans where they stand in the text.
func (w view) back(text string) []span {
	switch {
	case w.whole != nil:
		if len(w.spans) == 0 {
			return nil
		}
		all := slices.Clone(w.spans)
		for i := range all {
			all[i].From, all[i].To = 0, 1 // one value, whatever they are together
		}
		return []span{{w.whole.From, w.whole.To, merge(all)[0].kind}}
	case w.from != nil:
		out := slices.Clone(w.spans)
		for i, s := range out {
			out[i].From, out[i].To = int(w.from[s.From]), len(text)
			if s.To < len(w.from) {
				out[i].To = int(w.from[s.To])
			}
		}
		return out
	}
	return w.spans
}

// viewsOf are the text as it stands and, one level deep, with the escapes of JSON and of URLs decoded, and each run of base64 that is
// text. Their bytes together are no more than three times the text's.
func viewsOf(text string) []view {
	out := []view{{text: text}}
	if v, ok := unescaped(text); ok {
		out = append(out, v)
	}
	return append(out, base64Views(text)...)
}

// unescaped decodes \uXXXX, \xXX, \/ and \" as JSON and programs write them, and %XX and + as URLs have them, and knows where each byte came from. Both are decoded
// together: a text that mixes them was made by nobody who could be hurt by that.
func unescaped(text string) (view, bool) {
	plus := strings.Contains(text, "=") // as in a query, where it is a space
	if !strings.ContainsAny(text, `\%`) && (!plus || !strings.Contains(text, "+")) {
		return view{}, false
	}
	var b strings.Builder
	from, changed := make([]int32, 0, len(text)), false
	for at := 0; at < len(text); {
		r, n := escape(text[at:])
		if text[at] == '+' && plus && at > 0 && wordByte(text[at-1]) {
			r, n = ' ', 1
		}
		if n == 0 {
			b.WriteByte(text[at])
			from = append(from, int32(at)) // #nosec G115 -- a text is 1 MiB at most
			at++
			continue
		}
		changed = true
		if (r < utf8.RuneSelf || text[at] == '\\') && unseen(r) {
			at += n + len(colour().FindString(text[at+n:min(at+n+maxColour, len(text))]))
			continue
		}
		if r == '\\' && strings.HasPrefix(text[at+n:], `"`) {
			// It escapes nothing: the quote is that of the text which it is the end of. Decoded, it would take the quote for its own.
			b.WriteString(`\\`)
			from = append(from, int32(at), int32(at+n)) // #nosec G115 -- as above
			at += n
			continue
		}
		before := b.Len()
		if r < utf8.RuneSelf || text[at] == '\\' {
			b.WriteRune(r)
		} else {
			b.WriteByte(byte(r)) // #nosec G115 -- two hexadecimal digits: a byte of UTF-8
		}
		for range b.Len() - before {
			from = append(from, int32(at)) // #nosec G115 -- as above
		}
		at += n
	}
	return view{text: b.String(), from: from}, changed
}

// unseen reports whether a character parts nothing for who reads a text.
func unseen(r rune) bool { return !unicode.IsSpace(r) && unicode.In(r, unicode.Cc, unicode.Cf) }

// colour is what follows the escape of a colour, in maxColour bytes.
var colour = pattern.New(`^\[[0-9;]*m`)

const maxColour = 24

// escape is the character that a text begins with the escape of, and how long that is; 0 where it begins with none.
func escape(s string) (rune, int) {
	if len(s) < 2 {
		return 0, 0
	}
	switch {
	case s[0] == '%':
		if v, ok := hexValue(s, 1, 2); ok {
			return v, 3
		}
	case s[0] != '\\':
	case s[1] == 'u':
		if v, ok := hexValue(s, 2, 4); ok {
			return v, 6
		}
	case s[1] == 'x':
		if v, ok := hexValue(s, 2, 2); ok {
			return v, 4
		}
	case s[1] == '/' || s[1] == '"' || s[1] == '\\':
		return rune(s[1]), 2
	case s[1] == 'n' || s[1] == 'r' || s[1] == 't':
		return ' ', 2
	}
	return 0, 0
}

// unescape moves the beginning of personal data behind the escapes that it seems to begin in: the n of `\nada@example.org` is none of the
// address', nor the 20 of %20ada@example.org.
func unescape(text string, s span) span {
	for {
		at := s.From
		for at > 0 && text[at-1] == '\\' {
			at--
		}
		at = s.From - (s.From-at)%2 // of two backslashes the second is the first's
		if at > 0 && at == s.From && text[at-1] == '%' {
			at--
		}
		r, n := escape(text[at:])
		if n == 0 || at+n >= s.To || text[at] == '%' && (r >= utf8.RuneSelf || wordByte(byte(r))) { // #nosec G115 -- below 0x80
			return s
		}
		s.From = at + n
	}
}

func hexValue(s string, from, n int) (v rune, ok bool) {
	if len(s) < from+n {
		return 0, false
	}
	for _, c := range []byte(s[from : from+n]) {
		switch {
		case c >= '0' && c <= '9':
			v = v<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			v = v<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return v, true
}

// minEncoded is how long a run of base64 is that is decoded: shorter ones hold no value.
const minEncoded = 12

// base64Views decodes what is base64 of a text, in either alphabet, padded or not.
func base64Views(text string) (out []view) {
	for from := 0; from < len(text); {
		if !base64Byte(text[from]) {
			from++
			continue
		}
		to := from
		for to < len(text) && base64Byte(text[to]) {
			to++
		}
		run := text[from:to]
		end := to
		for end < len(text) && text[end] == '=' && end-to < 2 {
			end++
		}
		if len(run) >= minEncoded && len(run)%4 != 1 {
			coding := base64.RawStdEncoding
			if strings.ContainsAny(run, "-_") {
				coding = base64.RawURLEncoding
			}
			if plain, err := coding.DecodeString(run); err == nil && readable(plain) {
				out = append(out, view{text: string(plain), whole: &span{From: from, To: end}})
			}
		}
		from = end
	}
	return out
}

func base64Byte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+' || c == '/' || c == '-' || c == '_'
}

// readable reports whether bytes are text, which few that were not encoded are.
func readable(b []byte) bool {
	for i, c := range b {
		if c < ' ' && c != '\n' && c != '\t' && c != '\r' || c == 0x7f {
			return false
		}
		if i == 8 && !utf8.Valid(b[:4]) {
			break
		}
	}
	return utf8.Valid(b)
}
