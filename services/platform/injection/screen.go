// Package injection finds the phrases by which people are known to take agents over: in messages, where anybody may write to an agent
// (MSG-1, the gateway), and in what a stranger's MCP server says of itself (package downstream). It trusts nothing, and it is no proof
// of anything: it lowers the odds, beside the checks that hold whatever a text says, and a text that was written to get round it will.
package injection

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	ahocorasick "github.com/BobuSumisu/aho-corasick"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// MaxText is the longest text that a message may hold, in characters.
const MaxText = 4000

// MaxArguments is how many bytes of arguments are looked at: more than any tool takes of texts that people write.
const MaxArguments = 64 << 10

// maxFolded bounds, in bytes, what texts become in the form in which they are compared. The longest of a living script
// triples; there are single characters that stand for a sentence.
const maxFolded = 4 * MaxArguments

// Finding says what is wrong with a message.
type Finding struct {
	// Member is the argument in which it is, as it was sent: untrusted. Empty if the arguments are no object.
	Member string
	// Class says what a known phrase tries, in one of our own words. Empty: the text is too long, or all of them together.
	Class string
}

// Screen finds known phrases. It is safe for concurrent use. It builds what it needs when it is first used, since most
// gateways have no client on a messaging channel.
type Screen struct {
	matcher func() *matcher
}

// New returns a Screen.
func New() *Screen { return &Screen{matcher: sync.OnceValue(newMatcher)} }

// Arguments looks at every string of a tool's arguments, names of members included, and returns the first finding. A text
// that is too long is one, but for the member named cut, of which only the first MaxText characters count: it is cut and
// not refused. So are more than MaxArguments bytes, of which it reads nothing.
func (s *Screen) Arguments(raw json.RawMessage, cut string) (Finding, bool) {
	if len(raw) > MaxArguments {
		return Finding{}, true
	}
	m := s.matcher()
	dec := jsontext.NewDecoder(bytes.NewReader(raw))
	var member string
	folded := 0
	for {
		token, err := dec.ReadToken()
		if err != nil {
			// The end, or something that the contract will refuse.
			return Finding{}, false
		}
		if token.Kind() != jsontext.KindString {
			continue
		}
		text := token.String()
		kind, length := dec.StackIndex(dec.StackDepth())
		if name := kind == jsontext.KindBeginObject && length%2 == 1; name && dec.StackDepth() == 1 {
			member = text
		}
		if utf8.RuneCountInString(text) > MaxText {
			if member != cut || dec.StackDepth() != 1 {
				return Finding{Member: member}, true
			}
			text = string([]rune(text)[:MaxText])
		}
		plain := m.fold(text)
		if folded += len(plain); folded > maxFolded {
			return Finding{Member: member}, true
		}
		if found := m.phrase(plain); found != "" {
			return Finding{Member: member, Class: found}, true
		}
	}
}

// Text returns the class of the first known phrase in a text, or nothing.
func (s *Screen) Text(text string) string {
	m := s.matcher()
	return m.phrase(m.fold(text))
}

// matcher finds phrases in a text's two canonical forms: its words, and the text without blanks.
type matcher struct {
	trie    *ahocorasick.Trie
	classes []class
	caser   cases.Caser
	stand   map[string]string
}

func newMatcher() *matcher {
	m := &matcher{caser: cases.Fold(), stand: map[string]string{}}
	for word := range strings.FieldsSeq(fillers) {
		m.stand[word] = ""
	}
	for to, from := range synonyms {
		for word := range strings.FieldsSeq(from) {
			m.stand[word] = to
		}
	}
	b := ahocorasick.NewTrieBuilder()
	add := func(c class, pattern string) {
		b.AddString(pattern)
		m.classes = append(m.classes, c)
	}
	for c, list := range phrases {
		for _, phrase := range list {
			add(c, m.words(m.fold(phrase)))
		}
	}
	for c, list := range runs {
		for _, phrase := range list {
			add(c, m.fold(phrase))
		}
	}
	for _, pattern := range markers {
		add(marker, pattern)
	}
	m.trie = b.Build()
	return m
}

// phrase returns the class of the first phrase in a folded text.
func (m *matcher) phrase(folded string) string {
	if found := m.find(m.words(folded)); found != "" {
		return found
	}
	return m.find(squeeze(folded))
}

// fold removes what makes equal words look different to a program and not to a reader: compatibility forms, case, accents,
// apostrophes, and characters without a width.
func (m *matcher) fold(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\'' || r == '’' || unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
			return -1
		}
		return r
	}, m.caser.String(norm.NFKD.String(s)))
}

// words returns the words of a folded text, one blank around each, without fillers and with synonyms as the word that
// stands for them.
func (m *matcher) words(folded string) string {
	var b strings.Builder
	b.Grow(len(folded) + 2)
	b.WriteByte(' ')
	for word := range strings.FieldsFuncSeq(folded, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		if stand, ok := m.stand[word]; ok {
			if word = stand; word == "" {
				continue
			}
		}
		b.WriteString(word)
		b.WriteByte(' ')
	}
	return b.String()
}

// squeeze returns a folded text without blanks, but for one line feed at the beginning of each line.
func squeeze(folded string) string {
	var b strings.Builder
	b.Grow(len(folded) + 1)
	begins := true
	for _, r := range folded {
		switch {
		case r == '\n' || r == '\r' || r == '\u2028' || r == '\u2029':
			begins = true
		case unicode.IsSpace(r):
		default:
			if begins {
				b.WriteByte('\n')
				begins = false
			}
			b.WriteRune(r)
		}
	}
	return b.String()
}

// find returns the class of the first phrase in a canonical text.
func (m *matcher) find(canonical string) string {
	var found class
	m.trie.Walk([]byte(canonical), func(_, _, pattern int64) bool {
		found = m.classes[pattern]
		return false
	})
	return string(found)
}
