package envelope

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
)

// maxText bounds one string of a result, in characters.
const maxText = 200_000

var resultJSON = protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}

// Result returns a sink's response as compact JSON with proto names, the words of enums and default values, after Clean.
func Result(m proto.Message) (json.RawMessage, error) {
	Clean(m)
	raw, err := resultJSON.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	// protojson's spacing is random on purpose; Words leaves none.
	if raw, err = contract.Words(m.ProtoReflect().Descriptor(), raw); err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return raw, nil
}

// Clean cleans every string of a sink's response in place, however deep, map keys included, and wraps those that the
// contract does not say are from the catalog: the sink has done so too, and nothing is believed because of it. Calling it
// again changes nothing. A field of another package's message, such as a timestamp, has the origin of the field that holds
// the message.
func Clean(m proto.Message) {
	r := m.ProtoReflect()
	cleaner{home: r.Descriptor().ParentFile().Package(), outside: true}.message(r)
}

// cleaner walks a message.
type cleaner struct {
	// home is the package whose options count.
	home protoreflect.FullName
	// outside is the origin of fields that have no options of ours.
	outside bool
}

func (c cleaner) message(m protoreflect.Message) {
	ours := m.Descriptor().ParentFile().Package() == c.home
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if fd.Kind() != protoreflect.StringKind && fd.Message() == nil {
			return true
		}
		of := c
		if ours {
			of.outside = !contract.FromCatalog(fd)
		}
		switch {
		case fd.IsMap():
			of.entries(m, fd, v.Map())
		case fd.IsList():
			list := v.List()
			for i := range list.Len() {
				if item, changed := of.value(fd, list.Get(i)); changed {
					list.Set(i, item)
				}
			}
		default:
			if item, changed := of.value(fd, v); changed {
				m.Set(fd, item)
			}
		}
		return true
	})
}

func (c cleaner) entries(m protoreflect.Message, fd protoreflect.FieldDescriptor, entries protoreflect.Map) {
	fresh := m.NewField(fd)
	entries.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if fd.MapKey().Kind() == protoreflect.StringKind {
			key := clean.Line(k.String(), maxText)
			if c.outside {
				key = Outside(key)
			}
			k = protoreflect.ValueOfString(key).MapKey()
		}
		item, _ := c.value(fd.MapValue(), v)
		fresh.Map().Set(k, item)
		return true
	})
	m.Set(fd, fresh)
}

// value returns v cleaned, and whether it has to be put back.
func (c cleaner) value(fd protoreflect.FieldDescriptor, v protoreflect.Value) (protoreflect.Value, bool) {
	switch fd.Kind() {
	case protoreflect.StringKind:
		s := v.String()
		cleaned := clean.Block(s, maxText)
		if c.outside {
			cleaned = Outside(s)
		}
		return protoreflect.ValueOfString(cleaned), cleaned != s
	case protoreflect.MessageKind, protoreflect.GroupKind:
		c.message(v.Message())
	}
	return v, false
}
