package mcpserver

import (
	"context"
	"encoding/json"
	"fmt"

	"durward.internal/gateway/internal/httpfront"
	"durward.internal/gateway/internal/messaging"
	"durward.internal/gateway/internal/refusal"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

// fromMessages reports whether a caller relays what people write on a messaging platform, where anybody may.
func fromMessages(call *httpfront.Call) bool {
	return call.Session.About().Channel == callv1.Channel_CHANNEL_MESSAGING
}

// screened refuses a call from a messaging channel whose arguments are too long or hold a phrase by which people take agents
// over (MSG-1). The contract has let them pass, since screening costs more than what it refuses is worth. The record says which argument and what kind of phrase; nothing repeats the text.
func (s *Server) screened(ctx context.Context, call *httpfront.Call, t tool, arguments json.RawMessage) error {
	if !fromMessages(call) {
		return nil
	}
	found, bad := s.screen.Arguments(arguments, argReason)
	if !bad {
		return nil
	}
	event := refusal.Event{
		RequestID: call.RequestID, Code: callv1.Code_CODE_INVALID_ARGUMENT, Reason: "phrase", Phrase: found.Class,
		Principal: call.Session.Principal(), Session: call.Session.Ref(), Tool: t.Name, Tier: t.Tier, Field: t.argument(found.Member),
	}
	sentence := "the text holds a phrase that is used to take agents over, so that it goes no further; say it in other words"
	if found.Class == "" {
		event.Code, event.Reason = callv1.Code_CODE_TOO_LARGE, "length"
		sentence = fmt.Sprintf("a text from a messaging channel may have %d characters, and all of them together %d bytes", messaging.MaxText, messaging.MaxArguments)
	}
	s.conf.Refusals.Record(ctx, event)
	return fault.New(event.Code, sentence, fault.WithField(event.Field))
}

// argument returns the name of an argument if the tool has one of that name, and nothing for a name that somebody made up.
func (t tool) argument(name string) string {
	if properties, _ := t.InputSchema["properties"].(map[string]any); t.reason && name == argReason || properties[name] != nil {
		return name
	}
	return ""
}
