package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/gateway/internal/envelope"
	"durward.internal/gateway/internal/httpfront"
	"durward.internal/gateway/internal/listchange"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
)

// receive is around every message that the SDK of one era handles.
func (s *Server) receive(era httpfront.Era) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (result mcp.Result, err error) {
			call := callOf(req)
			if call == nil || call.Era != era {
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "Internal error."}
			}
			// The SDK ends a session without a word to what is under way in it.
			ctx, cancel := context.WithCancel(call.Seen.Context(rpc.WithRequestID(ctx, call.RequestID)))
			defer cancel()
			defer call.Session.OnEnd(cancel)()
			defer func() {
				if p := recover(); p != nil {
					s.conf.Logger.ErrorContext(ctx, "panic", "method", method, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
					result, err = nil, internal(call)
				}
			}()
			if result, err = s.dispatch(ctx, next, method, req, call); err != nil {
				return nil, s.public(ctx, method, call, err)
			}
			return result, nil
		}
	}
}

// dispatch gives a message to whatever serves its method: the SDK, for what is not here.
func (s *Server) dispatch(ctx context.Context, next mcp.MethodHandler, method string, req mcp.Request, call *httpfront.Call) (mcp.Result, error) {
	if result, served, err := s.diagnose(ctx, next, method, req, call); served {
		return result, err
	}
	switch method {
	case "initialize":
		return s.initialize(ctx, next, method, req, call)
	case "server/discover":
		return s.discover(ctx, next, method, req, call)
	case "tools/call":
		if r, ok := req.(*mcp.CallToolRequest); ok {
			if t, known := s.served(r.Params.Name); !known {
				return s.unknownTool(ctx, call)
			} else if t.Foreign != nil {
				return s.callPinned(ctx, r, call, t)
			}
			return taskOr(ctx, next, method, req)
		}
	case "ping", "tools/list":
		if err := s.renew(ctx, call); err != nil {
			return nil, err
		}
		if method == "tools/list" {
			s.conf.Relay.Refresh(ctx, call.Session, call.Caller)
		}
		cursor := ""
		if r, ok := req.(*mcp.ListToolsRequest); ok && r.Params != nil {
			cursor, r.Params.Cursor = r.Params.Cursor, "" // the pages are ours
		}
		result, err := next(ctx, method, req)
		if err != nil {
			return nil, err
		}
		if list, ok := result.(*mcp.ListToolsResult); ok {
			return s.list(ctx, call, list, cursor)
		}
		return result, nil
	case "resources/list", "resources/templates/list":
		s.conf.Relay.Refresh(ctx, call.Session, call.Caller)
		result, err := next(ctx, method, req)
		if err == nil {
			addServers(call, result)
		}
		return result, err
	case methodListPrompts, methodGetPrompt:
		return s.prompt(ctx, next, method, req, call)
	case methodGetTask, methodUpdateTask, methodCancelTask:
		return s.task(ctx, method, req, call)
	case methodReadResource, methodSubscribe, methodUnsubscribe, methodListen, methodComplete:
		return s.resource(ctx, next, method, req, call)
	}
	return next(ctx, method, req)
}

// renew renews the session's permits for a request that brings a proof and asks for nothing that would use it: what a client
// that signs subscribed to goes on under them.
func (s *Server) renew(ctx context.Context, call *httpfront.Call) error {
	if call.Caller.Proof == nil {
		return nil
	}
	if err := s.conf.Relay.Renew(ctx, call.Session, call.Caller, optionsv1.Role_ROLE_VAULT); err != nil {
		return refuse(call, fault.From(err))
	}
	return nil
}

// refusalError is an error of ours, fit for the client. Whatever else the SDK or a handler returns is not: it names types and
// repeats input.
type refusalError struct{ rpc *jsonrpc.Error }

func (e *refusalError) Error() string { return e.rpc.Message }

// refuse makes a JSON-RPC error of a fault, for every method but tools/call, which answers in the envelope.
func refuse(call *httpfront.Call, f *fault.Error) error {
	code := int64(-32000)
	switch {
	case f.Code == callv1.Code_CODE_NOT_FOUND && call.Era == httpfront.Stateful:
		code = -32002 // what the older revisions call a resource that is not there
	case f.Code == callv1.Code_CODE_NOT_FOUND, f.Code == callv1.Code_CODE_INVALID_ARGUMENT:
		code = jsonrpc.CodeInvalidParams
	case f.Code == callv1.Code_CODE_INTERNAL:
		code = jsonrpc.CodeInternalError
	}
	return rpcError(call, code, f)
}

