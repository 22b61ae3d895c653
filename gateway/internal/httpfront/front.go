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
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"durward.internal/gateway/internal/envelope"
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
}

// Config is what New needs.
type Config struct {
	Sessions Sessions
	// Stateful and Stateless serve the messages of their era that passed; Of gives them the call that a request belongs to.
	Stateful, Stateless http.Handler
	Refusals            *refusal.Recorder
	Logger              *slog.Logger
	// Metrics counts and traces what passes; nil: nothing.
	Metrics *metrics.Metrics
	// Hosts are further names that a request may be addressed to, beside the loopback names, without ports.
	Hosts []string
	// Origins are web origins that browsers may call from, "https://console.example". None is allowed by default, but the
	// server's own.
	Origins []string
	// SessionsPerPrincipal is how many sessions one principal keeps: a further one ends the one that has been idle longest. Those for
	// senders of a messaging client are counted apart.
	SessionsPerPrincipal int
	// Limits bound what a client may ask. Zero values mean the defaults.
	Limits limit.Config
	// SessionIdle is after how long a session ends that nobody uses. One for a sender lasts as long as the vault says.
	SessionIdle time.Duration
}

// Front is an http.Handler. It is safe for concurrent use.
type Front struct {
	conf      Config
	decoder   decoder
	admission *admission
	origins   atomic.Pointer[[]string]
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
	f.SetOrigins(conf.Origins)
	f.table = newTable(conf.SessionsPerPrincipal, conf.SessionIdle, func(e *entry) { f.shut(context.Background(), e) })
	return f, nil
}

