// Package token keeps what an agent may not see out of what it is given (DESIGN "Personal data"): personal data, what looks like a
// credential, and values that the session's vault holds, each become a reference of package reference. It runs in the vault, on text
// that programs and strangers wrote, and trusts nothing in it.
//
// The same value is the same reference within one session and origin, so that an agent can tell two values apart; in another
// session it is another, and a value that the agent sent itself is another than the one that a sink holds, so that nobody finds
// out by asking. What is held ends with its session, and is never logged. On the disk it is encrypted under the session's own key, a file
// that is destroyed at the session's end: what a database or its backup still has then opens for nobody.
//
// Everything here runs in time linear in the text: values are found by packages secret and detect, and again by a window of fixed
// length and a sum over the rest.
package token

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/detect"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/reference"
	"durward.internal/services/platform/secret"
	"durward.internal/services/vault/internal/store"
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
	// of all sessions. What is found beyond them is replaced by words that stand for nothing.
	MaxValues = 1000
	maxHeld   = 256 << 10
	maxTotal  = 32 << 20
	// maxValue is how long a value is that is looked for elsewhere, or kept, in bytes.
	maxValue = 4 << 10
	// window is how many bytes of a value find it elsewhere.
	window = 8
	// maxBucket is how many values with the same first window are looked for.
	maxBucket = 8
)

// What stands for a value that there is no room for.
const (
	redactedPII    = "[PII REDACTED]"
	redactedSecret = "[SECRET REDACTED]"
)

// Config is what a Values is made of. The zero Config holds everything in memory and knows no personal data.
type Config struct {
	// Credential reports whether a word is a credential that this vault lets somebody in with; nil: none is known.
	Credential func(word string) bool
	// Detector finds the personal data that becomes references; nil: none does.
	Detector *detect.Detector
	// Dir holds the sessions' keys, and Store what is encrypted under them; empty and nil: values end with the process.
	Dir   string
	Store *store.Store
	// Owner names whose a session is, so that nobody else takes up what it held; nil: nothing is taken up.
	Owner  func(session string) string
	Now    func() time.Time
	Logger *slog.Logger
}

// Values holds the values of all sessions. It is safe for concurrent use.
type Values struct {
	cfg Config
	// started is when this process began: the clients of an earlier one have an hour from then to come back.
	started time.Time

	mu       sync.Mutex
	sessions map[string]*holding
	// released is what sinks were given of the stored credentials. Each that is new makes another index: who looks through a text holds
	// up nobody who is given one. releasing is held meanwhile.
	released  atomic.Pointer[index]
	releasing sync.Mutex
	// total is how many bytes all sessions hold.
	total atomic.Int64
	// lookalikes counts the places that only looked like a reference of their session.
	lookalikes atomic.Int64
}

// New returns a Values that holds nothing but what an earlier process left. References of different books have nothing in common.
func New(cfg Config) *Values {
	v := &Values{cfg: cfg, sessions: map[string]*holding{}}
	v.released.Store(&index{})
	if v.cfg.Now == nil {
		v.cfg.Now = time.Now
	}
	v.cfg.Logger = cmp.Or(v.cfg.Logger, slog.New(slog.DiscardHandler))
	v.started = v.cfg.Now()
	return v
}

// released is the kind of a stored credential that was given to a sink, where it has no known form. Its reference brings nothing back.
var released = kind{reference.Secret, "CREDENTIAL"}

// minLine is how long a line is of a value with several that is looked for by itself, without a space in it.
const minLine = 24

// Release has a stored credential's value found in what any sink says from now on, in every session: the service that was given it may
// print it to whoever asks.
func (v *Values) Release(value []byte) {
	v.releasing.Lock()
	defer v.releasing.Unlock()
	next := v.released.Load().clone()
	whole := strings.TrimSpace(string(value))
	next.add(whole, released, maxLocal)
	for from, to := range secret.Lines(whole) {
		if line := strings.TrimSpace(whole[from:to]); len(line) >= minLine && !strings.ContainsAny(line, " \t") {
			next.add(line, released, maxLocal)
		}
	}
	v.released.Store(next)
}

