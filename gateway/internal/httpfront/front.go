// Package httpfront is the HTTP side of the gateway, the first thing that a stranger's bytes meet. It checks Host and Origin, how
// much a caller asks, the method, the media types, the size, the JSON (strictly, once, the whole body), and who is calling; it
// decides which era a message belongs to, from the body; it keeps the sessions of both eras; and it passes on a message that it
// rebuilt from the parts it understood, with headers that it compared with them. It trusts nothing that arrives, and nothing
// that it refuses reaches the SDK.
//
// A client authenticates with a bearer token in the Authorization header of every request, and nowhere else. In the stateful
// era the vault judges the token when a handshake opens a session; later requests of that session must bring the same one,
// compared in constant time. In the stateless era the first request of a token opens its session at the vault, and the token
// alone finds it again. A session that is not there and a session of somebody else look alike.
package httpfront

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"durward.internal/gateway/internal/cors"
	"durward.internal/gateway/internal/head"
	"durward.internal/gateway/internal/keepalive"
	"durward.internal/gateway/internal/limit"
	"durward.internal/gateway/internal/metrics"
	"durward.internal/gateway/internal/refusal"
	"durward.internal/gateway/internal/relay"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/telemetry/span"
)

// Path is where MCP is served.
const Path = "/mcp"

// maxToken is the longest bearer token that the vault takes.
const maxToken = 512

// Sessions opens and closes sessions at the vault.
type Sessions interface {
	Open(ctx context.Context, by relay.Caller) (*relay.Session, error)
	Close(ctx context.Context, s *relay.Session)
	// LetGo ends a session here alone.
	LetGo(s *relay.Session)
	// Refused returns true when the vault takes the caller no more, and false when ctx or the session ends.
	Refused(ctx context.Context, s *relay.Session, by relay.Caller) bool
}

// Config is what New needs.
type Config struct {
	Sessions Sessions
	// Stateful and Stateless serve the messages of their era that passed; Of gives them the call that a request belongs to.
	Stateful, Stateless http.Handler
	// Direct answers calls that need nothing of the SDK; nil: the SDK gets them all.
	Direct   Direct
	Refusals *refusal.Recorder
	Logger   *slog.Logger
	// Metrics counts and traces what passes; nil: nothing.
	Metrics *metrics.Metrics
	// Hosts are further names that a request may be addressed to, beside the loopback names, without ports.
	Hosts []string
	// Origins are web origins that browsers may call from, beside the server's own. Nil: none.
	Origins *cors.Origins
	// SessionsPerPrincipal is how many sessions one principal keeps: a further one ends the one that has been idle longest. Those for
	// senders of a messaging client are counted apart.
	SessionsPerPrincipal int
	// Limits bound what a client may ask. Zero values mean the defaults.
	Limits limit.Config
	// SessionIdle is after how long a session ends that nobody uses. One for a sender lasts as long as the vault says.
	SessionIdle time.Duration
	// Silence is how long a stream is silent at most; 0: keepalive.Every, as everywhere but in tests.
	Silence time.Duration
}

// Front is an http.Handler. It is safe for concurrent use.
type Front struct {
	conf      Config
	decoder   decoder
	admission *admission
	table     *table
	opening   singleflight.Group
	// streams ends with the process's will to serve: standalone streams end with it.
	streams    context.Context
	endStreams context.CancelFunc

	// ending are the sessions that the vault is being told of. closed is guarded by mu: nothing joins ending after it.
	ending sync.WaitGroup
	mu     sync.Mutex
	closed bool
}

// New returns a Front over the parts of conf.
func New(conf Config) (*Front, error) {
	if conf.Sessions == nil || conf.Stateful == nil || conf.Stateless == nil || conf.Refusals == nil || conf.Logger == nil {
		return nil, errors.New("front: sessions, a handler for each era, refusals and logger are required")
	}
	if conf.SessionsPerPrincipal <= 0 || conf.SessionIdle <= 0 {
		return nil, errors.New("front: the number of sessions per principal and their idle time must be positive")
	}
	admission, err := newAdmission(conf.Limits)
	if err != nil {
		return nil, fmt.Errorf("front: %w", err)
	}
	f := &Front{conf: conf, decoder: decoder{methods()}, admission: admission}
	diagnosticMethods(f.decoder.methods)
	f.streams, f.endStreams = context.WithCancel(context.Background())
	f.table = newTable(conf.SessionsPerPrincipal, conf.SessionIdle, func(e *entry) { f.shut(context.Background(), e) })
	return f, nil
}

// EndStreams ends the streams that no request waits for, so that a server that is told to stop need not wait for them. No
// further one is opened.
func (f *Front) EndStreams() { f.endStreams() }

// Sessions is how many sessions of clients are open here, of both eras.
func (f *Front) Sessions() int { return f.table.size() }

