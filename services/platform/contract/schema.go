package contract

import (
	"fmt"
	"slices"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// Dialect is the JSON Schema dialect of every schema here.
const Dialect = "https://json-schema.org/draft/2020-12/schema"

// inputSchema describes arguments: closed objects, every rule that JSON Schema can say.
func inputSchema(d protoreflect.MessageDescriptor) map[string]any {
	s := messageSchema(d, true)
	s["$schema"] = Dialect
	return s
}

// Schema describes a response, or a part of one, as protojson writes it with default values: closed objects, shapes alone. It has no
// $schema, since it is put inside the envelope's.
func Schema(d protoreflect.MessageDescriptor) map[string]any { return messageSchema(d, false) }

func messageSchema(d protoreflect.MessageDescriptor, input bool) map[string]any {
	properties := map[string]any{}
	var required []string
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		rules := fieldRules(fd)
		p := fieldSchema(fd, rules, input)
		if about, _ := proto.GetExtension(fd.Options(), optionsv1.E_About).(string); about != "" {
			p["description"] = about
		}
		properties[member(fd)] = p
		if input && rules.GetRequired() {
			required = append(required, member(fd))
		}
	}
	s := map[string]any{"type": "object", "additionalProperties": false}
	if len(properties) > 0 {
		s["properties"] = properties
	}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

func fieldRules(fd protoreflect.FieldDescriptor) *validate.FieldRules {
	rules, _ := proto.GetExtension(fd.Options(), validate.E_Field).(*validate.FieldRules)
	return rules
}

func fieldSchema(fd protoreflect.FieldDescriptor, rules *validate.FieldRules, input bool) map[string]any {
	switch {
	case fd.IsMap():
		s := map[string]any{
			"type":                 "object",
			"additionalProperties": singularSchema(fd.MapValue(), rules.GetMap().GetValues(), input),
		}
		if keys := singularSchema(fd.MapKey(), rules.GetMap().GetKeys(), input); len(keys) > 1 {
			s["propertyNames"] = keys
		}
		if r := rules.GetMap(); r.HasMaxPairs() {
			s["maxProperties"] = r.GetMaxPairs()
		}
		return s
	case fd.IsList():
		s := map[string]any{"type": "array", "items": singularSchema(fd, rules.GetRepeated().GetItems(), input)}
		r := rules.GetRepeated()
		if r.HasMinItems() {
			s["minItems"] = r.GetMinItems()
		}
		if r.HasMaxItems() {
			s["maxItems"] = r.GetMaxItems()
		}
		if r.GetUnique() {
			s["uniqueItems"] = true
		}
		return s
	default:
		return singularSchema(fd, rules, input)
	}
}

func singularSchema(fd protoreflect.FieldDescriptor, rules *validate.FieldRules, input bool) map[string]any {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return map[string]any{"type": "boolean"}
	case protoreflect.StringKind:
		return stringSchema(rules.GetString())
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		s := map[string]any{"type": "integer"}
		bounds(s, rules.GetInt32().ProtoReflect())
		return s
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		s := map[string]any{"type": "integer", "minimum": 0}
		bounds(s, rules.GetUint32().ProtoReflect())
		return s
	case protoreflect.EnumKind:
		return enumSchema(fd.Enum(), rules.GetEnum(), input)
	case protoreflect.MessageKind:
		return messageSchema(fd.Message(), input)
	default:
		// Lint refuses other kinds in tool messages; this is its last line.
		panic(fmt.Sprintf("contract: %s has a kind that tools may not use", fd.FullName()))
	}
}

// enumSchema names the values that may be given. In arguments the zero value means "unset", which is said by leaving the field out.
func enumSchema(d protoreflect.EnumDescriptor, r *validate.EnumRules, input bool) map[string]any {
	var names []any
	for i := range d.Values().Len() {
		v := d.Values().Get(i)
		n := int32(v.Number())
		switch {
		case input && n == 0, r.HasConst() && r.GetConst() != n, len(r.GetIn()) > 0 && !slices.Contains(r.GetIn(), n), slices.Contains(r.GetNotIn(), n):
		default:
			names = append(names, Word(v))
		}
	}
	return map[string]any{"type": "string", "enum": names}
}

func stringSchema(r *validate.StringRules) map[string]any {
	s := map[string]any{"type": "string"}
	if r.HasPattern() {
		s["pattern"] = r.GetPattern()
	}
	if r.HasMinLen() {
		s["minLength"] = r.GetMinLen()
	}
	if r.HasMaxLen() {
		s["maxLength"] = r.GetMaxLen()
	}
	if r.HasConst() {
		s["const"] = r.GetConst()
	}
	if len(r.GetIn()) > 0 {
		s["enum"] = r.GetIn()
	}
	return s
}

// bounds copies gte, lte, gt and lt of any integer rule message.
func bounds(s map[string]any, rules protoreflect.Message) {
	if !rules.IsValid() {
		return
	}
	for rule, keyword := range map[protoreflect.Name]string{
		"gte": "minimum", "lte": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum",
	} {
		if fd := rules.Descriptor().Fields().ByName(rule); fd != nil && rules.Has(fd) {
			s[keyword] = rules.Get(fd).Interface()
		}
	}
}
