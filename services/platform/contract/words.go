package contract

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/reflect/protoreflect"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// Word is the word for an enum's value in what agents read and write: running, not SERVICE_STATE_RUNNING. Tiers are written as people
// see them everywhere: READ.
func Word(v protoreflect.EnumValueDescriptor) string {
	d, _ := v.Parent().(protoreflect.EnumDescriptor)
	word := strings.TrimPrefix(string(v.Name()), strings.TrimSuffix(string(d.Values().ByNumber(0).Name()), "UNSPECIFIED"))
	if d.FullName() == optionsv1.Tier(0).Descriptor().FullName() {
		return word
	}
	return strings.ToLower(word)
}

// valueOf finds the value of an enum by its word; nil: it has none.
func valueOf(d protoreflect.EnumDescriptor, word string) protoreflect.EnumValueDescriptor {
	for i := range d.Values().Len() {
		if v := d.Values().Get(i); Word(v) == word {
			return v
		}
	}
	return nil
}

// Words returns protojson of a message, compact and in its order, with the words of enums in place of their names.
func Words(d protoreflect.MessageDescriptor, protoJSON []byte) ([]byte, error) {
	return rewritten(d, protoJSON, false, wordOf)
}

// Plain is Words with numbers as numbers, where protojson writes those of 64 bits as strings: for people's programs.
func Plain(d protoreflect.MessageDescriptor, protoJSON []byte) ([]byte, error) {
	return rewritten(d, protoJSON, true, wordOf)
}

func wordOf(d protoreflect.EnumDescriptor, name string) string {
	if v := d.Values().ByName(protoreflect.Name(name)); v != nil {
		return Word(v)
	}
	return name
}

// Names is the inverse of Words and of Plain: protojson takes what it returns. What is no word stays, for protojson to refuse.
func Names(d protoreflect.MessageDescriptor, raw []byte) ([]byte, error) {
	return rewritten(d, raw, false, func(d protoreflect.EnumDescriptor, word string) string {
		if v := valueOf(d, word); v != nil {
			return string(v.Name())
		}
		return word
	})
}

func rewritten(d protoreflect.MessageDescriptor, raw []byte, numbers bool, enum func(protoreflect.EnumDescriptor, string) string) ([]byte, error) {
	var out bytes.Buffer
	out.Grow(len(raw))
	r := rewriter{jsontext.NewDecoder(bytes.NewReader(raw)), jsontext.NewEncoder(&out), numbers, enum}
	if err := r.value(kind{message: d}); err != nil {
		return nil, fmt.Errorf("rewrite %s: %w", d.Name(), err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

type rewriter struct {
	dec *jsontext.Decoder
	enc *jsontext.Encoder
	// numbers: those of 64 bits are written as numbers.
	numbers bool
	enum    func(protoreflect.EnumDescriptor, string) string
}

// kind is what a JSON value stands for: a message, an enum, a number of 64 bits, or a map of one of them; the zero value: anything else.
type kind struct {
	message protoreflect.MessageDescriptor
	enum    protoreflect.EnumDescriptor
	long    bool
	entries bool
}

func kindOf(fd protoreflect.FieldDescriptor) kind {
	long := false
	switch fd.Kind() {
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		long = true
	default:
	}
	return kind{message: fd.Message(), enum: fd.Enum(), long: long}
}

// member is what the value of a member stands for.
func (k kind) member(name string) kind {
	if k.entries {
		return kind{message: k.message, enum: k.enum, long: k.long}
	}
	if k.message == nil {
		return kind{}
	}
	fd := k.message.Fields().ByName(protoreflect.Name(name))
	switch {
	case fd == nil:
		return kind{}
	case fd.IsMap():
		of := kindOf(fd.MapValue())
		of.entries = true
		return of
	default:
		return kindOf(fd)
	}
}

func (r rewriter) value(k kind) error {
	if k.message == nil && k.enum == nil && (!k.long || !r.numbers) {
		v, err := r.dec.ReadValue()
		if err != nil {
			return err
		}
		return r.enc.WriteValue(v)
	}
	begin, err := r.dec.ReadToken()
	if err != nil {
		return err
	}
	if begin.Kind() == jsontext.KindString && k.enum != nil {
		begin = jsontext.String(r.enum(k.enum, begin.String()))
	}
	if begin.Kind() == jsontext.KindString && k.long && r.numbers {
		return r.enc.WriteValue(jsontext.Value(begin.String())) // the encoder refuses what is no number
	}
	if err := r.enc.WriteToken(begin); err != nil {
		return err
	}
	object := begin.Kind() == jsontext.KindBeginObject
	if !object && begin.Kind() != jsontext.KindBeginArray {
		return nil
	}
	for next := r.dec.PeekKind(); next != jsontext.KindEndObject && next != jsontext.KindEndArray; next = r.dec.PeekKind() {
		item := k
		if object {
			name, err := r.dec.ReadToken()
			if err != nil {
				return err
			}
			item = k.member(name.String())
			if err := r.enc.WriteToken(name); err != nil {
				return err
			}
		}
		if err := r.value(item); err != nil {
			return err
		}
	}
	end, err := r.dec.ReadToken()
	if err != nil {
		return err
	}
	return r.enc.WriteToken(end)
}
