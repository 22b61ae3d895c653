package envelope

import (
	"bytes"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"durward.internal/services/platform/clean"
)

// maxText bounds one string of a result, in characters.
const maxText = 200_000

var resultJSON = protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}

// Result returns a sink's response as compact JSON with proto names and default values. It cleans every string of m in
// place first: the sink has done so too, and nothing is believed because of it.
func Result(m proto.Message) (json.RawMessage, error) {
	cleanMessage(m.ProtoReflect())
	raw, err := resultJSON.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	// protojson's spacing is random on purpose.
	var b bytes.Buffer
	b.Grow(len(raw))
	if err := json.Compact(&b, raw); err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return b.Bytes(), nil
}

// cleanMessage cleans strings, list items, and map keys and values, however deep.
func cleanMessage(m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			cleanMap(m, fd, v.Map())
		case fd.IsList():
			list := v.List()
			for i := range list.Len() {
				if item, changed := cleanValue(fd, list.Get(i)); changed {
					list.Set(i, item)
				}
			}
		default:
			if item, changed := cleanValue(fd, v); changed {
				m.Set(fd, item)
			}
		}
		return true
	})
}

func cleanMap(m protoreflect.Message, fd protoreflect.FieldDescriptor, entries protoreflect.Map) {
	fresh := m.NewField(fd)
	entries.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if fd.MapKey().Kind() == protoreflect.StringKind {
			k = protoreflect.ValueOfString(clean.Line(k.String(), maxText)).MapKey()
		}
		item, _ := cleanValue(fd.MapValue(), v)
		fresh.Map().Set(k, item)
		return true
	})
	m.Set(fd, fresh)
}

// cleanValue returns v cleaned, and whether it has to be put back.
func cleanValue(fd protoreflect.FieldDescriptor, v protoreflect.Value) (protoreflect.Value, bool) {
	switch fd.Kind() {
	case protoreflect.StringKind:
		s := v.String()
		if plain(s) {
			return v, false
		}
		cleaned := clean.Block(s, maxText)
		return protoreflect.ValueOfString(cleaned), cleaned != s
	case protoreflect.MessageKind, protoreflect.GroupKind:
		cleanMessage(v.Message())
	}
	return v, false
}

// plain reports whether nothing in s could need cleaning: printable ASCII without the end of a console tag. Almost every
// string of a result is, and is then not copied.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == ']' {
			return false
		}
	}
	return len(s) <= maxText
}