// Close ends every session, here and at the vault, and returns when the vault was told.
func (f *Front) Close(ctx context.Context) {
	f.endStreams()
	for _, e := range f.table.close() {
		f.shut(ctx, e)
	}
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.ending.Wait()
}

// admit puts a session into the table, and ends the one that makes room for it.
func (f *Front) admit(ctx context.Context, e *entry, k key, end func()) bool {
	evicted, admitted := f.table.add(e, k, end)
	if evicted != nil {
		f.conf.Logger.InfoContext(ctx, "a principal's oldest idle session makes room", "principal", evicted.relay.Principal())
		if evicted.forSender() {
			f.letGo(evicted)
		} else {
			f.shut(ctx, evicted)
		}
	}
	return admitted
}

// letGo ends a sender's session here, and leaves it to the vault, where it lasts as long as a human set: it is this gateway that is
// short of room.
func (f *Front) letGo(e *entry) {
	if e.end != nil {
		go e.end()
	}
	f.conf.Sessions.LetGo(e.relay)
}

// shut ends a session that is no longer in the table, without waiting for the calls that are under way. Whoever ends one after
// Close tells the vault itself: nobody waits for it any more.
func (f *Front) shut(ctx context.Context, e *entry) {
	if e.end != nil {
		go e.end()
	}
	tell := func() { f.conf.Sessions.Close(context.WithoutCancel(ctx), e.relay) }
	f.mu.Lock()
	closed := f.closed
	if !closed {
		f.ending.Go(tell)
	}
	f.mu.Unlock()
	if closed {
		tell()
	}
}

// Sentences that stand in more than one place.
const (
	sentenceFolded   = "A header is folded over several lines: send each on one line."
	sentenceTooLarge = "The message is larger than 1 MB."
	sentenceToken    = "This server needs a token: send it as \"Authorization: Bearer TOKEN\". The operator makes one with: durward client add"
	sentenceNoSender = "A messaging client, and no other, says for whom it speaks with each request: durward/sender {user, room} in params._meta."
	sentenceSession  = "There is no such session. Start a new one with initialize."
)

// ServeHTTP implements http.Handler.
func (f *Front) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	requestID := rpc.NewRequestID()
	r = r.WithContext(rpc.WithRequestID(r.Context(), requestID))
	w := &answering{ResponseWriter: to}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Durward-Request-Id", requestID)
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			panic(p)
		default:
			f.panicked(w, r, requestID, p)
		}
	}()
	token, no := f.approach(r)
	if no != nil {
		f.refuse(w, r, requestID, f.admission.unasked(no))
		return
	}
	by, no := f.admission.enter(r.Context(), token)
	defer by.leave() // when it is answered: what is held back takes room too
	if no == nil {
		no = f.serve(w, r, requestID, token, by)
	}
	if no != nil {
		no.principal = by.principal
		f.refuse(w, r, requestID, no)
	}
}

