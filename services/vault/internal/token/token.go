// Package token keeps what an agent may not see out of what it is given (DESIGN "Personal data"): values that the session's vault
// holds, and what looks like a credential, each become a reference, [[SECRET:KIND:REF]]. It runs in the vault, on text that programs and
// strangers wrote, and trusts nothing in it.
//
// The same value is the same reference within one session and origin, so that an agent can tell two secrets apart; in another
// session it is another, and a value that the agent sent itself is another than the one that a sink holds, so that nobody finds
// out by asking. What is held is held in memory, ends with its session, and is never logged.
//
// Everything here runs in time linear in the text: values are found by package secret, and again by a window of fixed length and a
// sum over the rest.
package token

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	"durward.internal/services/platform/secret"
)

// Origin says where a text came from.
type Origin string

// The origins.
const (
	// OriginSink: a sink is about to give it out.
	OriginSink Origin = "sink"
	// OriginAgent: the agent sent it.
	OriginAgent Origin = "agent"
)

// Bounds of what one session's vault holds.
const (
	// MaxValues is how many values one session holds, and maxHeld how long they are together, in bytes; maxTotal bounds those
	// of all sessions. What is found beyond them is replaced all the same, and looked for in what is asked about at once with it.
	MaxValues = 256
	maxHeld   = 128 << 10
	maxTotal  = 32 << 20
	// maxValue is how long a value is that is looked for elsewhere, in bytes.
	maxValue = 4 << 10
	// maxIssued is how many references are known as issued in one session.
	maxIssued = 4096
	// window is how many bytes of a value find it; shorter values are not held.
	window = 8
	// maxBucket is how many values with the same first window are looked for.
	maxBucket = 8
)

// Config is what a Values is made of.
type Config struct {
	// Credential reports whether a word is a credential that this vault lets somebody in with; nil: none is known.
	Credential func(word string) bool
}

// Values holds the values of all sessions. It is safe for concurrent use.
type Values struct {
	cfg Config
	key []byte

	mu       sync.Mutex
	sessions map[string]*holding
	// total is how many bytes all sessions hold.
	total atomic.Int64
}

// holding is what one session's vault holds.
type holding struct {
	mu     sync.Mutex
	values index
	issued map[string]bool
	// forgotten: the session has ended, and what is held now is not counted.
	forgotten bool
}

// New returns a Values that holds nothing. References of different books have nothing in common.
func New(cfg Config) *Values {
	b := &Values{cfg: cfg, key: make([]byte, 32), sessions: map[string]*holding{}}
	_, _ = rand.Read(b.key) // never fails
	return b
}