// rpcError is refuse with a JSON-RPC code of the caller's choice.
func rpcError(call *httpfront.Call, code int64, f *fault.Error) error {
	forget(call, f)
	out := envelope.Fault(call.RequestID, f)
	said := httpfront.ErrorData(out)
	if f.Code == callv1.Code_CODE_PROOF_REQUIRED {
		said[metaProofNeeded], said[metaSession] = proofNeeded(f, callv1.Proof_PURPOSE_RENEW), call.Session.Ref()
	}
	data, err := json.Marshal(said)
	if err != nil {
		return internalError(call)
	}
	return &refusalError{&jsonrpc.Error{Code: code, Message: out.Summary, Data: data}}
}

// forget ends a session that the vault accepts no more, as when its client was renamed or removed. The client's next request
// opens another in the stateless era, and in the other one hears that its session is gone.
func forget(call *httpfront.Call, f *fault.Error) {
	if f.Code == callv1.Code_CODE_UNAUTHENTICATED {
		call.Forget()
	}
}

// public returns the error that the client sees.
func (s *Server) public(ctx context.Context, method string, call *httpfront.Call, err error) error {
	if ours, ok := errors.AsType[*refusalError](err); ok {
		return ours.rpc
	}
	s.conf.Logger.WarnContext(ctx, "the SDK refused a message", "method", method, "type", fmt.Sprintf("%T", err)) // its text repeats input
	return internal(call)
}

func internalError(call *httpfront.Call) error { return &refusalError{internal(call)} }

func internal(call *httpfront.Call) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "Internal error.",
		Data: []byte(`{"code":"INTERNAL","request_id":"` + call.RequestID + `"}`)}
}

// completed is a tool's result that did not come through the SDK's own handling of tools, which says what kind of result it
// is in the stateless era.
type completed struct{ *mcp.CallToolResult }

// MarshalJSON implements json.Marshaler.
func (c completed) MarshalJSON() ([]byte, error) {
	raw, err := json.Marshal(c.CallToolResult)
	if err != nil {
		return nil, err
	}
	return append([]byte(`{"resultType":"complete",`), raw[1:]...), nil
}

// discover tells a client of the stateless era what the server can do, and what its proofs must name.
func (s *Server) discover(ctx context.Context, next mcp.MethodHandler, method string, req mcp.Request, call *httpfront.Call) (mcp.Result, error) {
	result, err := next(ctx, method, req)
	if err != nil {
		return nil, err
	}
	result.SetMeta(map[string]any{metaRequestID: call.RequestID, metaSession: call.Session.Ref(), metaClient: call.Session.Principal()})
	return result, nil
}

// listen serves a stream of notifications. It ends, with an answer, when the client closes it, when the session ends or the
// process stops, and after as long as a session may be idle: whoever still listens asks again.
func (s *Server) listen(ctx context.Context, next mcp.MethodHandler, method string, req mcp.Request, call *httpfront.Call) (mcp.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, s.conf.SessionTimeout)
	defer cancel()
	go func() {
		select {
		case <-ctx.Done():
		case <-call.Gone:
		case <-s.conf.Draining:
		}
		cancel()
	}()
	go func() {
		if s.conf.Relay.Refused(ctx, call.Session, call.Caller) {
			call.Forget()
			cancel()
		}
	}()
	return next(ctx, method, req)
}

// initialize ends a handshake: the session that the front opened at the vault gets the SDK's id, and the client learns what
// its proofs must name.
func (s *Server) initialize(ctx context.Context, next mcp.MethodHandler, method string, req mcp.Request, call *httpfront.Call) (mcp.Result, error) {
	result, err := next(ctx, method, req)
	session, ok := req.GetSession().(*mcp.ServerSession)
	if err != nil || !ok {
		s.conf.Logger.WarnContext(ctx, "the SDK refused a handshake", "type", fmt.Sprintf("%T", err))
		return nil, internalError(call)
	}
	end := func() {
		if err := session.Close(); err != nil {
			s.conf.Logger.DebugContext(ctx, "closing a client's session", "error", err)
		}
	}
	if !call.Bind(ctx, session.ID(), end) {
		go func() {
			<-call.Gone // before, the client would be told nothing
			end()
		}()
		return nil, refuse(call, fault.New(callv1.Code_CODE_RATE_LIMITED, "too many sessions are busy; end one, or try again later"))
	}
	deaf := s.lists.Add(listchange.Client{Session: session, Wants: listchange.All(), Again: call.Session.Relisted, Send: func(method string, notification mcp.Request) {
		s.resources.tell(httpfront.Stateful, method, notification)
	}})
	go func() {
		_ = session.Wait() // why it ended is logged by whoever ended it
		deaf()
		call.Unbind(context.WithoutCancel(ctx))
	}()
	if r, ok := result.(*mcp.InitializeResult); ok {
		r.Meta = mcp.Meta{metaRequestID: call.RequestID, metaSession: call.Session.Ref(), metaClient: call.Session.Principal()}
	}
	s.conf.Logger.InfoContext(ctx, "session opened", "principal", call.Session.Principal(), "session", call.Session.Ref(), "signs", call.Session.KeyBound())
	return result, nil
}
