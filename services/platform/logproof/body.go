package logproof

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/canonical"
)

// What ends the action of a record that follows another: what that one recorded was not done, or may have been.
const (
	GivenUp = "-given-up"
	Unknown = "-unknown"
)

// object appends an RFC 8785 object member by member, which its caller brings in the order of their names. It is what reflection over
// the message would write, at a tenth of the cost: every record is sealed by its writer, by audit, and by whoever verifies the log.
type object struct {
	b     []byte
	err   error
	begun bool
}

func (o *object) next() {
	if o.begun {
		o.b = append(o.b, ',')
	} else {
		o.b, o.begun = append(o.b, '{'), true
	}
}

// name begins a member whose name needs no escaping, key any.
func (o *object) name(name string) {
	o.next()
	o.b = append(append(append(o.b, '"'), name...), '"', ':')
}

func (o *object) key(key string) {
	o.next()
	o.quote(key)
	o.b = append(o.b, ':')
}

// always writes a string, text one that is set. Text that is not UTF-8 ends in an error: no message of protobuf holds it.
func (o *object) always(name, value string) {
	o.name(name)
	o.quote(value)
}

func (o *object) quote(value string) {
	var err error
	if o.b, err = canonical.AppendString(o.b, value); err != nil {
		o.err = cmp.Or(o.err, err)
	}
}

func (o *object) text(name, value string) {
	if value != "" {
		o.always(name, value)
	}
}

// plain writes a value whose JSON needs no escaping.
func (o *object) plain(set bool, name, value string) {
	if set {
		o.name(name)
		o.b = append(o.b, value...)
	}
}

// number writes a 64-bit number, which is a string.
func (o *object) number(name string, value uint64) {
	o.name(name)
	o.b = append(strconv.AppendUint(append(o.b, '"'), value, 10), '"')
}

// enum writes the name of a value, or its number as a string.
func (o *object) enum(name string, names map[int32]string, value int32) {
	text, known := names[value]
	if !known {
		text = strconv.Itoa(int(value))
	}
	o.always(name, text)
}

func (o *object) end() ([]byte, error) {
	if !o.begun {
		o.b = append(o.b, '{')
	}
	return append(o.b, '}'), o.err
}

// appendBody appends the RFC 8785 form of a body's protobuf JSON with proto names. TestBodyIsItsJSON holds it against the generic way
// for every field of the message.
func appendBody(b []byte, body *auditv1.Body) ([]byte, error) {
	o := object{b: b}
	o.text("action", body.GetAction())
	o.text("arguments", body.GetArguments())
	if channel := body.GetChannel(); channel != callv1.Channel_CHANNEL_UNSPECIFIED {
		if name, known := callv1.Channel_name[int32(channel)]; known {
			o.always("channel", name)
		} else {
			o.plain(true, "channel", strconv.Itoa(int(channel)))
		}
	}
	o.plain(body.GetConfirmed(), "confirmed", "true")
	o.plain(body.GetDangerous(), "dangerous", "true")
	o.text("decision_source", body.GetDecisionSource())
	if details := body.GetDetails(); len(details) > 0 {
		o.name("details")
		inner := object{b: o.b, err: o.err}
		keys := slices.AppendSeq(make([]string, 0, 8), maps.Keys(details))
		slices.SortFunc(keys, byUTF16)
		for _, key := range keys {
			inner.key(key)
			inner.quote(details[key])
		}
		o.b, o.err = inner.end()
	}
	if milliseconds := body.GetDurationMs(); milliseconds != 0 {
		o.name("duration_ms")
		o.b = strconv.AppendUint(o.b, uint64(milliseconds), 10)
	}
	o.text("parent_request_id", body.GetParentRequestId())
	o.plain(body.GetPersistent(), "persistent", "true")
	o.text("principal", body.GetPrincipal())
	o.text("reason", body.GetReason())
	o.text("result_digest", base64.StdEncoding.EncodeToString(body.GetResultDigest()))
	o.text("session", body.GetSession())
	o.text("source", body.GetSource())
	if statement := body.GetStatement(); statement != nil {
		// Rare and large: written in the generic way.
		raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(statement)
		if err == nil {
			raw, err = canonical.Transform(raw)
		}
		if err != nil {
			return nil, fmt.Errorf("statement: %w", err)
		}
		o.plain(true, "statement", string(raw))
	}
	o.text("summary", body.GetSummary())
	return o.end()
}

// byUTF16 is RFC 8785's order of names, which for all but text beyond the basic plane is that of their bytes.
func byUTF16(a, b string) int {
	if utf8.RuneCountInString(a) == len(a) && utf8.RuneCountInString(b) == len(b) {
		return strings.Compare(a, b)
	}
	return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
}
