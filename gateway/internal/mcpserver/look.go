package mcpserver

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"durward.internal/gateway/internal/httpfront"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
)

// decideTimeout bounds everything up to the vault's decision, so that an agent learns within 2 s that a process is away.
const decideTimeout = 1900 * time.Millisecond

// lookTimeout is the part of it that the look at the target may take.
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
	if t.look == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
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