// SetOrigins replaces the web origins that browsers may call from, beside the server's own. What they opened goes on.
func (f *Front) SetOrigins(origins []string) {
	origins = slices.Clone(origins)
	f.origins.Store(&origins)
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
	sentenceTooLarge = "The message is larger than 1 MB."
	sentenceToken    = "This server needs a token: send it as \"Authorization: Bearer TOKEN\". The operator makes one with: durward client add"
	sentenceWrong    = "The token is not known or was revoked. Ask the operator for a new one (durward client add)."
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
	case localRequired() && !f.allowedHost(r.Host):
		return "", &refused{status: http.StatusForbidden, code: callv1.Code_CODE_DENIED, reason: "host",
			message: "This server does not answer to that host name."}
	case localRequired() && !f.allowedOrigin(r):
		return "", &refused{status: http.StatusForbidden, code: callv1.Code_CODE_DENIED, reason: "origin",
			message: "This server does not answer to web pages of that origin."}
	case r.URL.Path != Path || r.URL.RawPath != "": // RawPath: it becomes the path by decoding, which another reader may leave out
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

// stateful serves a message of a session, or the handshake that opens one.
func (f *Front) stateful(w http.ResponseWriter, r *http.Request, call *Call, frame *Frame) *refused {
	id, handshake := sessionID(r.Header), frame.Method == methodInitialize
	if id == "" && handshake {
		return f.open(w, r, call, frame)
	}
	if id == "" {
		return &refused{status: http.StatusBadRequest, id: frame.ID, rpc: rpcInvalidRequest, code: callv1.Code_CODE_UNAUTHENTICATED,
			reason: "no session", message: "Start a session with initialize, and send its Mcp-Session-Id from then on."}
	}
	e := f.table.acquire(key{Stateful, id}, call.by.token)
	if e == nil {
		return noSession()
	}
	defer f.table.release(e)
	call.Session, call.entry = e.relay, e
	if no := call.by.accepted(call.Session.Principal()); no != nil {
		no.settle(frame, no.status)
		return no
	}
	if says := another(call.Session, call.Caller); says != "" && frame.ID != nil {
		no := &refused{rpc: rpcInvalidParams, code: callv1.Code_CODE_INVALID_ARGUMENT, reason: "sender", message: says, often: true}
		no.settle(frame, http.StatusOK)
		return no
	}
	if handshake {
		return &refused{status: http.StatusOK, id: frame.ID, rpc: rpcInvalidRequest, code: callv1.Code_CODE_INVALID_ARGUMENT,
			reason: "frame", message: "This session is initialised already."}
	}
	f.forward(w, r, call, frame)
	return nil
}

// noSession is the answer for a session that is not there and for one of somebody else.
func noSession() *refused {
	return &refused{status: http.StatusNotFound, code: callv1.Code_CODE_NOT_FOUND, reason: "session", message: sentenceSession}
}

// open serves a handshake: the vault judges the credential before the SDK hears of it.
func (f *Front) open(w http.ResponseWriter, r *http.Request, call *Call, frame *Frame) *refused {
	session, err := f.openAtVault(r.Context(), call.Caller, call.by.token)
	if err != nil {
		return openRefused(frame, fault.From(err))
	}
	call.Session = session
	call.entry = &entry{token: call.by.token, relay: session}
	if no := call.by.accepted(session.Principal()); no != nil {
		f.shut(r.Context(), call.entry)
		no.settle(frame, no.status)
		return no
	}
	f.forward(w, r, call, frame)
	if f.table.abandon(call.entry) {
		f.shut(r.Context(), call.entry)
	}
	return nil
}

// openAtVault opens a session at the vault, which counts sessions too: clients that never say goodbye make room for
// themselves. For senders the vault makes room by itself, and what it refuses is one who asks too often: that ends nobody else's
// session.
func (f *Front) openAtVault(ctx context.Context, by relay.Caller, token [sha256.Size]byte) (*relay.Session, error) {
	return f.admission.opening(ctx, token, func() (*relay.Session, error) {
		session, err := f.conf.Sessions.Open(ctx, by)
		if fault.Is(err, callv1.Code_CODE_RATE_LIMITED) && by.Sender == (relay.Sender{}) {
			if oldest := f.table.oldest(token); oldest != nil && f.table.remove(oldest) {
				if oldest.end != nil {
					go oldest.end()
				}
				f.conf.Sessions.Close(ctx, oldest.relay)
				session, err = f.conf.Sessions.Open(ctx, by)
			}
		}
		return session, err
	})
}

// stateless serves a message that stands for itself, in the session that the principal's program has at the vault.
func (f *Front) stateless(w http.ResponseWriter, r *http.Request, call *Call, frame *Frame) *refused {
	if frame.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	e, err := f.ownSession(r.Context(), call.Caller, call.by.token, frame.Instance)
	if err != nil {
		return openRefused(frame, fault.From(err))
	}
	defer f.table.release(e)
	call.Session, call.entry = e.relay, e
	if no := call.by.accepted(call.Session.Principal()); no != nil {
		no.settle(frame, no.status)
		return no
	}
	f.forward(w, r, call, frame)
	return nil
}

// ownSession returns the session of the caller's program, opened at the vault on first need, once for requests that come
// together. The caller of ownSession releases it.
func (f *Front) ownSession(ctx context.Context, by relay.Caller, token [sha256.Size]byte, instance string) (*entry, error) {
	k := statelessKey(token, instance, by)
	for range 2 { // a session that is opened may be ended before it is used
		if e := f.table.acquire(k, token); e != nil {
			return e, nil
		}
		opened := f.opening.DoChan(k.id, func() (any, error) {
			return nil, f.openOwn(context.WithoutCancel(ctx), by, k, token) // others wait for it too; the vault is asked within bounds
		})
		select {
		case done := <-opened:
			if done.Err != nil {
				return nil, done.Err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return nil, tooBusy()
}

// openOwn opens the session of a key, unless somebody was faster.
func (f *Front) openOwn(ctx context.Context, by relay.Caller, k key, token [sha256.Size]byte) error {
	if f.table.has(k, token) {
		return nil
	}
	session, err := f.openAtVault(ctx, by, token)
	if err != nil {
		return err
	}
	if e := (&entry{token: token, relay: session}); !f.admit(ctx, e, k, nil) {
		f.shut(ctx, e)
		return tooBusy()
	}
	return nil
}

func tooBusy() error {
	return fault.New(callv1.Code_CODE_RATE_LIMITED, "too many sessions are busy", fault.WithRetry(time.Second))
}

// openRefused turns the vault's answer to a credential into the client's. Only a wrong credential is an HTTP error, since
// clients show the sentence of a JSON-RPC error and hide the body of a 503.
func openRefused(frame *Frame, err *fault.Error) *refused {
	out := &refused{rpc: rpcServer, code: err.Code, reason: "session not opened", message: envelope.Sentence(err.Message),
		retryable: err.Retryable, retry: err.RetryAfter, cause: err}
	out.settle(frame, http.StatusOK)
	switch err.Code {
	case callv1.Code_CODE_RATE_LIMITED:
		out.message, out.slow, out.often = err.Message, true, true
		out.settle(frame, http.StatusTooManyRequests)
	case callv1.Code_CODE_PROOF_REQUIRED:
		out.data = map[string]any{"durward/proof_needed": "open"}
	case callv1.Code_CODE_INVALID_ARGUMENT:
		// The token is right, and the vault says what else it wants to know: for whom a messaging client speaks.
		if strings.HasPrefix(err.Field, "sender") {
			out.rpc, out.reason, out.message, out.often = rpcInvalidParams, "sender", sentenceNoSender, true
			break
		}
		fallthrough
	case callv1.Code_CODE_UNAUTHENTICATED, callv1.Code_CODE_DENIED:
		out.status, out.form, out.message, out.code = http.StatusUnauthorized, asError, sentenceWrong, callv1.Code_CODE_UNAUTHENTICATED
		out.slow, out.often = true, true
	case callv1.Code_CODE_UNAVAILABLE, callv1.Code_CODE_TIMEOUT:
		out.message = "Durward's vault cannot be reached, so nobody can be let in. Try again in a moment; the operator can look with: durward status"
		out.retryable = true
	default: // the sentence is the fault's own
	}
	return out
}

// delete ends a session. It does not wait for calls that are under way: they end with it.
func (f *Front) delete(w http.ResponseWriter, r *http.Request, by *visit) *refused {
	id := sessionID(r.Header)
	if id == "" {
		return notAllowed(w)
	}
	e := f.table.acquire(key{Stateful, id}, by.token)
	if e == nil {
		return noSession()
	}
	f.table.release(e)
	if f.table.remove(e) {
		f.shut(r.Context(), e)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// stream opens the one standalone stream of a session, on which the server tells what it was asked to tell. It ends with the
// session, and keeps none alive: what nobody asks anything of ends, whoever listens.
func (f *Front) stream(w http.ResponseWriter, r *http.Request, requestID, token string, by *visit) *refused {
	id := sessionID(r.Header)
	if id == "" {
		return notAllowed(w)
	}
	if _, streamOK := accepts(r.Header); !streamOK {
		return &refused{status: http.StatusNotAcceptable, code: callv1.Code_CODE_INVALID_ARGUMENT, reason: "accept",
			message: "The client must accept text/event-stream."}
	}
	if h := readHeaders(r.Header); !h.ofSession() {
		return badFrame(unsupported(h.protocol...))
	}
	e, taken := f.table.stream(key{Stateful, id}, by.token)
	switch {
	case e == nil:
		return noSession()
	case taken:
		return &refused{status: http.StatusConflict, code: callv1.Code_CODE_CONFLICT, reason: "stream", session: e.relay,
			message: "This session has its stream already, and one is all it gets."}
	}
	defer f.table.endStream(e)
	if no := by.accepted(e.relay.Principal()); no != nil {
		return no
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(f.streams, cancel)()
	go func() {
		select {
		case <-e.relay.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	call := &Call{Era: Stateful, RequestID: requestID, Session: e.relay, Caller: relay.Caller{Credential: token}, Gone: ctx.Done(), entry: e, front: f}
	f.forward(w, r.WithContext(ctx), call, &Frame{Era: Stateful})
	return nil
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
	header := forwarded(r, frame)
	r = r.WithContext(context.WithValue(call.Seen.Trace(r.Context()), callKey{}, call))
	r.Header = header
	r.Body = io.NopCloser(bytes.NewReader(frame.Body))
	r.ContentLength = int64(len(frame.Body))
	if frame.Era == Stateless {
		f.conf.Stateless.ServeHTTP(w, r)
		return
	}
	f.conf.Stateful.ServeHTTP(w, r)
}
