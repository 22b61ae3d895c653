package mcpserver

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/gateway/internal/envelope"
	"durward.internal/gateway/internal/httpfront"
)

// Direct answers a call of a tool that is answered from a snapshot, with arguments that are right and under a permit that covers it,
// and leaves every other call to the SDK. It is the front's Direct. The call itself takes the same way as one that the SDK brings;
// what is left out is the way there and back, on which nothing is decided.
func (s *Server) Direct(ctx context.Context, call *httpfront.Call, name string, arguments []byte) (response []byte, served bool) {
	t, known := s.tools[name]
	if !known || !t.Snapshot || !t.ByPermit() {
		return nil, false
	}
	if covered, err := s.conf.Relay.Covers(ctx, call.Session, call.Caller, t.Tool); err != nil || !covered {
		return nil, false // the vault decides on this very call, or says why it has no permit; a human may have to
	}
	message, _, err := t.decode(arguments, fromMessages(call))
	if err != nil {
		return nil, false // it is said and recorded there
	}
	defer func() {
		if p := recover(); p != nil {
			s.conf.Logger.ErrorContext(ctx, "panic", "method", "tools/call", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			response, served = failure(call, internal(call)), true
		}
	}()
	request := &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: name, Arguments: arguments}}
	out := s.answer(ctx, call, t, func(until bounds) (answer, error) {
		leave, err := s.enter(call)
		if err != nil {
			return answer{}, err
		}
		defer leave()
		if err := s.screened(ctx, call, t, arguments); err != nil {
			return answer{}, err
		}
		return s.read(ctx, request, call, t, message, until)
	})
	return s.write(ctx, call, out), true
}

// write writes the JSON-RPC response of an answer as the SDK does, with the envelope encoded once: the text is the same bytes.
func (s *Server) write(ctx context.Context, call *httpfront.Call, out answer) []byte {
	out = s.final(call, out)
	about := metaOf(call, out)
	if call.Era == httpfront.Stateless {
		about[mcp.MetaKeyServerInfo] = s.about() // each answer says what server it is of
	}
	meta, err := json.Marshal(envelope.Cleaned(about))
	if err != nil {
		s.conf.Logger.ErrorContext(ctx, "encode an answer", "error", err)
		return failure(call, internal(call))
	}
	form := out.form
	if form == nil {
		if form, err = newForm(out.Envelope); err != nil {
			s.conf.Logger.ErrorContext(ctx, "encode an answer", "error", err)
			return failure(call, internal(call))
		}
	}
	b := make([]byte, 0, 256+len(meta)+form.size()+2*len(out.RequestID)+len(call.ID))
	b = append(append(append(b, `{"jsonrpc":"2.0","id":`...), call.ID...), `,"result":{`...)
	b = append(append(b, `"_meta":`...), meta...)
	b = form.text(append(b, `,"content":[{"type":"text","text":`...), out.RequestID)
	b = form.json(append(b, `}],"structuredContent":`...), out.RequestID)
	if out.IsError() {
		b = append(b, `,"isError":true`...)
	}
	if call.Era == httpfront.Stateless {
		b = append(b, `,"resultType":"complete"`...)
	}
	return append(b, "}}"...)
}

// failure writes a JSON-RPC error.
func failure(call *httpfront.Call, err *jsonrpc.Error) []byte {
	raw, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": json.RawMessage(call.ID), "error": err}) // an id that was read, and texts of ours
	return raw
}
