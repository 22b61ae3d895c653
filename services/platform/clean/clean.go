// Package clean makes text from elsewhere safe to show: names, errors, descriptions, an agent's reasons. Every process
// links it; it trusts nothing that it is given. Nothing here decides anything: a value that is decided on is validated by
// the contract, and only what is shown is cleaned.
//
// What is removed (SEC-E1, SEC-E3): escape sequences and control strings in their 7-bit and 8-bit forms (ESC, CSI, OSC, DCS,
// SOS, PM, APC), C0 and C1 controls, DEL, bidirectional overrides, zero-width, tag and other invisible characters,
// private-use and non-characters, invalid UTF-8, and Rich console markup such as [bold red]. Text that has none of it is
// returned as it is, without allocating.
package clean

import (
	"fmt"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ellipsis marks a cut text; it counts as one character.
const ellipsis = '…'

// Whole is the max of a text that is not cut.
const Whole = math.MaxInt

// Text returns s without hostile characters, at most max characters (runes) long. Line breaks, tabs and unusual spaces
// become plain spaces. A text that is cut ends in "…". Text(Text(s)) == Text(s).
func Text(s string, max int) string { return cut(scrub(s, asText), max) }

// Block is Text for text of several lines: newlines and tabs stay, CR LF and a lone CR become a newline.
func Block(s string, max int) string { return cut(scrub(s, asBlock), max) }

// Line is Text with runs of spaces folded into one and none at either end: a name, a title, one line of a list.
func Line(s string, max int) string { return cut(strings.TrimRight(scrub(s, asLine), " "), max) }

// Visible returns s with every hostile character shown as an escape, \u{202E}, and an invalid byte as \x{FF}: what a
// person who approves must see. Nothing is dropped, and different texts look different: a backslash that would begin
// such an escape is itself shown as \u{5C}. Line breaks and tabs are escaped too.
func Visible(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x{%02X}`, s[i])
		case r == '\\' && (strings.HasPrefix(s[i+1:], "u{") || strings.HasPrefix(s[i+1:], "x{")),
			hostile(r), r != ' ' && unicode.IsSpace(r):
			fmt.Fprintf(&b, `\u{%X}`, r)
		default:
			b.WriteRune(r)
		}
		i += size
	}
	return b.String()
}

// Plain replaces by ? all but letters, digits, spaces and ./_:- of a text for receivers that take markup, mentions or commands from text.
func Plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(" ./_:-", r) {
			return r
		}
		return '?'
	}, s)
}

// hostile reports whether r can hide, reorder or command instead of being read. Spaces and line breaks are not hostile.
func hostile(r rune) bool {
	switch r {
	case '\n', '\t', '\r', '\v', '\f', 0x85, 0x2028, 0x2029:
		return false
	case 0x034F, // combining grapheme joiner
		0x115F, 0x1160, 0x3164, 0xFFA0, // Hangul fillers: letters that show nothing
		0x17B4, 0x17B5, // Khmer inherent vowels: invisible
		0x2065, // unassigned, among the invisible operators
		0x2800: // blank Braille pattern
		return true
	}
	switch {
	case r >= 0x180B && r <= 0x180F, // Mongolian variation selectors and vowel separator
		r >= 0xFE00 && r <= 0xFE0F,                     // variation selectors
		r >= 0xE0000 && r <= 0xE0FFF,                   // tags, more variation selectors, and what is reserved beside them
		r&0xFFFE == 0xFFFE, r >= 0xFDD0 && r <= 0xFDEF: // non-characters
		return true
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs)
}

// layout says what becomes of white space.
type layout int

const (
	asText  layout = iota // each becomes a space
	asBlock               // newlines and tabs stay
	asLine                // runs become one space, none at the start
)

// scrub does the removing. Spaces are folded while writing, not afterwards, so that folding cannot bring together the
// parts of a tag that was too long to be seen as one.
func scrub(s string, as layout) string {
	if wholesome(s, as) {
		return s
	}
	out := make([]byte, 0, len(s))
	unterminated := false // a search for the end of a control string failed: a later one would fail too
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		invalid := r == utf8.RuneError && size == 1
		switch {
		case r == 0x1B, isC1(r), invalid && isC1(rune(s[i])):
			size = escapeLength(s[i:], &unterminated)
		case invalid:
		case hostile(r):
		case r == '\r' && strings.HasPrefix(s[i+1:], "\n"):
		case as == asBlock && (r == '\n' || r == '\t'):
			out = append(out, byte(r))
		case as == asBlock && (r == '\r' || r == 0x85 || r == 0x2028 || r == 0x2029):
			out = append(out, '\n')
		case unicode.IsSpace(r):
			if as != asLine || len(out) > 0 && out[len(out)-1] != ' ' {
				out = append(out, ' ')
			}
		default:
			out = utf8.AppendRune(out, r)
			if r == ']' {
				out = out[:len(out)-markup(out)]
			}
		}
		i += size
	}
	return string(out)
}

// wholesome reports whether s is ASCII that scrub would leave as it is. Almost every text is.
func wholesome(s string, as layout) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c == ' ' && as == asLine && (i == 0 || s[i-1] == ' '):
			return false
		case c == ']':
			if markup(s[max(0, i-maxMarkup-1):i+1]) > 0 {
				return false
			}
		case as == asBlock && (c == '\n' || c == '\t'):
		case c < ' ' || c > '~':
			return false
		}
	}
	return true
}

// isC1 reports whether r is a C1 control; NEL is a line break here.
func isC1(r rune) bool { return r >= 0x80 && r <= 0x9F && r != 0x85 }

// escapeLength returns how many bytes the escape sequence at the start of s takes (ECMA-48): a control sequence, a control
// string with its terminator, or a shorter escape. Of a sequence that is not whole only the introducer is taken, so that
// nothing readable vanishes behind it.
func escapeLength(s string, unterminated *bool) int {
	first, size := utf8.DecodeRuneInString(s)
	if first == utf8.RuneError {
		first = rune(s[0]) // a C1 control as a single byte, as terminals in an 8-bit mode take it
	}
	kind, body := first, size
	if first == 0x1B {
		if len(s) < 2 {
			return size
		}
		// ESC followed by 0x40..0x5F is the 7-bit form of a C1 control.
		if next := rune(s[1]); next >= 0x40 && next <= 0x5F {
			kind, body = next+0x40, 2
		} else {
			return shortEscape(s)
		}
	}
	switch kind {
	case 0x9B: // CSI
		i := body
		for i < len(s) && s[i] >= 0x30 && s[i] <= 0x3F {
			i++
		}
		for i < len(s) && s[i] >= 0x20 && s[i] <= 0x2F {
			i++
		}
		if i < len(s) && s[i] >= 0x40 && s[i] <= 0x7E {
			return i + 1
		}
		return body
	case 0x90, 0x98, 0x9D, 0x9E, 0x9F: // DCS, SOS, OSC, PM, APC
		if *unterminated {
			return body
		}
		for i := body; i < len(s); i++ {
			switch {
			case s[i] == 0x07:
				return i + 1
			case s[i] == 0x1B && i+1 < len(s) && s[i+1] == '\\', s[i] == 0xC2 && i+1 < len(s) && s[i+1] == 0x9C:
				return i + 2
			case s[i] == 0x9C && size == 1 && first != 0x1B: // ends what began with a single byte; elsewhere it is part of a character
				return i + 1
			}
		}
		*unterminated = true
		return body
	default:
		return body
	}
}

// shortEscape measures ESC, intermediate bytes, one final byte: a character set, a reset.
func shortEscape(s string) int {
	i := 1
	for i < len(s) && s[i] >= 0x20 && s[i] <= 0x2F {
		i++
	}
	if i < len(s) && s[i] >= 0x30 && s[i] <= 0x7E {
		return i + 1
	}
	return 1
}

// maxMarkup bounds how long a console tag may be, in bytes without its closing bracket.
const maxMarkup = 128

// markup returns the length of the Rich console tag that ends text, 0 if none does. Looking at what was written, not at the
// input, also catches tags that come together only when something between their parts was removed.
func markup[T string | []byte](text T) int {
	from := max(0, len(text)-maxMarkup-1)
	open := -1
	for i := len(text) - 2; i >= from && open < 0; i-- {
		if text[i] == '[' {
			open = i
		}
	}
	if open < 0 {
		return 0
	}
	tag := text[open+1 : len(text)-1]
	if len(tag) > 0 && len(tag) <= 2 && open > 0 && tag[0] != '/' && indexed(text[open-1]) {
		return 0 // row[i], f(x)[b]: code, not [i]talics
	}
	if !isMarkup(string(tag)) {
		return 0
	}
	return len(text) - open
}

// indexed reports whether a bracket behind c is read as an index.
func indexed(c byte) bool {
	return c == '_' || c == ')' || c == ']' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// isMarkup reports whether the inside of [...] is a tag of Rich's markup: a closing tag, a link or action, or styles and
// colours alone. "[GPU 0]", "[INFO]" and "[1, 2]" are not, nor are words that no style has by themselves: "[default]".
func isMarkup(tag string) bool {
	tag = strings.Trim(tag, " ")
	if tag == "" || (tag[0] < 'a' || tag[0] > 'z') && tag[0] != '#' && tag[0] != '/' && tag[0] != '@' {
		return false // Rich's own rule for how a tag begins
	}
	if tag == "/" || tag[0] == '@' && strings.ContainsAny(tag, "=(") || len(tag) >= 5 && strings.EqualFold(tag[:5], "link=") {
		return true
	}
	if strings.ContainsAny(tag, `-:;'"!?<>*\.=$`) {
		return false
	}
	tag = strings.ToLower(tag)
	inner, closing := strings.CutPrefix(tag, "/")
	styles := 0
	for word := range strings.FieldsSeq(inner) {
		switch {
		case word == "not" || word == "on" || word == "none" || word == "default" || word == "link":
			if closing {
				styles++
			}
		case isStyle(word):
			styles++
		default:
			return false
		}
	}
	return styles > 0
}

