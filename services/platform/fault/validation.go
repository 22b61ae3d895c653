package fault

import (
	"errors"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/reflect/protoreflect"

	callv1 "durward.internal/proto/gen/durward/call/v1"
)

// Validation makes a fault of an error from protovalidate: the path of the first field at fault, in proto names without
// subscripts, and a sentence for the rule that it breaks. Neither the value nor a map's key is repeated, since both are
// the caller's. Any other error is an internal one.
func Validation(err error) *Error {
	if err == nil {
		return nil
	}
	invalid, ok := errors.AsType[*protovalidate.ValidationError](err)
	if !ok || len(invalid.Violations) == 0 {
		return New(callv1.Code_CODE_INTERNAL, Internal, WithCause(err))
	}
	v := invalid.Violations[0]
	path := fieldPath(v.Proto.GetField())
	subject := path
	switch {
	case subject == "":
		subject = "the request"
	case v.Proto.GetForKey():
		subject = "a key of " + subject
	}
	// The cause is the rule's name, not protovalidate's own text, which may repeat a key.
	return New(callv1.Code_CODE_INVALID_ARGUMENT, subject+" "+brokenRule(v), WithField(path),
		WithCause(errors.New("rule "+v.Proto.GetRuleId())))
}

func fieldPath(p *validate.FieldPath) string {
	var names []string
	for _, element := range p.GetElements() {
		names = append(names, element.GetFieldName())
	}
	return strings.Join(names, ".")
}

// brokenRule says what is wrong in words. Bounds come from the contract, which is public.
func brokenRule(v *protovalidate.Violation) string {
	id := v.Proto.GetRuleId()
	bound := ruleBound(v)
	_, rule, _ := strings.Cut(id, ".")
	switch {
	case id == "required":
		return "is required"
	case id == "string.pattern" && v.FieldDescriptor != nil && strings.HasSuffix(string(v.FieldDescriptor.Name()), "_id"):
		return "does not match the pattern of an id"
	}
	switch rule {
	case "pattern":
		return "does not have the expected form"
	case "min_len", "min_bytes":
		return "is too short" + prefixed(", the least is ", bound)
	case "max_len", "max_bytes":
		return "is too long" + prefixed(", the most is ", bound)
	case "len", "len_bytes":
		return "has the wrong length" + prefixed(", it must be ", bound)
	case "min_items", "min_pairs":
		return "has too few entries" + prefixed(", the least is ", bound)
	case "max_items", "max_pairs":
		return "has too many entries" + prefixed(", the most is ", bound)
	case "unique":
		return "names the same thing twice"
	case "defined_only":
		return "is not one of the known values"
	case "in", "not_in", "const":
		return "is not one of the allowed values"
	case "gt":
		return "is too small" + prefixed(", it must be above ", bound)
	case "gte":
		return "is too small" + prefixed(", the least is ", bound)
	case "lt":
		return "is too large" + prefixed(", it must be below ", bound)
	case "lte":
		return "is too large" + prefixed(", the most is ", bound)
	}
	if strings.HasPrefix(rule, "gt") {
		return "is out of range"
	}
	return "breaks a rule of the contract"
}

func prefixed(words, bound string) string {
	if bound == "" {
		return ""
	}
	return words + bound
}

// ruleBound returns the rule's own number, where it has one.
func ruleBound(v *protovalidate.Violation) string {
	if v.RuleDescriptor == nil || !v.RuleValue.IsValid() || v.RuleDescriptor.IsList() {
		return ""
	}
	switch v.RuleDescriptor.Kind() {
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Int32Kind, protoreflect.Int64Kind,
		protoreflect.Sint32Kind, protoreflect.Sint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind,
		protoreflect.Sfixed32Kind, protoreflect.Sfixed64Kind, protoreflect.FloatKind, protoreflect.DoubleKind:
		return v.RuleValue.String()
	default:
		return ""
	}
}
