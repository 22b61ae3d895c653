package front

import (
	"bytes"
	"errors"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protojson"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/canonical"
)

// Methods that a client of the 2025 era may use here. Everything else is answered with "method not found", whatever the
// SDK could do.
const (
	methodInitialize  = "initialize"
	methodPing        = "ping"
	methodListTools   = "tools/list"
	methodCallTool    = "tools/call"
	noteInitialized   = "notifications/initialized"
	noteCancelled     = "notifications/cancelled"
	noteProgress      = "notifications/progress"
	noteRootsChanged  = "notifications/roots/list_changed"
	metaProgressToken = "progressToken"
)

// Bounds on what a frame may name (WS-1). Protocol ids are short; the length of a tool's name is the SDK's.
const (
	maxID       = 64
	maxToolName = 128
	maxLabel    = 128
	maxProof    = 4096
)

// Frame is one JSON-RPC message of a client, decoded strictly and rebuilt from the parts that are understood: what is
// decided on and what is forwarded are the same values.
type Frame struct {
	Method string
	// ID is the raw id of a request, nil for a notification.
	ID jsontext.Value
	// Body is the message to forward; nil if nothing needs to be forwarded.
	Body []byte
	// Tool is the tool's name, for tools/call.
	Tool string
	// ClientName and ClientVersion are what the client calls itself, for initialize: untrusted.
	ClientName, ClientVersion string
	// Proof is a key-bound client's signature, where the message carries one.
	Proof *callv1.Proof
	// Protocol is the revision that the message itself claims per request (2026-07-28 and later), empty for older ones.
	Protocol string
}

// frameError says why a frame is refused: a JSON-RPC code and a plain sentence, with the request's id where it could be
// read. It never repeats the input.
type frameError struct {
	id      jsontext.Value
	rpc     int
	code    callv1.Code
	message string
}

func (e *frameError) Error() string { return e.message }

// JSON-RPC error codes.
const (
	rpcParse              = -32700
	rpcInvalidRequest     = -32600
	rpcMethodNotFound     = -32601
	rpcInvalidParams      = -32602
	rpcServer             = -32000
	rpcUnsupportedVersion = -32022
)

func invalidFrame(id jsontext.Value, rpc int, message string) *frameError {
	return &frameError{id: id, rpc: rpc, code: callv1.Code_CODE_INVALID_ARGUMENT, message: message}
}

// decodeFrame reads one message. The whole body is scanned first: UTF-8, unique keys, depth, nothing behind it.
func decodeFrame(body []byte) (*Frame, *frameError) {
	if err := canonical.Strict(body); err != nil {
		if errors.Is(err, canonical.ErrTooLarge) {
			return nil, &frameError{rpc: rpcInvalidRequest, code: callv1.Code_CODE_TOO_LARGE, message: sentenceTooLarge}
		}
		if errors.Is(err, canonical.ErrTooDeep) {
			return nil, invalidFrame(nil, rpcInvalidRequest, "The message is nested more than 50 levels deep.")
		}
		return nil, invalidFrame(nil, rpcParse, "The message is not strict JSON: it must be UTF-8, with unique keys and nothing behind it.")
	}
	if first := bytes.TrimLeft(body, " \t\r\n"); first[0] == '[' {
		return nil, invalidFrame(nil, rpcInvalidRequest, "Batches are not supported: send one message at a time.")
	}
	var m struct {
		Version *string        `json:"jsonrpc"`
		ID      jsontext.Value `json:"id"`
		Method  *string        `json:"method"`
		Params  jsontext.Value `json:"params"`
		Result  jsontext.Value `json:"result"`
		Error   jsontext.Value `json:"error"`
	}
	if err := json.Unmarshal(body, &m, json.RejectUnknownMembers(true)); err != nil {
		return nil, invalidFrame(nil, rpcInvalidRequest, "The message is not a JSON-RPC 2.0 request or notification.")
	}
	if m.ID != nil && !validID(m.ID) {
		return nil, invalidFrame(nil, rpcInvalidRequest, "The id must be a string of at most 64 characters or a whole number.")
	}
	switch {
	case m.Version == nil || *m.Version != "2.0":
		return nil, invalidFrame(m.ID, rpcInvalidRequest, "The message is not a JSON-RPC 2.0 request or notification.")
	case m.Method == nil || m.Result != nil || m.Error != nil:
		return nil, invalidFrame(nil, rpcInvalidRequest, "This server sends no requests, so that it takes no answers.")
	}
	f := &Frame{Method: *m.Method, ID: m.ID}
	if err := f.decodeParams(m.Params); err != nil {
		err.id = m.ID
		return nil, err
	}
	return f, nil
}