// Tokenise returns the texts, in their order, with each value replaced, and how many places there were. It ends early, with
// ctx's error and no texts, when ctx does.
func (b *Values) Tokenise(ctx context.Context, session string, origin Origin, texts []string) ([]string, int, error) {
	h := b.holding(session)
	found := make([][]piece, len(texts))
	for i, text := range texts {
		found[i] = h.pieces(text)
		for j := range found[i] {
			p := &found[i][j]
			if p.issued {
				continue
			}
			var err error
			if p.spans, err = b.find(ctx, p.text); err != nil {
				return nil, 0, err
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	// All are known before the first is looked for: a value that one text names may stand bare, or in part, in an earlier one.
	var local index
	for _, pieces := range found {
		for _, p := range pieces {
			for _, s := range p.spans {
				value := p.text[s.From:s.To]
				local.add(value, s.Kind, maxLocal)
				for from, to := range secret.Lines(value) {
					local.add(strings.TrimSpace(value[from:to]), s.Kind, maxLocal)
				}
				// What the agent sent is its own affair: it is found again within one request, and takes no room.
				if origin == OriginSink {
					b.hold(h, value, s.Kind)
				}
			}
		}
	}
	known := []*index{&local}
	if origin == OriginSink {
		known = append(known, &h.values)
	}
	out, replaced := make([]string, len(texts)), 0
	for i, pieces := range found {
		var w strings.Builder
		for _, p := range pieces {
			if err := ctx.Err(); err != nil {
				return nil, 0, err
			}
			if p.issued {
				w.WriteString(p.text)
				continue
			}
			for _, values := range known {
				p.spans = append(p.spans, values.find(p.text)...)
			}
			replaced += b.rewrite(&w, h, session, origin, p)
		}
		out[i] = w.String()
	}
	return out, replaced, nil
}

// find returns the places in a text that look like credentials, and the vault's own credentials.
func (b *Values) find(ctx context.Context, text string) ([]secret.Span, error) {
	out, err := secret.Find(ctx, text)
	if err != nil || b.cfg.Credential == nil {
		return out, err
	}
	return secret.Merge(append(out, credentials(text, b.cfg.Credential)...)), nil
}

// What a credential of this vault's clients looks like, whoever made it.
const minCredential, maxCredential = 20, 256

// credentials finds the words that let somebody in.
func credentials(text string, known func(word string) bool) []secret.Span {
	var out []secret.Span
	for from := 0; from < len(text); {
		to := from
		for to < min(from+maxCredential, len(text)) && (wordByte(text[to])) {
			to++
		}
		if to-from >= minCredential && known(text[from:to]) {
			out = append(out, secret.Span{From: from, To: to, Kind: "DURWARD_TOKEN"})
		}
		from = max(to, from+1)
	}
	return out
}

func wordByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("+/=_.~-", c) >= 0
}

// rewrite writes a piece with its values replaced, and returns how many there were.
func (b *Values) rewrite(w *strings.Builder, h *holding, session string, origin Origin, p piece) int {
	spans := secret.Merge(p.spans)
	at := 0
	for _, s := range spans {
		w.WriteString(p.text[at:s.From])
		w.WriteString(b.reference(h, session, origin, s.Kind, p.text[s.From:s.To]))
		at = s.To
	}
	w.WriteString(p.text[at:])
	return len(spans)
}

// Forget drops what the sessions hold that keep does not want kept.
func (b *Values) Forget(keep func(session string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for session := range b.sessions {
		if !keep(session) {
			h := b.sessions[session]
			delete(b.sessions, session)
			h.mu.Lock()
			b.total.Add(-int64(h.values.bytes))
			h.forgotten = true
			h.mu.Unlock()
		}
	}
}

// Sessions counts the sessions that hold anything.
func (b *Values) Sessions() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.sessions)
}

func (b *Values) holding(session string) *holding {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.sessions[session]
	if h == nil {
		h = &holding{issued: map[string]bool{}}
		b.sessions[session] = h
	}
	return h
}

var refText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// reference is what stands for a value: 80 bits that the value, its session and its origin make.
func (b *Values) reference(h *holding, session string, origin Origin, kind, value string) string {
	mac := hmac.New(sha256.New, b.key)
	for _, part := range []string{session, string(origin)} {
		mac.Write([]byte(part))
		mac.Write([]byte{0})
	}
	mac.Write([]byte(value))
	ref := "[[SECRET:" + kind + ":" + refText.EncodeToString(mac.Sum(nil)[:10]) + "]]"
	if len(h.issued) < maxIssued {
		h.issued[ref] = true
	}
	return ref
}

// hold remembers a value while there is room.
func (b *Values) hold(h *holding, value, kind string) {
	if h.forgotten || h.values.count >= MaxValues || h.values.bytes+len(value) > maxHeld || b.total.Load()+int64(len(value)) > maxTotal {
		return
	}
	// A clone: a part of a text would keep all of it in memory.
	if h.values.add(strings.Clone(value), kind, maxBucket) {
		b.total.Add(int64(len(value)))
	}
}

// distinct reports whether a text cannot be an ordinary word: it is long, or has characters of two kinds in it.
func distinct(s string) bool {
	var letter, digit, other bool
	for _, r := range s {
		switch {
		case unicode.IsDigit(r):
			digit = true
		case unicode.IsLetter(r):
			letter = true
		default:
			other = true
		}
	}
	return letter && digit || (letter || digit) && other || utf8.RuneCountInString(s) >= 24
}

// piece is a part of a text: a reference that this session was given before, or what lies between two of them.
type piece struct {
	text   string
	issued bool
	spans  []secret.Span
}

var references = regexp.MustCompile(`\[\[(?:SECRET|PII):[A-Z0-9_]{1,64}:[a-z2-7]{16}\]\]`)

// pieces cuts a text at the references that are this session's own: they stay as they are. Others are made none.
func (h *holding) pieces(text string) []piece {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []piece
	at := 0
	for _, m := range references.FindAllStringIndex(text, -1) {
		if h.issued[text[m[0]:m[1]]] {
			out = append(out, piece{text: disarm(text[at:m[0]])}, piece{text: text[m[0]:m[1]], issued: true})
			at = m[1]
		}
	}
	return append(out, piece{text: disarm(text[at:])})
}

var (
	forged = regexp.MustCompile(`(?i)\[(\[[ \t]*(?:secret|pii))[ \t]*:(\w*):?`)
	bound  = regexp.MustCompile(`(?i)\$(pii_ref)`)
)

// disarm makes what looks like a reference none: no program's own words refer to anything.
func disarm(text string) string {
	if !strings.Contains(text, "[[") && !strings.Contains(text, "$") {
		return text
	}
	return bound.ReplaceAllString(forged.ReplaceAllString(text, "[ $1 $2 "), "$$ $1")
}
