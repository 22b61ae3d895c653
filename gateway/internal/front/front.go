// Package front is the HTTP side of the gateway, the first thing that a stranger's bytes meet. It checks Host and Origin,
// the method, the media types, the size, the JSON (strictly, once, the whole body), and who is calling; it keeps the table
// of sessions; and it passes on a message that it rebuilt from the parts it understood. It trusts nothing that arrives, and
// nothing that it refuses reaches the SDK.
//
// A client authenticates with a bearer token in the Authorization header of every request, and nowhere else. The vault
// judges the token when a session opens; later requests of that session must bring the same one, compared in constant time.
// A session that is not there and a session of somebody else look alike.
package front

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"durward.internal/gateway/internal/envelope"
	"durward.internal/gateway/internal/refusal"
	"durward.internal/gateway/internal/relay"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
)

// Path is where MCP is served.
const Path = "/mcp"

// Headers of the protocol.
const (
	headerSession  = "Mcp-Session-Id"
	headerProtocol = "Mcp-Protocol-Version"
)

// maxToken is the longest bearer token that the vault takes.
const maxToken = 512

// protocols are the revisions of the stateful era that are served, newest first.
var protocols = []string{"2025-11-25", "2025-06-18"}

// Protocols returns the revisions of the stateful era that are served, newest first.
func Protocols() []string { return slices.Clone(protocols) }

// SupportedProtocol reports whether a revision of the stateful era is served.
func SupportedProtocol(version string) bool { return slices.Contains(protocols, version) }

// modernEra is the first revision without sessions.
const modernEra = "2026-07-28"

// Sessions opens and closes sessions at the vault.
type Sessions interface {
	Open(ctx context.Context, by relay.Caller) (*relay.Session, error)
	Close(ctx context.Context, s *relay.Session)
}

// Config is what New needs.
type Config struct {
	Sessions Sessions
	// Stateful serves the messages of the 2025 era that passed; Of gives it the call that a request belongs to.
	Stateful http.Handler
	Refusals *refusal.Recorder
	Logger   *slog.Logger
	// Hosts are further names that a request may be addressed to, beside the loopback names, without ports.
	Hosts []string
	// Origins are web origins that browsers may call from, "https://console.example". None is allowed by default, but the
	// server's own.
	Origins []string
	// SessionsPerPrincipal is how many sessions one principal keeps: a further one ends the one that has been idle longest.
	SessionsPerPrincipal int
}

// Front is an http.Handler. It is safe for concurrent use.
type Front struct {
	conf   Config
	table  *table
	ending sync.WaitGroup
}

// New returns a Front over the parts of conf.
func New(conf Config) (*Front, error) {
	if conf.Sessions == nil || conf.Stateful == nil || conf.Refusals == nil || conf.Logger == nil {
		return nil, errors.New("front: sessions, stateful handler, refusals and logger are required")
	}
	if conf.SessionsPerPrincipal <= 0 {
		return nil, errors.New("front: the number of sessions per principal must be positive")
	}
	return &Front{conf: conf, table: newTable(conf.SessionsPerPrincipal)}, nil
}

// Close ends every session, here and at the vault, and returns when the vault was told.
func (f *Front) Close(ctx context.Context) {
	for _, e := range f.table.drain() {
		f.shut(ctx, e)
	}
	f.ending.Wait()
}

// shut ends a session that is no longer in the table, without waiting for the calls that are under way.
func (f *Front) shut(ctx context.Context, e *entry) {
	if e.end != nil {
		go e.end()
	}
	f.ending.Go(func() { f.conf.Sessions.Close(context.WithoutCancel(ctx), e.relay) })
}

// Call is what the front knows about one message that it let through.
type Call struct {
	RequestID string
	// Session is the principal's session at the vault.
	Session *relay.Session
	// Caller is what this request brought with it.
	Caller relay.Caller
	// Gone is closed when the client's HTTP request ends.
	Gone <-chan struct{}

	entry *entry
	front *Front
}

