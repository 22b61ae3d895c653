package rpc

import (
	"cmp"
	"errors"
	"strings"
	"sync"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

// rules is the validator behind the library's interceptors. An interceptor makes a status of a violation, in protovalidate's words,
// which may repeat what was sent. Validate puts our sentence in their place; broken reads it back.
//
// The validator is the process's one: each other would hold the contract's types again. It compiles the rules of a type at its first
// message, most of which a process never gets; a test of the contract compiles all, and a call whose rules do not compile is refused.
type rules struct {
	// holders are the fields of each message that hold messages, which are looked for once.
	holders sync.Map
}

// Validate refuses a message with a field that the contract does not name, or that breaks one of its rules.
func (r *rules) Validate(m proto.Message, options ...protovalidate.ValidationOption) error {
	var f *fault.Error
	if path, found := r.unknownField(m.ProtoReflect()); found {
		subject := path
		subject = cmp.Or(subject, "the request")
		f = fault.New(callv1.Code_CODE_INVALID_ARGUMENT, subject+" holds a field that is not in the contract", fault.WithField(path))
	} else if f = fault.Validation(protovalidate.Validate(m, options...)); f == nil {
		return nil
	}
	if f.Code != callv1.Code_CODE_INVALID_ARGUMENT {
		return f.Cause // the rule itself is broken
	}
	violation := &validate.Violation{
		Field: &validate.FieldPath{Elements: []*validate.FieldPathElement{{FieldName: &f.Field}}}, Message: &f.Message,
	}
	if f.Cause != nil {
		violation.RuleId = proto.String(f.Cause.Error())
	}
	return &protovalidate.ValidationError{Violations: []*protovalidate.Violation{{Proto: violation}}}
}

// broken returns the fault of a violation that an interceptor made a status of; nil for every other error. A status inside
// another error is a peer's.
func broken(err error) *fault.Error {
	st, ok := err.(interface{ GRPCStatus() *status.Status })
	if !ok {
		return nil
	}
	for _, detail := range st.GRPCStatus().Details() {
		if found, ok := detail.(*validate.Violations); ok {
			v := found.GetViolations()[0]
			f := fault.New(callv1.Code_CODE_INVALID_ARGUMENT, v.GetMessage(), fault.WithField(v.GetField().GetElements()[0].GetFieldName()))
			if id := v.GetRuleId(); id != "" {
				f.Cause = errors.New(id)
			}
			return f
		}
	}
	return nil
}

// messages are the fields of a message that hold messages. To go through all fields that a message has costs a third of its validation.
func (r *rules) messages(d protoreflect.MessageDescriptor) []protoreflect.FieldDescriptor {
	if known, ok := r.holders.Load(d); ok {
		return known.([]protoreflect.FieldDescriptor)
	}
	var out []protoreflect.FieldDescriptor
	for i := range d.Fields().Len() {
		if fd := d.Fields().Get(i); fd.IsMap() && fd.MapValue().Message() != nil || !fd.IsMap() && fd.Message() != nil {
			out = append(out, fd)
		}
	}
	r.holders.Store(d, out)
	return out
}

// unknownField finds the message that holds an unknown field, at any depth, and returns its path in proto names.
func (r *rules) unknownField(m protoreflect.Message) (where string, found bool) {
	if len(m.GetUnknown()) > 0 {
		return "", true
	}
	for _, fd := range r.messages(m.Descriptor()) {
		if !m.Has(fd) {
			continue
		}
		switch v := m.Get(fd); {
		case fd.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, item protoreflect.Value) bool {
				where, found = r.unknownField(item.Message())
				return !found
			})
		case fd.IsList():
			for i := 0; i < v.List().Len() && !found; i++ {
				where, found = r.unknownField(v.List().Get(i).Message())
			}
		default:
			where, found = r.unknownField(v.Message())
		}
		if found {
			return strings.TrimSuffix(string(fd.Name())+"."+where, "."), true
		}
	}
	return "", false
}
