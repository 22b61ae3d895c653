package mcpserver

import (
	"context"
	"maps"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"durward.internal/gateway/internal/httpfront"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
)

// What tools/list says of a tool's arguments and results. A model reads the list whole, with every tool in it, so it says
// what a result's members are called, and durward://results the rest. The contract's own schemas, which approvals are bound to and
// arguments are checked against, are longer.

// listedInput is a tool's input schema without the dialect, which is MCP's own. The rest stays whole: what the list lets through, the
// contract takes.
func listedInput(schema map[string]any) map[string]any {
	out := maps.Clone(schema)
	delete(out, "$schema")
	return out
}

// listedResult is a tool's result schema without descriptions, in which every answer that fits the contract's own fits too. What has
// properties is an object, which need not be said. Its own members are there with their types; what they mean, and what
// they are made of, durward://results says.
func listedResult(t contract.Tool) map[string]any {
	if t.OpenResult {
		return t.ResultSchema
	}
	d := t.Method.Output()
	properties, _ := t.ResultSchema["properties"].(map[string]any)
	out := map[string]any{}
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		if p, ok := properties[string(fd.Name())].(map[string]any); ok {
			out[string(fd.Name())] = listedField(fd, p)
		}
	}
	if len(out) == 0 {
		return map[string]any{"type": "object"}
	}
	return map[string]any{"properties": out}
}

func listedField(fd protoreflect.FieldDescriptor, schema map[string]any) map[string]any {
	switch {
	case fd.IsList():
		return map[string]any{"type": "array"}
	case fd.IsMap(), fd.Message() != nil:
		return map[string]any{"type": "object"}
	default:
		return map[string]any{"type": schema["type"]}
	}
}

// decideTimeout bounds everything up to the vault's decision, so that an agent learns within 2 s that a process is away.
const decideTimeout = 1900 * time.Millisecond

// lookTimeout is the part of it that the looks at the target and its plan may take together.
const lookTimeout = 900 * time.Millisecond

// lookFor returns the READ tool of the same sink that takes nothing but arguments of this one, if there is one: what it does not
// find cannot be acted on either.
func lookFor(t contract.Tool) *contract.Tool {
	if t.Tier == optionsv1.Tier_TIER_READ || t.Method.Input().Fields().Len() == 0 {
		return nil
	}
	for _, other := range contract.Tools() {
		if other.ByPermit() && other.Sink == t.Sink && fieldsAmong(other.Method.Input(), t.Method.Input()) {
			return &other
		}
	}
	return nil
}

// fieldsAmong reports whether a message has fields, and each of them is one of the others'.
func fieldsAmong(some, all protoreflect.MessageDescriptor) bool {
	for i := range some.Fields().Len() {
		mine := some.Fields().Get(i)
		theirs := all.Fields().ByName(mine.Name())
		if theirs == nil || theirs.Kind() != mine.Kind() || mine.Kind() == protoreflect.MessageKind || mine.IsList() || theirs.IsList() {
			return false
		}
	}
	return some.Fields().Len() > 0
}

// look asks the sink whether what a mutation names is there, so that no human is asked about what cannot be done. Its one
// error is the sink's CODE_NOT_FOUND, with what was meant perhaps; whatever else goes wrong is for those who decide and act.
func (s *Server) look(ctx context.Context, call *httpfront.Call, t tool, request proto.Message) error {
	if t.look == nil || !call.Session.May(t.Name) { // one that it may not call looks like none, whatever it names
		return nil
	}
	question := t.look.NewRequest()
	request.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if asked := question.ProtoReflect().Descriptor().Fields().ByName(fd.Name()); asked != nil {
			question.ProtoReflect().Set(asked, v)
		}
		return true
	})
	_, err := s.conf.Relay.Read(ctx, call.Session, call.Caller, *t.look, question)
	if fault.Is(err, callv1.Code_CODE_NOT_FOUND) {
		return err
	}
	return nil
}