// Bind ties the session that a handshake opened to the id that the SDK gave it, and reports whether it is admitted. end
// closes the SDK's side of the session. A principal at its cap loses the session that has been idle longest.
func (c *Call) Bind(ctx context.Context, id string, end func()) bool {
	evicted, admitted := c.front.table.add(c.entry, id, end)
	if evicted != nil {
		c.front.conf.Logger.InfoContext(ctx, "a principal's oldest idle session makes room", "principal", evicted.relay.Principal())
		c.front.shut(ctx, evicted)
	}
	return admitted
}

// Unbind ends a session that was bound, when the SDK's side of it is gone. It may be called more than once.
func (c *Call) Unbind(ctx context.Context) {
	if c.front.table.remove(c.entry) {
		c.front.shut(ctx, c.entry)
	}
}

type callKey struct{}

// Of returns the call that a request belongs to, or nil.
func Of(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// Sentences that stand in more than one place.
const (
	sentenceTooLarge = "The message is larger than 1 MB."
	sentenceToken    = "This server needs a token: send it as \"Authorization: Bearer TOKEN\". The operator makes one with: durward client add"
	sentenceWrong    = "The token is not known or was revoked. Ask the operator for a new one (durward client add)."
	sentenceSession  = "There is no such session. Start a new one with initialize."
)

// ServeHTTP implements http.Handler.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	requestID := rpc.NewRequestID()
	r = r.WithContext(rpc.WithRequestID(r.Context(), requestID))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Durward-Request-Id", requestID)
	if no := f.serve(w, r, requestID); no != nil {
		f.refuse(w, r, requestID, no)
	}
}

// serve handles one request, or says why it does not.
func (f *Front) serve(w http.ResponseWriter, r *http.Request, requestID string) *refused {
	switch {
	case !f.allowedHost(r.Host):
		return &refused{status: http.StatusForbidden, code: callv1.Code_CODE_DENIED, reason: "host",
			message: "This server does not answer to that host name."}
	case !f.allowedOrigin(r):
		return &refused{status: http.StatusForbidden, code: callv1.Code_CODE_DENIED, reason: "origin",
			message: "This server does not answer to web pages of that origin."}
	case r.URL.Path != Path:
		return &refused{status: http.StatusNotFound, code: callv1.Code_CODE_NOT_FOUND, reason: "path", message: "MCP is served at /mcp."}
	}
	token, ok := bearer(r.Header)
	if !ok {
		return &refused{status: http.StatusUnauthorized, code: callv1.Code_CODE_UNAUTHENTICATED, reason: "no token", message: sentenceToken}
	}
	switch r.Method {
	case http.MethodPost:
		return f.post(w, r, requestID, token)
	case http.MethodDelete:
		return f.delete(w, r, token)
	default:
		// No GET: the server has nothing to say outside a client's own requests, and a stream that hangs costs a connection.
		w.Header().Set("Allow", "POST, DELETE")
		return &refused{status: http.StatusMethodNotAllowed, code: callv1.Code_CODE_INVALID_ARGUMENT, reason: "method", quiet: r.Method == http.MethodGet,
			message: "Only POST and DELETE are served here."}
	}
}

// post serves one message. A request for a session is judged before its body is read: strangers get as far as a handshake.
func (f *Front) post(w http.ResponseWriter, r *http.Request, requestID, token string) *refused {
	id := r.Header.Get(headerSession)
	if id == "" {
		return f.message(w, r, requestID, token, nil)
	}
	e := f.table.acquire(id, sha256.Sum256([]byte(token)))
	if e == nil {
		return &refused{status: http.StatusNotFound, code: callv1.Code_CODE_NOT_FOUND, reason: "session", message: sentenceSession}
	}
	defer f.table.release(e)
	no := f.message(w, r, requestID, token, e)
	if no != nil {
		no.session = e.relay
	}
	return no
}

