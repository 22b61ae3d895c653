package httpfront

import (
	"bytes"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/canonical"
)

// Bounds on what a frame may say (WS-1). Protocol ids are short; the length of a tool's name is the SDK's.
const (
	maxID    = 64
	maxName  = 128
	maxLabel = 128
	maxURI   = 2048
	// maxText is in characters.
	maxText  = 200_000
	maxProof = 4096
)

// Frame is one JSON-RPC message of a client, decoded strictly and rebuilt from the parts that are understood: what is
// decided on and what is forwarded are the same values.
type Frame struct {
	Era    Era
	Method string
	// ID is the raw id of a request, nil for a notification.
	ID jsontext.Value
	// Body is the message to forward; nil if nothing needs to be forwarded.
	Body []byte
	// Name is what the message is about, as the Mcp-Name header repeats it: a tool's name, a resource's URI, a task's id.
	Name string
	// Tool is the tool's name, and Arguments are its arguments as they were sent, for tools/call.
	Tool      string
	Arguments jsontext.Value
	// Cancels is the id of the request that a notifications/cancelled is about, as requestKey spells it.
	Cancels string
	// Resources is how many resources a subscriptions/listen names.
	Resources int
	meta
}

// frameError says why a frame is refused: a JSON-RPC code and a plain sentence, with the request's id where it could be
// read. It never repeats the input.
type frameError struct {
	id      jsontext.Value
	era     Era
	rpc     int
	code    callv1.Code
	message string
	data    map[string]any
	// quiet: clients ask so in the ordinary course.
	quiet bool
}

func (e *frameError) Error() string { return e.message }

// status is the HTTP status of the refusal. The stateless era prescribes it; the older one answers a request that it could
// read with 200.
func (e *frameError) status() int {
	switch {
	case e.code == callv1.Code_CODE_TOO_LARGE:
		return http.StatusRequestEntityTooLarge
	case e.rpc == rpcUnsupportedVersion:
		return http.StatusBadRequest
	case e.era == Stateless && e.rpc == rpcMethodNotFound:
		return http.StatusNotFound
	case e.era == Stateful && e.id != nil:
		return http.StatusOK
	default:
		return http.StatusBadRequest
	}
}

// JSON-RPC error codes.
const (
	rpcParse              = -32700
	rpcInvalidRequest     = -32600
	rpcMethodNotFound     = -32601
	rpcInvalidParams      = -32602
	rpcInternal           = -32603
	rpcServer             = -32000
	rpcHeaderMismatch     = -32020
	rpcMissingCapability  = -32021
	rpcUnsupportedVersion = -32022
)

func invalidFrame(rpc int, message string) *frameError {
	return &frameError{rpc: rpc, code: callv1.Code_CODE_INVALID_ARGUMENT, message: message}
}

func invalidParams(message string) *frameError { return invalidFrame(rpcInvalidParams, message) }

// decoder reads messages by a closed table of methods.
type decoder struct{ methods map[string]method }

// decode reads one message, no longer than readBody lets in. The whole body is scanned first: UTF-8, unique keys, depth, nothing behind it.
func (d decoder) decode(body []byte, h headers) (*Frame, *frameError) {
	body = asSent(body)
	if err := canonical.Strict(body); err != nil {
		if errors.Is(err, canonical.ErrTooDeep) {
			return nil, invalidFrame(rpcInvalidRequest, "The message is nested more than 50 levels deep.")
		}
		return nil, invalidFrame(rpcParse, "The message is not strict JSON: it must be UTF-8, with unique keys and nothing behind it.")
	}
	if first := bytes.TrimLeft(body, " \t\r\n"); first[0] == '[' {
		return nil, invalidFrame(rpcInvalidRequest, "Batches are not supported: send one message at a time.")
	}
	if longText(body) {
		return nil, invalidFrame(rpcInvalidRequest, "A text in the message is longer than 200,000 characters.")
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
		return nil, invalidFrame(rpcInvalidRequest, "The message is not a JSON-RPC 2.0 request or notification.")
	}
	if m.ID != nil && !validID(m.ID) {
		return nil, invalidFrame(rpcInvalidRequest, "The id must be a string of at most 64 printable ASCII characters or a whole number of at most 15 characters.")
	}
	f := &Frame{ID: m.ID}
	refuse := func(err *frameError) (*Frame, *frameError) {
		err.id, err.era = m.ID, f.Era
		return nil, err
	}
	switch {
	case m.Version == nil || *m.Version != "2.0":
		return refuse(invalidFrame(rpcInvalidRequest, "The message is not a JSON-RPC 2.0 request or notification."))
	case m.Method == nil && m.Params == nil && (m.Result != nil) != (m.Error != nil):
		if f = diagnosticAnswer(m.ID, m.Result, m.Error); f != nil {
			return f, nil
		}
		return nil, invalidFrame(rpcInvalidRequest, "This server sends no requests, so that it takes no answers.")
	case m.Method == nil || m.Result != nil || m.Error != nil:
		return nil, invalidFrame(rpcInvalidRequest, "The message is not a JSON-RPC 2.0 request or notification.")
	}
	f.Method = *m.Method
	if m.Params == nil {
		m.Params = jsontext.Value("{}")
	}
	if err := d.decodeParams(f, m.Params, h); err != nil {
		return refuse(err)
	}
	return f, nil
}