// decodeParams reads a method's parameters into f, and writes the body to forward.
func (f *Frame) decodeParams(params jsontext.Value) *frameError {
	note := strings.HasPrefix(f.Method, "notifications/")
	if note == (f.ID != nil) {
		return invalidFrame(nil, rpcInvalidRequest, "A request needs an id, and a notification has none.")
	}
	if params == nil {
		params = jsontext.Value("{}")
	}
	if params.Kind() != jsontext.KindBeginObject {
		return invalidFrame(nil, rpcInvalidParams, "The params must be a JSON object.")
	}
	meta, err := decodeMeta(params)
	if err != nil {
		return err
	}
	f.Protocol, f.Proof = meta.protocol, meta.proof
	if f.Protocol != "" {
		// Another era's message: the verdict on it is the router's.
		return nil
	}
	switch f.Method {
	case methodInitialize:
		return f.decodeInitialize(params)
	case methodCallTool:
		return f.decodeCall(params, meta.progressToken)
	case methodListTools:
		return f.decodeList(params)
	case noteCancelled:
		return f.decodeCancelled(params)
	case methodPing, noteInitialized:
		f.Body = f.build(nil)
		return nil
	case noteProgress, noteRootsChanged:
		return nil
	default:
		if note {
			return nil
		}
		return &frameError{rpc: rpcMethodNotFound, code: callv1.Code_CODE_NOT_FOUND, message: "This server does not offer that method."}
	}
}

type frameMeta struct {
	progressToken jsontext.Value
	protocol      string
	proof         *callv1.Proof
}

func decodeMeta(params jsontext.Value) (frameMeta, *frameError) {
	var p struct {
		Meta jsontext.Value `json:"_meta"`
	}
	var out frameMeta
	if err := json.Unmarshal(params, &p); err != nil {
		return out, invalidFrame(nil, rpcInvalidParams, "The params must be a JSON object.")
	}
	if p.Meta == nil {
		return out, nil
	}
	var m struct {
		ProgressToken jsontext.Value `json:"progressToken"`
		Protocol      *string        `json:"io.modelcontextprotocol/protocolVersion"`
		Proof         jsontext.Value `json:"durward/proof"`
	}
	if p.Meta.Kind() != jsontext.KindBeginObject || json.Unmarshal(p.Meta, &m) != nil {
		return out, invalidFrame(nil, rpcInvalidParams, "The _meta member of params is not what the protocol describes.")
	}
	if m.ProgressToken != nil {
		if !validID(m.ProgressToken) {
			return out, invalidFrame(nil, rpcInvalidParams, "The progressToken must be a string of at most 64 characters or a whole number.")
		}
		out.progressToken = m.ProgressToken
	}
	if m.Protocol != nil {
		if *m.Protocol == "" {
			return out, invalidFrame(nil, rpcInvalidParams, "The _meta member of params is not what the protocol describes.")
		}
		out.protocol = *m.Protocol
	}
	if m.Proof != nil {
		proof := new(callv1.Proof)
		if len(m.Proof) > maxProof || protojson.Unmarshal(m.Proof, proof) != nil {
			return out, invalidFrame(nil, rpcInvalidParams, "The durward/proof member of _meta is malformed.")
		}
		out.proof = proof
	}
	return out, nil
}