func isStyle(word string) bool {
	switch word {
	case "bold", "b", "dim", "d", "italic", "i", "underline", "u", "underline2", "uu", "blink", "blink2", "reverse", "r",
		"conceal", "c", "strike", "s", "overline", "o", "frame", "encircle":
		return true
	}
	if hex, ok := strings.CutPrefix(word, "#"); ok {
		return len(hex) == 6 && strings.Trim(hex, "0123456789abcdef") == ""
	}
	if strings.HasPrefix(word, "rgb(") || strings.HasPrefix(word, "color(") {
		return strings.HasSuffix(word, ")")
	}
	word = strings.TrimPrefix(word, "bright_")
	word = strings.TrimRight(word, "0123456789")
	for _, prefix := range []string{"dark_", "light_", "medium_", "deep_", "pale_", "hot_", "spring_", "sea_", "slate_", "steel_", "indian_", "sky_"} {
		word = strings.TrimPrefix(word, prefix)
	}
	switch word {
	case "black", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "grey", "gray", "orange", "purple",
		"violet", "pink", "turquoise", "orchid", "salmon", "gold", "khaki", "tan", "plum", "thistle", "chartreuse",
		"aquamarine", "cornflower", "navy", "teal", "maroon", "olive", "silver", "lime", "aqua", "fuchsia":
		return true
	}
	return false
}

