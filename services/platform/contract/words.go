package contract

import (
	"bytes"
	"fmt"
	"strconv"
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

// WordOf is Word of a value as messages hold it; the number of one that the contract does not name.
func WordOf(value protoreflect.Enum) string {
	v := value.Descriptor().Values().ByNumber(value.Number())
	if v == nil {
		return strconv.Itoa(int(value.Number()))
	}
	return Word(v)
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
	return rewritten(d, protoJSON, false, member, wordOf)
}

// Plain is Words with numbers as numbers, where protojson writes those of 64 bits as strings: for people's programs.
func Plain(d protoreflect.MessageDescriptor, protoJSON []byte) ([]byte, error) {
	return rewritten(d, protoJSON, true, member, wordOf)
}

func wordOf(d protoreflect.EnumDescriptor, name string) string {
	if v := d.Values().ByName(protoreflect.Name(name)); v != nil {
		return Word(v)
	}
	return name
}

// Names is the inverse of Words and of Plain: protojson takes what it returns. What is no word stays, for protojson to refuse.
func Names(d protoreflect.MessageDescriptor, raw []byte) ([]byte, error) {
	name := func(fd protoreflect.FieldDescriptor) string { return string(fd.Name()) }
	return rewritten(d, raw, false, name, func(d protoreflect.EnumDescriptor, word string) string {
		if v := valueOf(d, word); v != nil {
			return string(v.Name())
		}
		return word
	})
}

// member is what a field is called in what agents read and write: its name in the contract, or the JSON name where that begins with
// "$", which no name in the contract can.
func member(fd protoreflect.FieldDescriptor) string {
	if name := fd.JSONName(); strings.HasPrefix(name, "$") {
		return name
	}
	return string(fd.Name())
}

// field finds the field that a member stands for.
func field(d protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if strings.HasPrefix(name, "$") {
		return d.Fields().ByJSONName(name)
	}
	if fd := d.Fields().ByName(protoreflect.Name(name)); fd != nil && member(fd) == name {
		return fd
	}
	return nil
}

func rewritten(d protoreflect.MessageDescriptor, raw []byte, numbers bool, name func(protoreflect.FieldDescriptor) string,
	enum func(protoreflect.EnumDescriptor, string) string) ([]byte, error) {
	var out bytes.Buffer
	out.Grow(len(raw))
	r := rewriter{jsontext.NewDecoder(bytes.NewReader(raw)), jsontext.NewEncoder(&out), numbers, name, enum}
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
	// name is what a field is called in what is written.
	name func(protoreflect.FieldDescriptor) string
	enum func(protoreflect.EnumDescriptor, string) string
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

// member is what a member is called in what is written, and what its value stands for.
func (r rewriter) member(k kind, name string) (string, kind) {
	if k.entries {
		return name, kind{message: k.message, enum: k.enum, long: k.long}
	}
	if k.message == nil {
		return name, kind{}
	}
	fd := k.message.Fields().ByName(protoreflect.Name(name))
	if fd == nil {
		fd = field(k.message, name)
	}
	switch {
	case fd == nil:
		return name, kind{}
	case fd.IsMap():
		of := kindOf(fd.MapValue())
		of.entries = true
		return r.name(fd), of
	default:
		return r.name(fd), kindOf(fd)
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
			read, err := r.dec.ReadToken()
			if err != nil {
				return err
			}
			name, of := r.member(k, read.String())
			item = of
			if err := r.enc.WriteToken(jsontext.String(name)); err != nil {
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
