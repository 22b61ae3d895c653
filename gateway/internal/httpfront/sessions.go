package httpfront

import (
	"context"
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"durward.internal/gateway/internal/envelope"
	"durward.internal/gateway/internal/relay"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

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
	if says := another(call.Session, call.Caller); says != "" && frame.ID != nil {
		no := &refused{rpc: rpcInvalidParams, code: callv1.Code_CODE_INVALID_ARGUMENT, reason: "sender", message: says, often: true}
		no.settle(frame, http.StatusOK)
		return no
	}
	if handshake {
		return &refused{status: http.StatusOK, id: frame.ID, rpc: rpcInvalidRequest, code: callv1.Code_CODE_INVALID_ARGUMENT,
			reason: "frame", message: "This session is initialised already."}
	}
	if frame.ID != nil {
		id := requestKey(frame.ID)
		if !f.table.ask(e, id) && onceRequired() {
			no := &refused{rpc: rpcInvalidRequest, code: callv1.Code_CODE_INVALID_ARGUMENT, reason: "id in flight",
				message: "A request with that id is under way in this session. Give each request an id of its own."}
			no.settle(frame, http.StatusOK)
			return no
		}
		defer f.table.answered(e, id)
	}
	if frame.Cancels != "" {
		f.table.cancel(e, frame.Cancels)
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
		out.status, out.form, out.message, out.code = http.StatusUnauthorized, asError, relay.SentenceWrong, callv1.Code_CODE_UNAUTHENTICATED
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
	call := &Call{Era: Stateful, RequestID: requestID, Session: e.relay, Caller: relay.Caller{Credential: token}, Gone: ctx.Done(), entry: e, front: f}
	go func() {
		if f.conf.Sessions.Refused(ctx, e.relay, call.Caller) {
			call.Forget()
		}
		cancel()
	}()
	f.forward(w, r.WithContext(ctx), call, &Frame{Era: Stateful})
	return nil
}
