package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/gateway/internal/envelope"
	"durward.internal/gateway/internal/httpfront"
	"durward.internal/gateway/internal/refusal"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/injection"
)

// maxErrorText bounds a JSON-RPC error's message, in characters.
const maxErrorText = 500

// answering is outermost around what the SDK receives: every answer, and every error, leaves through here, whatever made it
// (SEC-E1, SEC-E3). Answers are clean before they come here; this is the last line.
func answering(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		result, err := next(ctx, method, req)
		if err != nil {
			return nil, publicError(err)
		}
		return envelope.Cleaned(result), nil
	}
}

// publicError returns a JSON-RPC error whose text shows nothing from inside; any other error is an internal one.
func publicError(err error) error {
	var public *jsonrpc.Error
	if !errors.As(err, &public) {
		return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "Internal error."}
	}
	out := envelope.Cleaned(*public)
	if out.Message = clean.Sentence(out.Message, maxErrorText); out.Message == clean.Internal {
		out.Message = "Internal error."
	}
	return &out
}

// sending is outermost around what the SDK sends by itself: progress, changes, and whatever else is not an answer.
func sending(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		return next(ctx, method, cleanedRequest(req))
	}
}

// cleanedRequest returns req with its parameters cleaned. The SDK's requests are pointers to structs that differ in the type
// of their Params alone; parameters are shared between sessions, and so they are replaced and not changed.
func cleanedRequest(req mcp.Request) mcp.Request {
	v := reflect.ValueOf(req)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return req
	}
	params := v.Elem().FieldByName("Params")
	if !params.IsValid() || !params.CanInterface() {
		return req
	}
	out := reflect.New(v.Elem().Type())
	out.Elem().Set(v.Elem())
	out.Elem().FieldByName("Params").Set(reflect.ValueOf(envelope.Cleaned(params.Interface())))
	fresh, ok := out.Interface().(mcp.Request)
	if !ok {
		return req
	}
	return fresh
}

// fromMessages reports whether a caller relays what people write on a messaging platform, where anybody may.
func fromMessages(call *httpfront.Call) bool {
	return call.Session.Channel() == callv1.Channel_CHANNEL_MESSAGING
}

// screened refuses a call from a messaging channel whose arguments are too long or hold a phrase by which people take agents
// over (MSG-1). The contract has let them pass, since screening costs more than what it refuses is worth. The record says which argument and what kind of phrase; nothing repeats the text.
func (s *Server) screened(ctx context.Context, call *httpfront.Call, t tool, arguments json.RawMessage) error {
	if !fromMessages(call) {
		return nil
	}
	found, bad := s.screen.Arguments(arguments, contract.ReasonArgument)
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
		sentence = fmt.Sprintf("a text from a messaging channel may have %d characters, and all of them together %d bytes", injection.MaxText, injection.MaxArguments)
	}
	s.conf.Refusals.Record(ctx, event)
	return fault.New(event.Code, sentence, fault.WithField(event.Field))
}

// argument returns the name of an argument if the tool has one of that name, and nothing for a name that somebody made up.
func (t tool) argument(name string) string {
	if t.TakesReason() && name == contract.ReasonArgument || t.HasArgument(name) {
		return name
	}
	return ""
}
