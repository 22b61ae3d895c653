package front

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"durward.internal/gateway/internal/envelope"
	"durward.internal/gateway/internal/refusal"
	"durward.internal/gateway/internal/relay"
	callv1 "durward.internal/proto/gen/durward/call/v1"
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
	// quiet refusals are part of the protocol's ordinary course and are not recorded.
	quiet bool
}

// refuse answers with a JSON-RPC error and records the refusal.
func (f *Front) refuse(w http.ResponseWriter, r *http.Request, requestID string, no *refused) {
	code := fault.CodeName(no.code)
	attributes := []any{"reason", no.reason, "code", code, "http_status", no.status}
	level := slog.LevelInfo
	switch {
	case no.cause != nil:
		level, attributes = slog.LevelWarn, append(attributes, "fault", no.cause)
	case no.quiet:
		level = slog.LevelDebug
	}
	f.conf.Logger.Log(r.Context(), level, "refused", attributes...)
	if !no.quiet {
		event := refusal.Event{RequestID: requestID, Code: no.code, Reason: no.reason}
		if no.session != nil {
			event.Principal, event.Session = no.session.Principal(), no.session.Ref()
		}
		f.conf.Refusals.Record(r.Context(), event)
	}
	// The data is the envelope that a tool would have answered with, so that a client finds code, sentence and request id
	// where it always does; the code stands outside as well, as JSON-RPC's own data does elsewhere.
	data := map[string]any{
		"status": envelope.Error, "summary": no.message, "code": code, "request_id": requestID,
		"error": map[string]any{"code": code, "message": no.message, "retryable": no.retryable},
	}
	if no.retryable {
		data["retryable"] = true
	}
	for k, v := range no.data {
		data[k] = v
	}
	rpc := no.rpc
	if rpc == 0 {
		rpc = rpcServer
	}
	id := json.RawMessage(no.id)
	if id == nil {
		id = json.RawMessage("null")
	}
	body, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": id, "error": map[string]any{"code": rpc, "message": no.message, "data": data},
	})
	if err != nil {
		f.conf.Logger.ErrorContext(r.Context(), "encode a refusal", "error", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	if no.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="durward"`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(no.status)
	if _, err := w.Write(body); err != nil {
		f.conf.Logger.DebugContext(r.Context(), "the client left before its answer", "error", err)
	}
}

// allowedHost reports whether a Host header names this machine's loopback or a configured name: a page that rebinds its
// DNS name to 127.0.0.1 still sends its own.
func (f *Front) allowedHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"))
	if name == "localhost" || slices.Contains(f.conf.Hosts, name) {
		return true
	}
	ip := net.ParseIP(name)
	return ip != nil && ip.IsLoopback()
}

// allowedOrigin reports whether a request comes from a program, from this server's own origin, or from a configured one.
func (f *Front) allowedOrigin(r *http.Request) bool {
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		// Browsers that leave Origin out say where a request comes from in another header.
		site := r.Header.Get("Sec-Fetch-Site")
		return site == "" || site == "same-origin" || site == "none"
	}
	if len(origins) != 1 {
		return false
	}
	if slices.Contains(f.conf.Origins, origins[0]) {
		return true
	}
	u, err := url.Parse(origins[0])
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

func newReader(b []byte) io.Reader { return bytes.NewReader(b) }

// readAll is io.ReadAll with room for the announced length.
func readAll(r io.Reader, length int64) ([]byte, error) {
	var b bytes.Buffer
	if length > 0 {
		b.Grow(int(length) + bytes.MinRead)
	}
	_, err := b.ReadFrom(r)
	return b.Bytes(), err
}
