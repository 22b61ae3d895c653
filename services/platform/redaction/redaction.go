// Package redaction keeps credentials out of the audit log. A writer puts each of its records through a Redactor before the record is
// spooled or sent; audit puts what arrives through Find, refuses a record that holds one, and never rewrites it. Both go by the same
// rules, so that what a writer redacted is never refused: the names of fields (package secret's Field), fields that the contract marks
// as sensitive, and the shapes of known credentials (package secret's Find).
//
// What was redacted leaves a mark, so that the record stays useful. The mark of a value that is as good as random tells its shape and
// its length class; the mark of one that could be guessed tells neither. Both hold a digest under a key that is in the writer's memory
// alone: equal values of one run of a process have equal marks, and nobody can try values out against a log.
//
// The human's signed statement is left as it was signed: with a word changed it would prove nothing.
package redaction

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/secret"
)

// Redactor redacts one process's records, or looks through what others send. It is safe for concurrent use.
type Redactor struct {
	key   []byte
	clean memory
}

// New returns a Redactor with a key of its own.
func New() *Redactor {
	r := &Redactor{key: make([]byte, sha256.Size), clean: memory{new: map[text]bool{}}}
	_, _ = rand.Read(r.key) // never fails (crypto/rand)
	return r
}

// Refused is the mark of a field that audit refused and this process's own rules did not find.
const Refused = "[redacted:refused]"

var (
	mark = pattern.New(`\[redacted:(?:sensitive|refused|(?:[a-z0-9]+:[0-9]+(?:-[0-9]+|\+):)?[0-9a-f]{16})\]`)
)

// Record returns a record without credentials, and the names of the fields that were redacted: the record itself where there was none.
func (r *Redactor) Record(record *auditv1.Record) (*auditv1.Record, []string) {
	var names []string
	out := record
	visit(record, func(f field) bool {
		if r.clean.has(f) {
			return true
		}
		if len(names) == 0 {
			out = proto.CloneOf(record)
		}
		names = append(names, f.name)
		f.set(out, f.redacted(r))
		return true
	})
	return out, names
}

// Field returns a record with one field, as Find names it, replaced by the mark Refused; the record itself where it has no such field,
// or the field is replaced already.
func Field(record *auditv1.Record, name string) (*auditv1.Record, bool) {
	out, done := record, false
	visit(record, func(f field) bool {
		if f.name != name || f.text == Refused {
			return true
		}
		out, done = proto.CloneOf(record), true
		text := Refused
		if name == arguments {
			text = `{"redacted":"` + Refused + `"}`
			done = f.text != text
		}
		f.set(out, text)
		return false
	})
	return out, done
}

// Find names the first field of a record that holds a credential.
func (r *Redactor) Find(record *auditv1.Record) (name string, found bool) {
	visit(record, func(f field) bool {
		found = !r.clean.has(f)
		name = f.name
		return !found
	})
	if !found {
		return "", false
	}
	return name, true
}

// askedFor begins, in a fault of audit's, the name of the field that the writer has to redact.
const askedFor = "records.redact."

// Refusal is audit's answer to records one of which holds a credential in the named field.
func Refusal(name string) *fault.Error {
	return fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "a record holds what looks like a credential: redact that field and send the sequence again", fault.WithField(askedFor+name))
}

// Asked reports whether an error is a Refusal, and names its field.
func Asked(err error) (name string, ok bool) {
	if !fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT) {
		return "", false
	}
	return strings.CutPrefix(fault.From(err).Field, askedFor)
}

const arguments = "body.arguments"

// field is one text of a record.
type field struct {
	name, text string
	max        int
	// key is the name that a detail has; "" for others.
	key string
	// tool is whose arguments they are, if it is one of the contract's.
	tool string
	set  func(*auditv1.Record, string)
}

// fields are the texts that every record may have.
var fields = []struct {
	name string
	max  int
	at   func(*auditv1.Record) string
	set  func(*auditv1.Record, string)
}{
	{"request_id", 64, (*auditv1.Record).GetRequestId, func(r *auditv1.Record, s string) { r.RequestId = s }},
	{"operation_id", 64, (*auditv1.Record).GetOperationId, func(r *auditv1.Record, s string) { r.OperationId = s }},
	{"tool", 128, (*auditv1.Record).GetTool, func(r *auditv1.Record, s string) { r.Tool = s }},
	{"body.principal", 128, bodyText((*auditv1.Body).GetPrincipal), func(r *auditv1.Record, s string) { r.Body.Principal = s }},
	{"body.session", 64, bodyText((*auditv1.Body).GetSession), func(r *auditv1.Record, s string) { r.Body.Session = s }},
	{"body.source", 64, bodyText((*auditv1.Body).GetSource), func(r *auditv1.Record, s string) { r.Body.Source = s }},
	{arguments, 65536, bodyText((*auditv1.Body).GetArguments), func(r *auditv1.Record, s string) { r.Body.Arguments = s }},
	{"body.summary", 500, bodyText((*auditv1.Body).GetSummary), func(r *auditv1.Record, s string) { r.Body.Summary = s }},
	{"body.parent_request_id", 64, bodyText((*auditv1.Body).GetParentRequestId), func(r *auditv1.Record, s string) { r.Body.ParentRequestId = s }},
	{"body.action", 128, bodyText((*auditv1.Body).GetAction), func(r *auditv1.Record, s string) { r.Body.Action = s }},
	{"body.reason", 500, bodyText((*auditv1.Body).GetReason), func(r *auditv1.Record, s string) { r.Body.Reason = s }},
	{"body.decision_source", 256, bodyText((*auditv1.Body).GetDecisionSource), func(r *auditv1.Record, s string) { r.Body.DecisionSource = s }},
}

