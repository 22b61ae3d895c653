package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/fault"
)

// maxSigned is the most that the arguments of a change may hold, in bytes: they stand in the human's statement, which holds 64 KiB.
const maxSigned = 60_000

// Decode reads a tool's arguments strictly: one JSON object, proto names alone, no unknown or duplicate key, no null, each
// value of exactly the schema's type, every rule of the contract kept. The message that it returns is what is decided on
// and forwarded. Errors are *fault.Error with the field at fault; none of them repeats a value.
func (t Tool) Decode(raw []byte) (proto.Message, error) {
	if err := canonical.Strict(raw); err != nil {
		code := callv1.Code_CODE_INVALID_ARGUMENT
		if errors.Is(err, canonical.ErrTooLarge) {
			code = callv1.Code_CODE_TOO_LARGE
		}
		return nil, fault.New(code, "the arguments are refused: "+err.Error())
	}
	if t.Tier != optionsv1.Tier_TIER_READ && len(raw) > maxSigned {
		return nil, fault.New(callv1.Code_CODE_TOO_LARGE, fmt.Sprintf("the arguments are longer than the %d bytes that a human can sign", maxSigned))
	}
	if t.Foreign != nil {
		return t.decodeForeign(raw)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var value any
	if err := dec.Decode(&value); err != nil {
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "the arguments are not well-formed JSON", fault.WithCause(err))
	}
	if err := checkMessage(t.Method.Input(), value, ""); err != nil {
		return nil, err
	}
	raw, err := Names(t.Method.Input(), raw)
	if err != nil {
		return nil, fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(err))
	}
	m := t.NewRequest()
	if err := (protojson.UnmarshalOptions{}).Unmarshal(raw, m); err != nil {
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "the arguments do not fit the tool's schema", fault.WithCause(err))
	}
	if err := Validate(m); err != nil {
		return nil, err
	}
	if _, _, err := t.Destination(m); err != nil {
		return nil, err
	}
	return m, nil
}

// Validate checks a tool's request against the contract's rules. Errors are *fault.Error.
func Validate(m proto.Message) error {
	if err := protovalidate.Validate(m); err != nil {
		return fault.Validation(err)
	}
	return nil
}

func invalid(field, format string, args ...any) error {
	return fault.New(callv1.Code_CODE_INVALID_ARGUMENT, fmt.Sprintf(format, args...), fault.WithField(field))
}

// checkMessage compares decoded JSON with the schema, since protojson takes "3" for 3, null for anything, camelCase names
// and numbers for enums.
func checkMessage(d protoreflect.MessageDescriptor, value any, path string) error {
	object, ok := value.(map[string]any)
	if !ok {
		return invalid(path, "%s must be a JSON object", subject(path))
	}
	for _, key := range slices.Sorted(maps.Keys(object)) { // so that of several mistakes it is always the same one that is told
		item, fd := object[key], field(d, key)
		if fd == nil {
			names := slices.DeleteFunc(fieldNames(d), func(name string) bool { _, given := object[name]; return given })
			if near := config.Suggest(key, names); len(near) > 0 || len(names) > 5 {
				names = near // of a few that are missing all are told: "id" is near to nothing, and service_id is meant
			}
			return fault.New(callv1.Code_CODE_INVALID_ARGUMENT, unknownSentence(path), fault.WithField(path), fault.WithSuggestions(names...))
		}
		if err := checkField(fd, item, join(path, key)); err != nil {
			return err
		}
	}
	return nil
}

func checkField(fd protoreflect.FieldDescriptor, value any, path string) error {
	switch {
	case fd.IsMap():
		object, ok := value.(map[string]any)
		if !ok {
			return invalid(path, "%s must be a JSON object", subject(path))
		}
		for _, key := range slices.Sorted(maps.Keys(object)) {
			if err := checkSingular(fd.MapValue(), object[key], path); err != nil {
				return err
			}
		}
		return nil
	case fd.IsList():
		list, ok := value.([]any)
		if !ok {
			return invalid(path, "%s must be a list", subject(path))
		}
		for _, item := range list {
			if err := checkSingular(fd, item, path); err != nil {
				return err
			}
		}
		return nil
	default:
		return checkSingular(fd, value, path)
	}
}

func checkSingular(fd protoreflect.FieldDescriptor, value any, path string) error {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		return checkMessage(fd.Message(), value, path)
	case protoreflect.BoolKind:
		if _, ok := value.(bool); !ok {
			return invalid(path, "%s must be true or false", subject(path))
		}
	case protoreflect.StringKind:
		if _, ok := value.(string); !ok {
			return invalid(path, "%s must be a string", subject(path))
		}
	case protoreflect.EnumKind:
		name, ok := value.(string)
		if !ok {
			return invalid(path, "%s must be one of the names in the schema", subject(path))
		}
		if v := valueOf(fd.Enum(), name); v == nil || v.Number() == 0 {
			return invalid(path, "%s must be one of the names in the schema", subject(path))
		}
	default:
		number, ok := value.(json.Number)
		if !ok || !wholeNumber(string(number)) {
			return invalid(path, "%s must be a whole number", subject(path))
		}
		if !inRange(fd.Kind(), string(number)) {
			return invalid(path, "%s is out of range", subject(path))
		}
	}
	return nil
}

// inRange reports whether a field of that kind, 32 bits wide, can hold a whole number.
func inRange(kind protoreflect.Kind, number string) bool {
	whole, _, _ := strings.Cut(number, ".")
	var err error
	switch kind {
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		_, err = strconv.ParseUint(whole, 10, 32)
	default:
		_, err = strconv.ParseInt(whole, 10, 32)
	}
	return err == nil
}

// wholeNumber reports whether s is a whole number without an exponent. A fraction of zeros counts, as it does in JSON Schema,
// which the published schemas are read by: some clients write every number with one. "-0" is no number that people mean.
func wholeNumber(s string) bool {
	if whole, fraction, ok := strings.Cut(s, "."); ok {
		if strings.Trim(fraction, "0") != "" {
			return false
		}
		s = whole
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (i > 0 || c != '-') {
			return false
		}
	}
	return s != "" && s != "-" && s != "-0"
}

func unknownSentence(path string) string {
	if path == "" {
		return "the arguments hold a field that this tool does not have"
	}
	return path + " holds a field that this tool does not have"
}

func subject(path string) string {
	if path == "" {
		return "the arguments"
	}
	return path
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func fieldNames(d protoreflect.MessageDescriptor) []string {
	var names []string
	for i := range d.Fields().Len() {
		names = append(names, member(d.Fields().Get(i)))
	}
	slices.Sort(names)
	return names
}