// decodeParams decides the era, reads a method's parameters into f, and writes the body to forward.
func (d decoder) decodeParams(f *Frame, params jsontext.Value, h headers) *frameError {
	note := strings.HasPrefix(f.Method, "notifications/")
	if note == (f.ID != nil) {
		return invalidFrame(rpcInvalidRequest, "A request needs an id, and a notification has none.")
	}
	var err *frameError
	f.meta, err = decodeMeta(params)
	f.Era = h.era(f) // also of what is refused: each era has its own way to say so
	if err != nil {
		return err
	}
	if err := h.check(f); err != nil {
		return err
	}
	m, known := d.methods[f.Method]
	switch {
	case known && m.eras&f.Era.bit() != 0:
	case note:
		return nil // taken and ignored, like any notification that says nothing to us
	default:
		return &frameError{rpc: rpcMethodNotFound, code: callv1.Code_CODE_NOT_FOUND, message: "This server does not offer that method."}
	}
	if m.tasks && !f.Capabilities.Tasks {
		return missingTasks()
	}
	members, err := m.decode(f, params)
	if err != nil {
		return err
	}
	if err := h.checkName(f, m.named); err != nil {
		return err
	}
	if m.forward {
		f.Body = f.build(members)
	}
	return nil
}

// missingTasks refuses what belongs to the tasks extension from a client that did not declare it.
func missingTasks() *frameError {
	return &frameError{rpc: rpcMissingCapability, code: callv1.Code_CODE_INVALID_ARGUMENT,
		message: "The request must declare the extension " + extensionTasks + " among its client capabilities.",
		data:    map[string]any{"requiredCapabilities": map[string]any{"extensions": map[string]any{extensionTasks: map[string]any{}}}}}
}

// build writes the message to forward, from values that were decoded above. members are those of params, but _meta.
func (f *Frame) build(members []byte) []byte {
	var about []byte
	if f.ID != nil {
		about = f.forward(f.Era)
	}
	b := make([]byte, 0, 96+len(f.ID)+len(f.Method)+len(members)+len(about))
	b = append(b, `{"jsonrpc":"2.0","method":"`...)
	b = append(b, f.Method...) // a name of the table: nothing to escape
	b = append(b, '"')
	if f.ID != nil {
		b = append(b, `,"id":`...)
		b = append(b, f.ID...)
	}
	if len(members) > 0 || len(about) > 0 {
		b = append(b, `,"params":{`...)
		b = append(b, members...)
		if len(about) > 0 {
			if len(members) > 0 {
				b = append(b, ',')
			}
			b = append(b, `"_meta":{`...)
			b = append(b, about...)
			b = append(b, '}')
		}
		b = append(b, '}')
	}
	return append(b, '}')
}

// longText reports whether a key or text of strict JSON has more than maxText characters.
func longText(raw []byte) bool {
	if len(raw) <= maxText {
		return false
	}
	start := -1
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case start >= 0 && c == '\\':
			i++
		case c != '"':
		case start < 0:
			start = i
		default:
			if text := raw[start : i+1]; len(text) > maxText+2 {
				plain, err := jsontext.AppendUnquote(nil, text)
				if err != nil || utf8.RuneCount(plain) > maxText {
					return true
				}
			}
			start = -1
		}
	}
	return false
}

// requestKey spells an id that validID accepts in one way, so that two spellings of one id are equal.
func requestKey(id jsontext.Value) string {
	if id.Kind() == jsontext.KindString {
		plain, _ := jsontext.AppendUnquote([]byte{'"'}, id)
		return string(plain)
	}
	if n, err := strconv.ParseInt(string(id), 10, 64); err == nil {
		return strconv.FormatInt(n, 10)
	}
	return string(id)
}

// validID reports whether v is a short string or a whole number that every JSON implementation keeps exactly. It is sent back
// as it came, so that a string must be plain: printable ASCII, which counts as it is written.
func validID(v jsontext.Value) bool {
	switch v.Kind() {
	case jsontext.KindString:
		if len(v) < 2 || len(v) > maxID+2 {
			return false
		}
		plain, err := jsontext.AppendUnquote(nil, v)
		return err == nil && !slices.ContainsFunc(plain, func(c byte) bool { return c < ' ' || c > '~' })
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