// cut shortens s to max characters, of which the last says that it was cut.
func cut(s string, max int) string {
	if max <= 0 {
		return ""
	}
	if len(s) <= max || utf8.RuneCountInString(s) <= max {
		return s
	}
	n := 0
	for i := range s {
		if n++; n == max {
			return s[:i] + string(ellipsis)
		}
	}
	return s
}

// pathShapes are absolute paths as an error shows them: two segments, or one that every Unix has, whatever stands before it
// but a word or a URL; one that every Unix has behind a word and a colon, an equals sign or an option; file URLs; drives;
// shares; and paths that climb. Letters of every alphabet make words.
var pathShapes = []string{
	`(?:^|[^\w\pL\pN/.~:%&;?=#-])~?/+(?:[\w\pL\pN.@+~-]+/+[\w\pL\pN.@+~-]+|` + roots + `\b)`,
	`(?:^|[\w\pL\pN"'])[=:]/+` + roots + `/`,
	`(?:^|[\s"'(=,])--?\w+/+` + roots + `/`,
	`(?i)\bfile:/`,
	`(?:^|[^A-Za-z0-9])[A-Za-z]:[\\/]+[\w\pL]`,
	`\\\\[\w\pL\pN.-]+\\[\w\pL\pN.$-]+`,
	`(?:^|[\s"'(=:])(?:\.\.?/)+[\w.-]+/[\w.-]`,
}

const roots = `(?:etc|tmp|home|root|usr|var|proc|sys|dev|opt|mnt|run|srv|bin|sbin|lib|lib64|boot|work|Users|private)`

var shownPath = oneOf(pathShapes...)

// ShowsPath reports whether a text shows a path of a file system, by the shapes that Leaks goes by.
func ShowsPath(s string) bool { return shownPath().MatchString(s) }
