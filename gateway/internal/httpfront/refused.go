package httpfront

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"durward.internal/gateway/internal/envelope"
	"durward.internal/gateway/internal/refusal"
	"durward.internal/gateway/internal/relay"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/fault"
)

// refused says why a request went no further, in public words and for the log.
type refused struct {
	status int
	// id is the JSON-RPC request's, where it could be read.
	id      jsontext.Value
	rpc     int
	code    callv1.Code
	message string
	// reason is a fixed word for log and audit: never a value that somebody sent.
	reason    string
	retryable bool
	data      map[string]any
	cause     *fault.Error
	// session is the caller's, where it is known.
	session *relay.Session
	form    form
	// principal is whom the caller's token named, where no session is known.
	principal string
	// retry is after how long the same request may succeed; 0: nobody knows.
	retry time.Duration
	// slow refusals are held back for a while.
	slow bool
	// often: refusals of this kind come in floods, and are not worth a line in the log each.
	often bool
	// hangUp ends the connection with the answer.
	hangUp bool
	// quiet refusals are part of the protocol's ordinary course and are not recorded.
	quiet bool
}

// form is what an answer says no with.
type form int

const (
	// asError is a JSON-RPC error.
	asError form = iota
	// asResult is what a tool that was called answers, in the stateful era; in the stateless one a result says its kind.
	asResult
	asStatelessResult
)

// settle says how a message is answered that was understood: a tool answers for itself. For everything else the stateless era
// has HTTP's word for it, status; of clients of the other era nothing but a JSON-RPC answer to their request reaches anybody.
func (no *refused) settle(frame *Frame, status int) {
	no.id, no.status, no.form = frame.ID, http.StatusOK, asError
	switch {
	case frame.Method == methodCallTool && frame.Era == Stateful:
		no.form = asResult
	case frame.Method == methodCallTool:
		no.form = asStatelessResult
	case frame.Era == Stateless:
		no.status = status
	}
}

// refuse answers with a refusal and records it.
func (f *Front) refuse(w http.ResponseWriter, r *http.Request, requestID string, no *refused) {
	code := fault.CodeName(no.code)
	attributes := []any{"reason", no.reason, "code", code, "http_status", no.status}
	level := slog.LevelInfo
	switch {
	case no.often:
		level = slog.LevelDebug
	case no.cause != nil:
		level, attributes = slog.LevelWarn, append(attributes, "fault", no.cause)
	case no.quiet:
		level = slog.LevelDebug
	}
	f.conf.Logger.Log(r.Context(), level, "refused", attributes...)
	f.conf.Metrics.Refused(no.reason)
	if !no.quiet {
		f.note(r, requestID, no)
	}
	if no.slow {
		f.admission.pause(r.Context())
	}
	if no.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="durward"`)
	}
	no.header(w.Header())
	body, err := no.answer(requestID)
	if err != nil {
		f.conf.Logger.ErrorContext(r.Context(), "encode a refusal", "error", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(no.status)
	if _, err := w.Write(body); err != nil {
		f.conf.Logger.DebugContext(r.Context(), "the client left before its answer", "error", err)
	}
}

// maxMessage bounds a refusal's sentence, in characters.
const maxMessage = 500

// answer is the JSON-RPC message that says so: for a tool that was called the envelope, like whatever else may become of a
// call, and an error for everything else.
func (no *refused) answer(requestID string) ([]byte, error) {
	id := json.RawMessage(no.id)
	if id == nil {
		id = json.RawMessage("null")
	}
	message := clean.Sentence(no.message, maxMessage)
	f := fault.New(no.code, message)
	if no.retryable {
		f.Retryable, f.RetryAfter = true, no.retry
	}
	out := envelope.Fault(requestID, f) // of our words alone: nothing of a cause goes out
	if no.form != asError {
		return no.result(id, out)
	}
	rpc := no.rpc
	rpc = cmp.Or(rpc, rpcServer)
	data := ErrorData(out)
	maps.Copy(data, no.data)
	return json.Marshal(envelope.Cleaned(map[string]any{
		"jsonrpc": "2.0", "id": id, "error": map[string]any{"code": rpc, "message": message, "data": data},
	}))
}

// ErrorData is the data of a JSON-RPC error: the envelope that a tool would have answered with, so that a client finds code,
// sentence and request id where it always does. The code stands outside as well, as JSON-RPC's own data does elsewhere.
func ErrorData(e *envelope.Envelope) map[string]any {
	data := map[string]any{"status": e.Status, "summary": e.Summary, "code": e.Error.Code, "request_id": e.RequestID, "error": e.Error}
	if e.Error.Retryable {
		data["retryable"] = true
	}
	return data
}

// result is the answer of a tool that was never reached.
func (no *refused) result(id json.RawMessage, out *envelope.Envelope) ([]byte, error) {
	raw, err := out.JSON()
	if err != nil {
		return nil, err
	}
	meta := map[string]any{"durward/request_id": out.RequestID}
	if no.code == callv1.Code_CODE_PROOF_REQUIRED {
		meta["durward/proof_needed"] = "open"
	}
	result := map[string]any{
		"isError": true, "_meta": meta, "structuredContent": json.RawMessage(raw),
		"content": []any{map[string]any{"type": "text", "text": string(raw)}},
	}
	if no.form == asStatelessResult {
		result["resultType"] = "complete"
	}
	return json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "result": result})
}

// note writes a refusal down: the first of its principal and kind, and then how many there were. What is refused here is the
// manner of a message and not what it says, so that one stands for all of them.
func (f *Front) note(r *http.Request, requestID string, no *refused) {
	event := refusal.Event{RequestID: requestID, Code: no.code, Reason: no.reason, Principal: no.principal}
	if no.session != nil {
		event.Principal, event.Session = no.session.Principal(), no.session.Ref()
	}
	f.conf.Refusals.RecordOften(r.Context(), event)
}

// header says in HTTP's words when to come back, and whether on another connection.
func (no *refused) header(h http.Header) {
	if no.retry > 0 {
		h.Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(no.retry.Seconds())))))
	}
	if no.hangUp {
		h.Set("Connection", "close")
	}
}