func bodyText(at func(*auditv1.Body) string) func(*auditv1.Record) string {
	return func(r *auditv1.Record) string { return at(r.GetBody()) }
}

// visit calls f with each text of a record until it returns false.
func visit(record *auditv1.Record, f func(field) bool) {
	for _, one := range fields {
		text := one.at(record)
		if text == "" {
			continue
		}
		at := field{name: one.name, text: text, max: one.max, set: one.set}
		if one.name == arguments && record.GetBody().GetSource() == contract.SourceNative {
			at.tool = record.GetTool()
		}
		if !f(at) {
			return
		}
	}
	details := record.GetBody().GetDetails()
	keys := slices.AppendSeq(make([]string, 0, 8), maps.Keys(details))
	slices.Sort(keys)
	for _, key := range keys {
		value := details[key]
		if len(spans(key)) > 0 {
			now := key
			if !f(field{name: "body.details", text: key, max: 64, set: func(r *auditv1.Record, s string) {
				delete(r.Body.Details, now)
				now = s
				r.Body.Details[now] = value
			}}) {
				return
			}
			key = now
		}
		if !f(detail(key, value)) {
			return
		}
	}
}

func detail(key, value string) field {
	return field{name: "body.details." + key, text: value, max: 1024, key: key, set: func(r *auditv1.Record, s string) { r.Body.Details[key] = s }}
}

// clean reports whether the field holds no credential.
func (f field) clean() bool {
	switch {
	case ownID(f.text):
		return !secretNamed(f.key)
	case f.name == arguments:
		return f.arguments(nil) == f.text
	case secretNamed(f.key) && !harmless(f.key, f.text):
		return false
	}
	return len(spans(f.text)) == 0
}

// redacted is the field's text without credentials. Whatever is left fits into the field and is clean.
func (f field) redacted(r *Redactor) string {
	var out string
	switch {
	case f.name == arguments:
		if out = f.arguments(r); len(out) > f.max {
			out = `{"redacted":"` + r.mark(f.text) + `"}`
		}
		return out
	case secretNamed(f.key):
		return r.mark(f.text)
	default:
		out = r.text(f.text)
	}
	if utf8.RuneCountInString(out) > f.max {
		return r.mark(f.text)
	}
	return out
}

func secretNamed(key string) bool { return key != "" && secret.Field(key) }

// text returns a text with the mark of each credential in its place.
func (r *Redactor) text(s string) string {
	found := spans(s)
	if len(found) == 0 {
		return s
	}
	var out strings.Builder
	last := 0
	for _, span := range found {
		out.WriteString(s[last:span.From])
		out.WriteString(r.mark(s[span.From:span.To]))
		last = span.To
	}
	out.WriteString(s[last:])
	if len(spans(out.String())) > 0 {
		return r.mark(s) // the marks' neighbours look like credentials now
	}
	return out.String()
}

// spans returns where a text holds credentials that are not redacted.
func spans(s string) []secret.Span {
	if len(s) < minText {
		return nil
	}
	masked := s
	if strings.Contains(s, "[redacted:") {
		masked = mark().ReplaceAllStringFunc(s, func(m string) string { return strings.Repeat("*", len(m)) })
	}
	found, err := secret.Find(context.Background(), masked)
	if err != nil {
		return []secret.Span{{To: len(s)}} // its context never ends
	}
	return slices.DeleteFunc(found, func(span secret.Span) bool { return strings.Trim(masked[span.From:span.To], "*") == "" })
}

// minText is the shortest text that can hold a credential with what tells that it is one.
const minText = 7

// mark stands for a value.
func (r *Redactor) mark(value string) string {
	if r == nil {
		return Refused // only compared with what was there
	}
	sum := hmac.New(sha256.New, r.key)
	sum.Write([]byte(value))
	digest := hex.EncodeToString(sum.Sum(nil)[:8])
	shape, random := shapeOf(value)
	if !random {
		return "[redacted:" + digest + "]"
	}
	return "[redacted:" + shape + ":" + lengthClass(len(value)) + ":" + digest + "]"
}

// lengthClass is the power of two that a length does not exceed.
func lengthClass(n int) string {
	for _, class := range []struct {
		most int
		name string
	}{{32, "20-32"}, {64, "33-64"}, {128, "65-128"}, {512, "129-512"}} {
		if n <= class.most {
			return class.name
		}
	}
	return "513+"
}

// A value of fewer characters, or that says less for its length, could be guessed: a person may have thought of it.
const (
	minRandom = 20
	minBits   = 80
)

// shapeOf names the characters of a value, and reports whether it is as good as random.
func shapeOf(value string) (shape string, random bool) {
	var digits, letters, upper, beyondF, signs int
	counts := map[rune]float64{}
	for _, c := range value {
		counts[c]++
		switch {
		case '0' <= c && c <= '9':
			digits++
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
			letters++
			if c <= 'Z' {
				upper++
			}
			if c|0x20 > 'f' {
				beyondF++
			}
		case strings.ContainsRune("+/=_-.", c):
			signs++
		default:
			return "text", false
		}
	}
	n, bits := float64(len(value)), 0.0
	for _, k := range counts {
		bits -= k * math.Log2(k/n)
	}
	switch {
	case signs > 0:
		shape = "base64"
	case beyondF > 0 || upper > 0 && upper < letters:
		shape = "alnum"
	default:
		shape = "hex"
	}
	return shape, len(value) >= minRandom && bits >= minBits && digits >= 3 && letters >= 3
}