// decodeInitialize forwards a handshake without the client's capabilities: nothing here depends on them, and the SDK's
// errors about them would name its types.
func (f *Frame) decodeInitialize(params jsontext.Value) *frameError {
	var p struct {
		Protocol string `json:"protocolVersion"`
		Client   struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		} `json:"clientInfo"`
	}
	if json.Unmarshal(params, &p) != nil || p.Protocol == "" || len(p.Protocol) > maxLabel {
		return invalidFrame(nil, rpcInvalidParams, "The initialize request is not what the protocol describes.")
	}
	f.ClientName, f.ClientVersion = p.Client.Name, p.Client.Version
	version := p.Protocol
	if !SupportedProtocol(version) {
		// The SDK keeps the claim and would decide by it; an unsupported one is answered with the newest all the same.
		version = protocols[0]
	}
	f.Body = f.build([]byte(`{"protocolVersion":"` + version + `","capabilities":{},"clientInfo":{"name":"client","version":"0"}}`))
	return nil
}

func (f *Frame) decodeCall(params, progressToken jsontext.Value) *frameError {
	var p struct {
		Name      *string        `json:"name"`
		Arguments jsontext.Value `json:"arguments"`
		Meta      jsontext.Value `json:"_meta"`
	}
	if json.Unmarshal(params, &p, json.RejectUnknownMembers(true)) != nil || p.Name == nil {
		return invalidFrame(nil, rpcInvalidParams, "A tools/call request takes a name and arguments, and nothing else.")
	}
	if *p.Name == "" || len(*p.Name) > maxToolName {
		return invalidFrame(nil, rpcInvalidParams, "The tool's name must have 1 to 128 characters.")
	}
	if p.Arguments == nil {
		p.Arguments = jsontext.Value("{}")
	}
	f.Tool = *p.Name
	name, err := jsontext.AppendQuote(nil, f.Tool)
	if err != nil {
		return invalidFrame(nil, rpcInvalidParams, "The tool's name must have 1 to 128 characters.")
	}
	b := make([]byte, 0, len(name)+len(p.Arguments)+len(progressToken)+64)
	b = append(b, `{"name":`...)
	b = append(b, name...)
	b = append(b, `,"arguments":`...)
	b = append(b, p.Arguments...)
	if progressToken != nil {
		b = append(b, `,"_meta":{"`+metaProgressToken+`":`...)
		b = append(b, progressToken...)
		b = append(b, '}')
	}
	f.Body = f.build(append(b, '}'))
	return nil
}

func (f *Frame) decodeList(params jsontext.Value) *frameError {
	var p struct {
		Cursor *string        `json:"cursor"`
		Meta   jsontext.Value `json:"_meta"`
	}
	if json.Unmarshal(params, &p, json.RejectUnknownMembers(true)) != nil || p.Cursor != nil {
		return invalidFrame(nil, rpcInvalidParams, "The list has one page: ask for it without a cursor.")
	}
	f.Body = f.build(nil)
	return nil
}

func (f *Frame) decodeCancelled(params jsontext.Value) *frameError {
	var p struct {
		RequestID jsontext.Value `json:"requestId"`
		Reason    jsontext.Value `json:"reason"`
		Meta      jsontext.Value `json:"_meta"`
	}
	if json.Unmarshal(params, &p) != nil || !validID(p.RequestID) {
		return invalidFrame(nil, rpcInvalidParams, "A cancellation needs the id of the request.")
	}
	f.Body = f.build(append(append([]byte(`{"requestId":`), p.RequestID...), '}'))
	return nil
}

// build writes the message to forward, from values that were decoded above.
func (f *Frame) build(params []byte) []byte {
	b := make([]byte, 0, 64+len(f.ID)+len(f.Method)+len(params))
	b = append(b, `{"jsonrpc":"2.0","method":"`...)
	b = append(b, f.Method...) // one of the constants above: nothing to escape
	b = append(b, '"')
	if f.ID != nil {
		b = append(b, `,"id":`...)
		b = append(b, f.ID...)
	}
	if params != nil {
		b = append(b, `,"params":`...)
		b = append(b, params...)
	}
	return append(b, '}')
}

// validID reports whether v is a short string or a whole number that every JSON implementation keeps exactly.
func validID(v jsontext.Value) bool {
	switch v.Kind() {
	case jsontext.KindString:
		return len(v) >= 2 && len(v) <= maxID+2
	case jsontext.KindNumber:
		if len(v) > 15 {
			return false
		}
		for i, c := range v {
			if (c < '0' || c > '9') && (i > 0 || c != '-') {
				return false
			}
		}
		return true
	default:
		return false
	}
}