// panicked says what happened, which net/http would keep to itself, and answers if nothing was answered yet.
func (f *Front) panicked(w *answering, r *http.Request, requestID string, p any) {
	f.conf.Logger.ErrorContext(r.Context(), "panic", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	if w.begun {
		panic(http.ErrAbortHandler) // half an answer is not to look like a whole one
	}
	f.refuse(w, r, requestID, &refused{status: http.StatusInternalServerError, rpc: rpcInternal, code: callv1.Code_CODE_INTERNAL, reason: "panic", message: fault.Internal})
}

// answering knows whether an answer has begun.
type answering struct {
	http.ResponseWriter
	begun bool
}

// WriteHeader implements http.ResponseWriter.
func (a *answering) WriteHeader(status int) {
	a.begun = true
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *answering) Write(b []byte) (int, error) {
	a.begun = true
	return a.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController, which finds there what else can be done with an answer.
func (a *answering) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// serve handles one request that may go on, or says why it does not.
func (f *Front) serve(w http.ResponseWriter, r *http.Request, requestID, token string, by *visit) (no *refused) {
	switch r.Method {
	case http.MethodPost:
		no = f.post(w, r, requestID, token, by)
	case http.MethodGet:
		no = f.stream(w, r, requestID, token, by)
	case http.MethodDelete:
		no = f.delete(w, r, by)
	default:
		no = notAllowed(w)
	}
	if no != nil && by.stranger() {
		no.slow = true
	}
	return no
}

// approach looks at what a request shows before anybody asks who is calling, and returns its token.
func (f *Front) approach(r *http.Request) (string, *refused) {
	switch {
	case head.Folded(r.Context()):
		return "", &refused{status: http.StatusBadRequest, code: callv1.Code_CODE_INVALID_ARGUMENT, reason: "folded header", message: sentenceFolded}
	case localRequired() && !f.allowedHost(r.Host):
		return "", &refused{status: http.StatusForbidden, code: callv1.Code_CODE_DENIED, reason: "host",
			message: "This server does not answer to that host name."}
	case localRequired() && !f.allowedOrigin(r):
		return "", &refused{status: http.StatusForbidden, code: callv1.Code_CODE_DENIED, reason: "origin",
			message: "This server does not answer to web pages of that origin."}
	case !isPath(r.URL):
		return "", &refused{status: http.StatusNotFound, code: callv1.Code_CODE_NOT_FOUND, reason: "path", message: "MCP is served at /mcp."}
	}
	token, ok := bearer(r.Header)
	if !ok {
		return "", &refused{status: http.StatusUnauthorized, code: callv1.Code_CODE_UNAUTHENTICATED, reason: "no token", message: sentenceToken}
	}
	return token, nil
}

func notAllowed(w http.ResponseWriter) *refused {
	w.Header().Set("Allow", "POST, GET, DELETE")
	return &refused{status: http.StatusMethodNotAllowed, code: callv1.Code_CODE_INVALID_ARGUMENT, reason: "method",
		message: "POST is served here; GET and DELETE for a session."}
}

// post serves one message.
func (f *Front) post(w http.ResponseWriter, r *http.Request, requestID, token string, by *visit) *refused {
	if no := checkMedia(r.Header); no != nil {
		return no
	}
	if by.stranger() { // but its token may have sessions all the same, beside one that ended or was refused
		if s := f.table.who(sessionID(r.Header), by.token); s != nil {
			if no := by.accepted(s.Principal()); no != nil {
				return no
			}
		}
	}
	body, done, no := f.admission.readBody(w, r, by)
	if no != nil {
		return no
	}
	frame, bad := f.decoder.decode(body, readHeaders(r.Header))
	done()
	if bad != nil {
		no := badFrame(bad)
		no.session = f.table.who(sessionID(r.Header), by.token)
		return no
	}
	agent, bad := agentOf(r.Header, frame)
	if bad != nil {
		bad.id, bad.era = frame.ID, frame.Era
		return badFrame(bad)
	}
	call := &Call{
		Era: frame.Era, RequestID: requestID, ID: frame.ID,
		Caller: relay.Caller{
			Credential: token, ClientName: frame.ClientName, ClientVersion: frame.ClientVersion, Proof: frame.Proof, Agent: agent, Sender: frame.Sender,
			Remote: len(r.Header.Values(headerRemote)) > 0,
		},
		Capabilities: frame.Capabilities,
		Gone:         r.Context().Done(),
		front:        f,
		by:           by,
	}
	seen := f.conf.Metrics.Begin(metrics.Message{
		Method: frame.Method, Tool: frame.Tool, Era: frame.Era.String(), TraceParent: traceParent(r.Header, frame), RequestID: requestID,
	})
	defer seen.End()
	call.Seen = seen
	if frame.Era == Stateless {
		no = f.stateless(w, r, call, frame)
	} else {
		no = f.stateful(w, r, call, frame)
	}
	if no != nil {
		seen.Refuse(no.code)
	}
	if no != nil && call.Session != nil {
		no.session = call.Session
	}
	return no
}

// traceParent is the trace that a client says a message belongs to: in the message, or around it.
func traceParent(h http.Header, frame *Frame) string {
	if values := h.Values(span.Header); frame.TraceParent == "" && len(values) == 1 {
		return values[0]
	}
	return frame.TraceParent
}

func badFrame(bad *frameError) *refused {
	return &refused{status: bad.status(), id: bad.id, rpc: bad.rpc, code: bad.code, reason: "frame", message: bad.message, data: bad.data, quiet: bad.quiet}
}

// forward gives the rebuilt message to the SDK.
func (f *Front) forward(w http.ResponseWriter, r *http.Request, call *Call, frame *Frame) {
	if frame.Body == nil && r.Method == http.MethodPost {
		w.WriteHeader(http.StatusAccepted) // there is nothing in it for us
		return
	}
	if f.over(w, r, call, frame) {
		return
	}
	ctx := call.Seen.Trace(r.Context())
	if f.direct(ctx, w, call, frame) {
		return
	}
	header := forwarded(r, frame)
	r = r.WithContext(context.WithValue(ctx, callKey{}, call))
	r.Header = header
	r.Body = io.NopCloser(bytes.NewReader(frame.Body))
	r.ContentLength = int64(len(frame.Body))
	if r.Method == http.MethodGet || frame.Method == "subscriptions/listen" {
		stream, end := keepalive.Stream(w, f.conf.Silence)
		defer end()
		w = stream
	}
	if frame.Era == Stateless {
		f.conf.Stateless.ServeHTTP(w, r)
		return
	}
	f.conf.Stateful.ServeHTTP(w, r)
}
