package child

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/services/egress/internal/toollist"
	"durward.internal/services/platform/clean"
)

const (
	// maxFrame is the longest frame, in bytes.
	maxFrame = 4 << 20
	// maxUnasked is how many frames that answer nothing a server may send within a second.
	maxUnasked = 1000
	// maxMessage is the most characters of a line in the log.
	maxMessage = 500
	// maxError is the longest message of an error, in bytes. It is passed on whole or not at all: of a part of a secret nobody knows what it is.
	maxError = 64 << 10
)

// frames decides on each frame of one connection, whatever carries it (MCP-4). An answer passes when it is the first one to a call that
// waits, with the known fields of its method. Of what a server asks, ping and roots/list pass, and where its entry says so a form; all else
// becomes a method that nobody knows. Notifications are handed over here, and do not pass.
type frames struct {
	// toolsChanged and logged hand over notifications. They do not block.
	toolsChanged func()
	logged       func(line string)
	// elicits: the server may ask during a call.
	elicits bool

	mu      sync.Mutex
	pending map[string]jsonrpc.Request // by the id's lexeme
	second  time.Time
	unasked int

	// dropped is how many frames were not passed on.
	dropped atomic.Int64

	// asking is held while the first frame is written to a pipe, which has taken it or has not.
	asking sync.Mutex
	taken  bool
}

// frame is a message with its known members.
type frame struct {
	Version string         `json:"jsonrpc"`
	ID      jsontext.Value `json:"id"`
	Method  string         `json:"method"`
	Params  jsontext.Value `json:"params"`
	Result  jsontext.Value `json:"result"`
	Error   *frameError    `json:"error"`
}

type frameError struct {
	Code    errorCode      `json:"code"`
	Message string         `json:"message"`
	Data    jsontext.Value `json:"data"`
}

// errorCode is a code, or that of an internal error: some servers write a word there, and their message is of use all the same.
type errorCode int64

// UnmarshalJSON implements json.Unmarshaler.
func (c *errorCode) UnmarshalJSON(raw []byte) error {
	n, err := strconv.ParseInt(string(raw), 10, 32)
	if err != nil {
		n = jsonrpc.CodeInternalError
	}
	*c = errorCode(n)
	return nil
}

// sent notes what goes to the server: a call waits for an answer, and one that was cancelled no longer does.
func (f *frames) sent(message jsonrpc.Message) {
	request, ok := message.(*jsonrpc.Request)
	if !ok {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if request.IsCall() {
		if f.pending == nil {
			f.pending = map[string]jsonrpc.Request{}
		}
		f.pending[lexeme(request.ID)] = jsonrpc.Request{ID: request.ID, Method: request.Method}
		return
	}
	if request.Method == "notifications/cancelled" {
		var cancelled struct {
			ID jsontext.Value `json:"requestId"`
		}
		if json.Unmarshal(request.Params, &cancelled) == nil {
			delete(f.pending, string(cancelled.ID))
		}
	}
}

// forget notes that no answer to a call is waited for.
func (f *frames) forget(call jsonrpc.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pending, lexeme(call.ID))
}

// forgetAll notes that no answer to any call is waited for.
func (f *frames) forgetAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.pending)
}

// unheard reports whether the first question of the newest revision has no answer yet. Then, if it is the last word, none that comes later counts.
func (f *frames) unheard(last bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, call := range f.pending {
		if call.Method == "server/discover" {
			if last {
				f.pending = map[string]jsonrpc.Request{"no answer's id": call}
			}
			return true
		}
	}
	return false
}

// lexeme is how an id of ours is written: the SDK counts its calls.
func lexeme(id jsonrpc.ID) string { return fmt.Sprint(id.Raw()) }

// halves has half a surrogate pair pass as U+FFFD: JavaScript's strings hold one where a text was cut within an emoji.
var halves = jsontext.AllowInvalidUTF8(true)

// received returns the message that is passed on, nil for a frame that is not, or why the server cannot go on.
func (f *frames) received(raw []byte) (jsonrpc.Message, error) {
	raw = bytes.TrimPrefix(bytes.TrimSpace(raw), []byte("\ufeff")) // .NET writes a byte order mark before its first frame
	if len(raw) == 0 || raw[0] != '{' || !bytes.Contains(raw, []byte(`"jsonrpc"`)) {
		// Servers print greetings, traces and objects that they log where frames belong.
		return nil, f.drop()
	}
	var in frame
	if !utf8.Valid(raw) {
		return nil, fmt.Errorf("%w: it is not UTF-8", errMalformed)
	}
	if err := json.Unmarshal(raw, &in, halves); err != nil || in.Version != "2.0" {
		var own struct {
			Version jsontext.Value `json:"jsonrpc"`
		}
		if json.Unmarshal(raw, &own, halves) == nil && own.Version == nil {
			return nil, f.drop() // what they log may hold a frame
		}
		if wrong, is := errors.AsType[*jsontext.SyntacticError](err); is {
			return nil, fmt.Errorf("%w: %s", errMalformed, clean.Line(wrong.Err.Error(), maxMessage))
		}
		return nil, errors.New("what it sent is not JSON-RPC 2.0")
	}
	switch {
	case in.Method == "":
		return f.answered(in)
	case in.ID == nil:
		return nil, f.notified(in)
	default:
		return f.asked(in)
	}
}