// Result is texts with their values replaced, in their order.
type Result struct {
	Texts []string
	// Replaced counts the places, Redacted those of them that there was no room for.
	Replaced, Redacted int
	// New counts the values that are held since, by type; a secret's is its kind.
	New map[string]int
	// Unkept counts the places of personal data that is not held, so that its reference brings nothing back, and Secrets those of
	// credentials of which that is so.
	Unkept, Secrets int
}

// Tokenise replaces each value in the texts. It ends early, with ctx's error and no texts, when ctx does.
func (v *Values) Tokenise(ctx context.Context, session string, origin Origin, texts []string) (Result, error) {
	return v.tokenise(ctx, session, origin, texts, disarm)
}

// Arguments replaces each value in texts that an agent sent and that a sink is to get as they were: all else stays as it is, what only looks
// like a reference too.
func (v *Values) Arguments(ctx context.Context, session string, texts []string) (Result, error) {
	return v.tokenise(ctx, session, OriginAgent, texts, func(text string) string { return text })
}

// tokenise replaces each value in the texts; rest makes what is no reference of the session harmless.
func (v *Values) tokenise(ctx context.Context, session string, origin Origin, texts []string, rest func(string) string) (Result, error) {
	h := v.holding(ctx, session)
	found := make([][]piece, len(texts))
	for i, text := range texts {
		pieces, lookalikes := h.pieces(text, rest)
		found[i] = pieces
		v.lookalikes.Add(int64(lookalikes))
		for j := range found[i] {
			p := &found[i][j]
			if p.issued {
				continue
			}
			p.views = viewsOf(p.text)
			for k := range p.views {
				spans, err := v.find(ctx, p.views[k].text)
				if err != nil {
					return Result{}, err
				}
				p.views[k].spans = spans
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	w := &writing{v: v, h: h, origin: origin, Result: Result{Texts: make([]string, len(texts)), New: map[string]int{}}}
	defer func() { v.persist(ctx, session, h, w.fresh) }() // also what an early end leaves held
	// All are known before the first is looked for: a value that one text names may stand bare, or in part, in an earlier one.
	var local index
	for _, pieces := range found {
		for _, p := range pieces {
			for _, one := range p.views {
				for _, s := range one.spans {
					value := one.text[s.From:s.To]
					local.add(value, s.kind, maxLocal)
					for from, to := range secret.Lines(value) {
						local.add(strings.TrimSpace(value[from:to]), s.kind, maxLocal)
					}
				}
			}
		}
	}
	known := []*index{&local}
	if origin == OriginSink {
		// What the agent sent is its own affair: it is found again within one request.
		known = append(known, &h.values, v.released.Load())
	}
	for i, pieces := range found {
		var b strings.Builder
		w.numbers = sync.OnceValue(func() map[int]bool { return numbers(pieces) })
		w.at = 0
		for _, p := range pieces {
			if p.issued {
				b.WriteString(p.text)
			} else if err := w.piece(ctx, &b, p, known); err != nil {
				return Result{}, err
			}
			w.at += len(p.text)
		}
		w.Texts[i] = b.String()
	}
	return w.Result, nil
}

// Lookalikes is how many places only looked like a reference of their session, or were another's.
func (v *Values) Lookalikes() int64 { return v.lookalikes.Load() }

// Try replaces each value in a text, cleaned as a sink does it, for no session: nothing is kept, and the references stand for nothing.
func (v *Values) Try(ctx context.Context, text string) (Result, error) {
	return New(Config{Credential: v.cfg.Credential, Detector: v.cfg.Detector, Now: v.cfg.Now}).Tokenise(ctx, "", OriginSink, []string{clean.Block(text, clean.Whole)})
}

// find returns the places in a text that hold personal data, or look like credentials, and the vault's own credentials.
func (v *Values) find(ctx context.Context, text string) ([]span, error) {
	secrets, err := secret.Find(ctx, text)
	if err != nil {
		return nil, err
	}
	if v.cfg.Credential != nil {
		secrets = append(secrets, credentials(text, v.cfg.Credential)...)
	}
	var out []span
	for _, s := range secrets {
		out = append(out, span{s.From, s.To, kind{reference.Secret, s.Kind}})
	}
	if v.cfg.Detector != nil {
		personal, err := v.cfg.Detector.Personal(ctx, text)
		if err != nil {
			return nil, err
		}
		for _, s := range personal {
			out = append(out, unescape(text, span{s.From, s.To, kind{reference.PII, string(s.Type)}}))
		}
	}
	return merge(out), nil
}

// What a credential of this vault's clients looks like, whoever made it.
const minCredential, maxCredential = 20, 256

// credentials finds the words that let somebody in.
func credentials(text string, known func(word string) bool) []secret.Span {
	var out []secret.Span
	for from := 0; from < len(text); {
		to := from
		for to < len(text) && wordByte(text[to]) {
			to++
		}
		for begin, end := range parts(text[from:to]) {
			if n := end - begin; n >= minCredential && n <= maxCredential && known(text[from+begin:from+end]) {
				out = append(out, secret.Span{From: from + begin, To: from + end, Kind: "DURWARD_TOKEN"})
			}
		}
		from = max(to, from+1)
	}
	return out
}

// parts goes through a word and, where it has signs that a URL, an option or a sentence puts beside a credential, what is between them.
func parts(word string) func(yield func(from, to int) bool) {
	return func(yield func(from, to int) bool) {
		if !yield(0, len(word)) || !strings.ContainsAny(word, beside) {
			return
		}
		for from := 0; from <= len(word); {
			to := len(word)
			if n := strings.IndexAny(word[from:], beside); n >= 0 {
				to = from + n
			}
			if !yield(from, to) {
				return
			}
			from = to + 1
		}
	}
}

const beside = "=/.+~"

func wordByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("+/=_.~-", c) >= 0
}

// writing is one request on its way out, under the holding's lock.
type writing struct {
	Result
	v      *Values
	h      *holding
	origin Origin
	// fresh are the values that are held since.
	fresh []*Value
	// at is where the piece begins in its text, and numbers is where that text's numbers end, if it is JSON.
	at      int
	numbers func() map[int]bool
}

// piece writes a piece with its values replaced.
func (w *writing) piece(ctx context.Context, b *strings.Builder, p piece, known []*index) error {
	var spans []span
	for _, one := range p.views {
		for _, values := range known {
			found, err := values.find(ctx, one.text)
			if err != nil {
				return err
			}
			one.spans = append(one.spans, found...)
		}
		spans = append(spans, one.back(p.text)...)
	}
	at := 0
	for _, s := range merge(spans) {
		to := s.To
		for to < len(p.text) && strings.IndexByte(numberBytes, p.text[to]) >= 0 {
			to++ // .0
		}
		number := strings.Trim(p.text[s.From:s.To], numberBytes) == "" && (isNumber(p.text, s.From, to) || w.numbers()[w.at+to])
		if number {
			s.To = to
		}
		for number && s.From > at && strings.IndexByte(numberBytes, p.text[s.From-1]) >= 0 {
			s.From-- // its sign
		}
		b.WriteString(p.text[at:s.From])
		b.WriteString(w.replacement(s.kind, p.text[s.From:s.To], number))
		at = s.To
		w.Replaced++
	}
	b.WriteString(p.text[at:])
	return nil
}

// numberBytes are those of JSON's numbers.
const numberBytes = "0123456789+-.eE"

// isNumber reports whether digits are a whole number in JSON, a member's value or in a short list, whatever else the text is: with words in
// their place that would be JSON no more.
func isNumber(text string, from, to int) bool {
	const list, most = "[, \t\r\n", 256
	after := strings.TrimLeft(text[to:min(to+most, len(text))], " \t\r\n")
	before := strings.TrimRight(text[max(from-most, 0):from], numberBytes+list)
	ends := after != "" && strings.IndexByte(",]}", after[0]) >= 0
	name, is := strings.CutSuffix(before, ":")
	name = strings.TrimRight(name, " \t\r\n")
	return ends && is && strings.HasSuffix(name, `"`) && !strings.HasSuffix(name, `\"`)
}

// numbers returns where the numbers in lists and objects end in a text that is JSON as a whole; one alone is a text like another.
func numbers(pieces []piece) map[int]bool {
	var whole strings.Builder
	for _, p := range pieces {
		whole.WriteString(p.text)
	}
	text := strings.TrimLeft(whole.String(), " \t\r\n")
	if text == "" || text[0] != '[' && text[0] != '{' || !json.Valid([]byte(text)) {
		return nil
	}
	d, out := json.NewDecoder(strings.NewReader(text)), map[int]bool{}
	d.UseNumber()
	for {
		token, err := d.Token()
		if err != nil {
			return out
		}
		if _, is := token.(json.Number); is {
			out[whole.Len()-len(text)+int(d.InputOffset())] = true
		}
	}
}

// replacement is what stands for a value.
func (w *writing) replacement(k kind, text string, number bool) string {
	r := reference.Reference{Class: k.class, Type: k.name, ID: w.h.id(w.origin, k.class, text)}
	if held := w.h.byID[r.ID]; held != nil {
		w.count(held)
		r.Type, r.JSON = held.Type, number && k.class == reference.PII
		return inJSON(r.Marshal(), number && !r.JSON)
	}
	held := &Value{Reference: r, Origin: w.origin}
	r.JSON = number && k.class == reference.PII
	if len(text) <= maxValue && k != released && (w.origin == OriginSink || k.class == reference.PII) {
		held.Text = strings.Clone(text) // a part of a text would keep all of it in memory
	}
	if !w.v.hold(w.h, held) {
		held.Text = ""
		w.count(held)
		w.Redacted++
		if k.class == reference.PII {
			return inJSON(redactedPII, number)
		}
		return inJSON(redactedSecret, number)
	}
	w.count(held)
	w.New[k.name]++
	w.fresh = append(w.fresh, held)
	return inJSON(r.Marshal(), number && !r.JSON)
}

// inJSON is what stands for a number of JSON that has no form there but a text's.
func inJSON(text string, number bool) string {
	if number {
		return `"` + text + `"`
	}
	return text
}

// count counts a place whose value is not held.
func (w *writing) count(held *Value) {
	switch {
	case held.Text != "":
	case held.Class == reference.PII:
		w.Unkept++
	default:
		w.Secrets++
	}
}

// id is what stands for a value: 128 bits that the value, its session and its origin make.
func (h *holding) id(origin Origin, class reference.Class, value string) (id reference.ID) {
	mac := hmac.New(sha256.New, h.key[:])
	for _, part := range []string{string(origin), string(class)} {
		mac.Write([]byte(part))
		mac.Write([]byte{0})
	}
	mac.Write([]byte(value))
	copy(id[:], mac.Sum(nil))
	return id
}

// piece is a part of a text: a reference that this session was given before, or what lies between two of them.
type piece struct {
	text   string
	issued bool
	views  []view
}

// pieces cuts a text at the references that are this session's own: they stay as they are. Others, and what looks like one, are in rest's
// hands, and are counted.
func (h *holding) pieces(text string, rest func(string) string) (out []piece, lookalikes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	found, lookalikes := reference.Scan(text, func(r reference.Reference) bool {
		held := h.byID[r.ID]
		return held != nil && held.Class == r.Class && held.Type == r.Type
	})
	at := 0
	for _, f := range found {
		out = append(out, piece{text: rest(text[at:f.From])}, piece{text: text[f.From:f.To], issued: true})
		at = f.To
	}
	return append(out, piece{text: rest(text[at:])}), lookalikes
}

var (
	forged = pattern.New(`(?i)\[(\[[ \t]*(?:secret|pii))[ \t]*:(\w*):?`)
	bound  = pattern.New(`(?i)\$(pii_ref)`)
)

// disarm makes what looks like a reference none: no program's own words refer to anything.
func disarm(text string) string {
	if !strings.Contains(text, "[[") && !strings.Contains(text, "$") {
		return text
	}
	return bound().ReplaceAllString(forged().ReplaceAllString(text, "[ $1 $2 "), "$$ $1")
}
