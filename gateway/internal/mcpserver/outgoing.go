package mcpserver

import (
	"context"
	"errors"
	"reflect"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/gateway/internal/envelope"
	"durward.internal/services/platform/clean"
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