// drop counts a frame that is not passed on.
func (f *frames) drop() error {
	f.dropped.Add(1)
	return f.count()
}

// count refuses a flood of frames that nobody asked for.
func (f *frames) count() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.Sub(f.second) >= time.Second {
		f.second, f.unasked = now, 0
	}
	if f.unasked++; f.unasked > maxUnasked {
		return fmt.Errorf("it sent more than %d messages within a second that answer nothing", maxUnasked)
	}
	return nil
}

func (f *frames) answered(in frame) (jsonrpc.Message, error) {
	f.mu.Lock()
	call, waits := f.pending[string(in.ID)]
	delete(f.pending, string(in.ID))
	f.mu.Unlock()
	if !waits {
		return nil, f.drop()
	}
	out, err := in.answer(call)
	if response, is := out.(*jsonrpc.Response); is && f.elicits && response.Result != nil {
		if response.Result, err = forms(response.Result); err != nil {
			response.Error = &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
			return response, nil
		}
	}
	return out, err
}

// answer rebuilds the answer to a call.
func (in frame) answer(call jsonrpc.Request) (jsonrpc.Message, error) {
	out := &jsonrpc.Response{ID: call.ID}
	switch {
	case in.Error != nil:
		message := clean.Line(in.Error.Message, clean.Whole)
		if len(message) > maxError {
			message = fmt.Sprintf("a message of more than %d KiB, which is not passed on", maxError>>10)
		}
		out.Error = &jsonrpc.Error{Code: int64(in.Error.Code), Message: message, Data: supported(in.Error.Data)}
	case len(in.Result) == 0 || in.Result.Kind() != '{':
		out.Error = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "an answer without a result"}
	default:
		known := results[call.Method]
		if known == nil {
			known = noFields
		}
		result, err := known.rebuild(in.Result)
		if err != nil {
			return nil, err
		}
		switch call.Method {
		case "initialize":
			err = spoken(result)
		case "tools/list":
			result, err = toollist.Readable[mcp.Tool](result, "tools")
		case "prompts/list":
			result, err = toollist.Readable[mcp.Prompt](result, "prompts")
		}
		if err != nil {
			return nil, err
		}
		out.Result = result
	}
	return out, nil
}

// spoken refuses an answer to initialize that the SDK does not take: it would hang up, and the end of the process would be the reason.
func spoken(hello []byte) error {
	var said mcp.InitializeResult
	if json.Unmarshal(hello, &said, halves) != nil {
		return errors.New("its answer to initialize is not one that MCP knows")
	}
	if known := mcp.SupportedProtocolVersions(); !slices.Contains(known, said.ProtocolVersion) {
		return fmt.Errorf("it speaks revision %q of MCP, which is not known here: %s are", clean.Line(said.ProtocolVersion, maxName), strings.Join(known, ", "))
	}
	return nil
}

// supported is what is passed on of an error's data: the revisions of the protocol that the server knows.
func supported(data jsontext.Value) []byte {
	var known struct {
		Supported []string `json:"supported"`
	}
	if json.Unmarshal(data, &known) != nil || len(known.Supported) == 0 {
		return nil
	}
	out, _ := json.Marshal(known)
	return out
}

func (f *frames) asked(in frame) (jsonrpc.Message, error) {
	id, ok := requestID(in.ID)
	if !ok {
		return nil, f.drop()
	}
	method := in.Method
	if method == methodElicit && f.elicits {
		if params, err := formOf(in.Params); err == nil {
			return &jsonrpc.Request{ID: id, Method: method, Params: params}, f.count()
		}
	}
	if method == "ping" || method == "roots/list" {
		return &jsonrpc.Request{ID: id, Method: method}, f.count()
	}
	return &jsonrpc.Request{ID: id, Method: "refused"}, f.drop() // the SDK answers that there is no such method
}

// requestID reads the id of a server's request: a short string, or an integer.
func requestID(raw jsontext.Value) (jsonrpc.ID, bool) {
	var id any
	switch raw.Kind() {
	case '"':
		var text string
		if json.Unmarshal(raw, &text) != nil || len(text) > 64 {
			return jsonrpc.ID{}, false
		}
		id = text
	case '0':
		n, err := strconv.ParseInt(string(raw), 10, 53)
		if err != nil {
			return jsonrpc.ID{}, false
		}
		id = float64(n)
	default:
		return jsonrpc.ID{}, false
	}
	made, err := jsonrpc.MakeID(id)
	return made, err == nil
}

func (f *frames) notified(in frame) error {
	if err := f.count(); err != nil {
		return err
	}
	switch in.Method {
	case "notifications/tools/list_changed", "notifications/prompts/list_changed":
		f.toolsChanged()
	case "notifications/message":
		var m struct {
			Level  string         `json:"level"`
			Logger string         `json:"logger"`
			Data   jsontext.Value `json:"data"`
		}
		if !messageShape.decode(in.Params, &m) {
			return f.drop()
		}
		said := string(m.Data)
		_ = json.Unmarshal(m.Data, &said) // what is no text is shown as JSON
		f.logged(clean.Line(m.Level+" "+m.Logger+" "+said, maxMessage))
	default:
		return f.drop()
	}
	return nil
}

// decode reads what the shape passes on of a value, and reports whether it could.
func (s *shape) decode(raw jsontext.Value, v any) bool {
	known, err := s.rebuild(raw)
	return err == nil && json.Unmarshal(known, v) == nil
}