// message reads, decodes and forwards the message of a request; e is its session, nil at a handshake.
func (f *Front) message(w http.ResponseWriter, r *http.Request, requestID, token string, e *entry) *refused {
	if no := checkMedia(r.Header); no != nil {
		return no
	}
	body, no := readBody(w, r)
	if no != nil {
		return no
	}
	frame, bad := decodeFrame(body)
	if bad != nil {
		status := http.StatusBadRequest
		if bad.code == callv1.Code_CODE_TOO_LARGE {
			status = http.StatusRequestEntityTooLarge
		}
		if bad.id != nil {
			status = http.StatusOK // a JSON-RPC answer to a JSON-RPC request
		}
		return &refused{status: status, id: bad.id, rpc: bad.rpc, code: bad.code, reason: "frame", message: bad.message}
	}
	if no := checkEra(r.Header, frame); no != nil {
		return no
	}
	call := &Call{
		RequestID: requestID,
		Caller:    relay.Caller{Credential: token, ClientName: frame.ClientName, ClientVersion: frame.ClientVersion, Proof: frame.Proof},
		Gone:      r.Context().Done(),
		front:     f,
	}
	handshake := frame.Method == methodInitialize
	switch {
	case e == nil && handshake:
		return f.open(w, r, call, frame)
	case e == nil:
		return &refused{status: http.StatusBadRequest, id: frame.ID, rpc: rpcInvalidRequest, code: callv1.Code_CODE_UNAUTHENTICATED,
			reason: "no session", message: "Start a session with initialize, and send its Mcp-Session-Id from then on."}
	case handshake:
		return &refused{status: http.StatusOK, id: frame.ID, rpc: rpcInvalidRequest, code: callv1.Code_CODE_INVALID_ARGUMENT,
			reason: "frame", message: "This session is initialised already."}
	}
	call.Session, call.entry = e.relay, e
	if frame.Body == nil {
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	f.forward(w, r, call, frame)
	return nil
}

// open serves a handshake: the vault judges the credential before the SDK hears of it.
func (f *Front) open(w http.ResponseWriter, r *http.Request, call *Call, frame *Frame) *refused {
	token := sha256.Sum256([]byte(call.Caller.Credential))
	session, err := f.conf.Sessions.Open(r.Context(), call.Caller)
	if fault.Is(err, callv1.Code_CODE_RATE_LIMITED) {
		// The vault counts sessions too. Clients that never say goodbye make room for themselves.
		if oldest := f.table.oldest(token); oldest != nil && f.table.remove(oldest) {
			go oldest.end()
			f.conf.Sessions.Close(r.Context(), oldest.relay)
			session, err = f.conf.Sessions.Open(r.Context(), call.Caller)
		}
	}
	if err != nil {
		return openRefused(frame.ID, fault.From(err))
	}
	call.Session = session
	call.entry = &entry{token: token, relay: session}
	f.forward(w, r, call, frame)
	if f.table.abandon(call.entry) {
		f.shut(r.Context(), call.entry)
	}
	return nil
}

// openRefused turns the vault's answer to a credential into the client's. Only a wrong credential is an HTTP error, since
// clients show the sentence of a JSON-RPC error and hide the body of a 503.
func openRefused(id jsontext.Value, err *fault.Error) *refused {
	out := &refused{status: http.StatusOK, id: id, rpc: rpcServer, code: err.Code, reason: "session not opened", message: envelope.Sentence(err.Message),
		retryable: err.Retryable, cause: err}
	switch err.Code {
	case callv1.Code_CODE_UNAUTHENTICATED, callv1.Code_CODE_DENIED, callv1.Code_CODE_INVALID_ARGUMENT:
		out.status, out.message, out.code = http.StatusUnauthorized, sentenceWrong, callv1.Code_CODE_UNAUTHENTICATED
	case callv1.Code_CODE_UNAVAILABLE, callv1.Code_CODE_TIMEOUT:
		out.message = "Durward's vault cannot be reached, so nobody can be let in. Try again in a moment; the operator can look with: durward status"
		out.retryable = true
	}
	return out
}

// delete ends a session. It does not wait for calls that are under way: they end with it.
func (f *Front) delete(w http.ResponseWriter, r *http.Request, token string) *refused {
	id := r.Header.Get(headerSession)
	e := f.table.acquire(id, sha256.Sum256([]byte(token)))
	if e == nil {
		return &refused{status: http.StatusNotFound, code: callv1.Code_CODE_NOT_FOUND, reason: "session", message: sentenceSession}
	}
	f.table.release(e)
	if f.table.remove(e) {
		f.shut(r.Context(), e)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// forward gives the rebuilt message to the SDK.
func (f *Front) forward(w http.ResponseWriter, r *http.Request, call *Call, frame *Frame) {
	r = r.WithContext(context.WithValue(r.Context(), callKey{}, call))
	r.Body = io.NopCloser(newReader(frame.Body))
	r.ContentLength = int64(len(frame.Body))
	f.conf.Stateful.ServeHTTP(w, r)
}

// checkEra refuses revisions that are not served. A message that claims a revision of its own belongs to the stateless era.
func checkEra(h http.Header, frame *Frame) *refused {
	version := h.Get(headerProtocol)
	if frame.Protocol == "" && (version == "" || SupportedProtocol(version) || frame.Method == methodInitialize) {
		return nil
	}
	return &refused{status: http.StatusBadRequest, id: frame.ID, rpc: rpcUnsupportedVersion, code: callv1.Code_CODE_INVALID_ARGUMENT,
		reason: "protocol version", quiet: frame.Protocol == modernEra, message: "This server speaks MCP 2025-11-25 and 2025-06-18.",
		data: map[string]any{"supported": protocols, "requested": requested(frame.Protocol, version)}}
}

// requested repeats the revision that a client asked for only if it looks like one.
func requested(claims ...string) string {
	for _, c := range claims {
		if _, err := time.Parse(time.DateOnly, c); err == nil {
			return c
		}
	}
	return "unknown"
}

// bearer returns the token of the one Authorization header, if it is well formed.
func bearer(h http.Header) (string, bool) {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxToken {
		return "", false
	}
	for _, c := range []byte(token) {
		if c <= ' ' || c > '~' {
			return "", false
		}
	}
	return token, true
}

func checkMedia(h http.Header) *refused {
	if media, _, err := mime.ParseMediaType(h.Get("Content-Type")); err != nil || media != "application/json" {
		return &refused{status: http.StatusUnsupportedMediaType, code: callv1.Code_CODE_INVALID_ARGUMENT, reason: "content type",
			message: "The Content-Type must be application/json."}
	}
	if h.Get("Content-Encoding") != "" {
		return &refused{status: http.StatusUnsupportedMediaType, code: callv1.Code_CODE_INVALID_ARGUMENT, reason: "content encoding",
			message: "Compressed messages are not accepted."}
	}
	var jsonOK, streamOK bool
	for _, accept := range strings.Split(strings.Join(h.Values("Accept"), ","), ",") {
		media, _, _ := strings.Cut(accept, ";")
		switch strings.ToLower(strings.TrimSpace(media)) {
		case "application/json", "application/*":
			jsonOK = true
		case "text/event-stream", "text/*":
			streamOK = true
		case "*/*":
			jsonOK, streamOK = true, true
		}
	}
	if !jsonOK || !streamOK {
		return &refused{status: http.StatusNotAcceptable, code: callv1.Code_CODE_INVALID_ARGUMENT, reason: "accept",
			message: "The client must accept application/json and text/event-stream."}
	}
	return nil
}

// readBody reads at most the allowed size, whatever the headers claim.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, *refused) {
	tooLarge := &refused{status: http.StatusRequestEntityTooLarge, rpc: rpcInvalidRequest, code: callv1.Code_CODE_TOO_LARGE,
		reason: "size", message: sentenceTooLarge}
	if r.ContentLength > canonical.MaxBytes {
		drain(r.Body)
		return nil, tooLarge
	}
	body, err := readAll(http.MaxBytesReader(w, r.Body, canonical.MaxBytes), r.ContentLength)
	if err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			drain(r.Body)
			return nil, tooLarge
		}
		return nil, &refused{status: http.StatusBadRequest, rpc: rpcParse, code: callv1.Code_CODE_INVALID_ARGUMENT, reason: "body",
			message: "The message could not be read."}
	}
	if len(body) == 0 {
		return nil, &refused{status: http.StatusBadRequest, rpc: rpcParse, code: callv1.Code_CODE_INVALID_ARGUMENT, reason: "body",
			message: "The message is empty."}
	}
	return body, nil
}

// maxDrain is how much of a body that is too large is read and thrown away.
const maxDrain = 8 << 20

// drain lets a client finish sending what is refused, within bounds: one that is cut off while it writes sees a broken
// connection and not why.
func drain(body io.Reader) { _, _ = io.CopyN(io.Discard, body, maxDrain) }
