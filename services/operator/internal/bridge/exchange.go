package bridge

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/contract"
)

// maxTries bounds how often a request whose connection broke is sent. One that lasted, as the stream of a subscription does,
// was no failed try.
const (
	maxTries = 5
	lasting  = time.Minute
)

// maxCallProofs bounds the proofs of one request that changes something: each can become an operation of its own.
const maxCallProofs = 2

// lostSession stands beside the names of the proofs that an answer can ask for.
const lostSession = "session"

// newCredential stands there too.
const newCredential = "credential"

// call relays one request and its answer.
func (b *Bridge) call(ctx context.Context, line []byte, m message) {
	if m.Method == methodUnsubscribe {
		// Whatever the gateway says to it, and again when an answer to an older request may have come meanwhile.
		b.unsubscribe(m)
		defer b.unsubscribe(m)
	}
	if err := b.exchange(ctx, line, m, "", b.write); err != nil {
		b.failWith(ctx, m.ID, err)
	}
}

// exchange sends one request, signed as it needs or as needed says, and gives its answer to take. Whatever the gateway asks for
// is given at most once: the session opened again, each proof signed again; and maxCallProofs bounds those of a call. A request
// whose connection broke goes out again as it was.
func (b *Bridge) exchange(ctx context.Context, line []byte, m message, needed string, take func(answer []byte)) error {
	var sent request
	calls, given := 0, map[string]bool{}
	prover, own := b.prover, m.statelessHeaders()
	if own != nil {
		prover = b.stateless
	}
	for try := 1; ; try++ {
		began := time.Now()
		headers, seen := b.headers()
		if own != nil {
			headers = own
		}
		if sent.body == nil {
			var err error
			sent, err = prover.request(line, m, needed)
			if err == nil && sent.calling && calls == 0 && prover.age() >= usedFrom {
				// While a human decides, the call is held by the session's permit, and its one proof renews none.
				b.renewFor(ctx, own != nil, m)
				sent, err = prover.request(line, m, needed)
			}
			if err != nil {
				return err
			}
			if sent.calling {
				calls++
			}
		}
		response, err := b.post(ctx, sent.body, headers)
		if errors.Is(err, errCredential) && !given[newCredential] {
			given[newCredential] = true
			sent, needed = request{}, ""
			if own != nil {
				continue // it opens its session by itself
			}
			if err := b.reopen(seen); err != nil {
				return err
			}
			continue
		}
		if errors.Is(err, errSession) && !given[lostSession] && calls < maxCallProofs {
			given[lostSession] = true
			if err := b.reopen(seen); err != nil {
				return err
			}
			sent, needed = request{}, ""
			continue
		}
		if err != nil {
			if b.repeat(ctx, m, err, try) {
				continue
			}
			return err
		}
		again := ""
		err = b.answers(response, m.ID, func(payload []byte) error {
			again = prover.answer(payload, sent)
			if again == "" || !prover.answersDemands(m.Method) || given[again] || again == needCall && calls >= maxCallProofs || !prover.may(again) {
				again = ""
				if own == nil {
					b.subscribe(m, line, payload)
				}
				take(payload)
			}
			return nil
		})
		b.discard(response)
		if err != nil {
			if time.Since(began) > lasting {
				try = 1
			}
			if b.repeat(ctx, m, err, try) {
				continue
			}
			return err
		}
		if again == "" || again == needOpen && !b.pauseForOpening(ctx) {
			return nil
		}
		needed, given[again], sent = again, true, request{}
	}
}

// repeatPause is the wait before a request is sent again to a gateway that went away.
const repeatPause = 200 * time.Millisecond

// repeat reports whether a request that the gateway did not answer may be sent again, after a pause: one that only looks,
// and whose connection broke. What changes something is never repeated behind the client's back.
func (b *Bridge) repeat(ctx context.Context, m message, err error, try int) bool {
	broken := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errCut)
	if !broken || try >= maxTries || !looksOnly(m) {
		return false
	}
	return clock.Sleep(ctx, repeatPause)
}

// looksOnly reports whether a request changes nothing.
func looksOnly(m message) bool {
	if m.Method != methodCall {
		return true
	}
	var params struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(m.Params, &params) != nil {
		return false
	}
	tool, known := contract.Lookup(params.Name)
	return known && tool.Tier == optionsv1.Tier_TIER_READ
}

// errCut means that an answer ended before it was whole.
var errCut = errors.New("the gateway ended the answer before it was whole")

var errSession = errors.New("the session has ended")

// errCredential means that the token was refused, and that there is another one now.
var errCredential = errors.New("the token has been replaced")

// headers are those of the session's messages, and how often it had been opened by then.
func (b *Bridge) headers() (http.Header, int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return sessionHeaders(b.session, b.protocol), b.opened
}

// post sends a message. A gateway that refuses connections is being restarted, and is tried again for a while.
func (b *Bridge) post(ctx context.Context, body []byte, headers http.Header) (*http.Response, error) {
	deadline := time.Now().Add(refusedPatience)
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		token := *b.token.Load()
		response, err := b.send(ctx, http.MethodPost, body, headers, token)
		if err == nil {
			if response.StatusCode == http.StatusUnauthorized && b.renewed(token) {
				b.discard(response)
				return nil, errCredential
			}
			if response.StatusCode == http.StatusNotFound && headers.Get(headerSession) != "" {
				b.discard(response)
				return nil, errSession
			}
			return response, nil
		}
		if !errors.Is(err, syscall.ECONNREFUSED) || time.Now().Add(wait).After(deadline) {
			return nil, err
		}
		if !clock.Sleep(ctx, wait) {
			return nil, ctx.Err()
		}
	}
}

// send makes one HTTP request with the client's token.
func (b *Bridge) send(ctx context.Context, method string, body []byte, headers http.Header, token string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, b.cfg.Endpoint, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	if headers != nil {
		request.Header = headers.Clone()
	}
	accept := "text/event-stream"
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/json")
		accept = "application/json, " + accept
	}
	request.Header.Set("Accept", accept)
	request.Header.Set("Authorization", "Bearer "+token)
	if b.cfg.Remote {
		request.Header.Set("Durward-Remote", "yes")
	}
	return b.http.Do(request)
}

// statelessHeaders are the headers of a request that says its protocol revision itself (2026-07-28 and later), which mirror
// what its body says; nil for one of a session.
func (m message) statelessHeaders() http.Header {
	var params struct {
		Name   string `json:"name"`
		URI    string `json:"uri"`
		TaskID string `json:"taskId"`
		Meta   struct {
			Protocol string `json:"io.modelcontextprotocol/protocolVersion"`
		} `json:"_meta"`
	}
	if json.Unmarshal(m.Params, &params) != nil || params.Meta.Protocol == "" {
		return nil
	}
	headers := http.Header{headerProtocol: {headerValue(params.Meta.Protocol)}, "Mcp-Method": {headerValue(m.Method)}}
	switch m.Method {
	case methodCall, methodPrompt:
		headers.Set("Mcp-Name", headerValue(params.Name))
	case methodRead:
		headers.Set("Mcp-Name", headerValue(params.URI))
	case "tasks/get", "tasks/update", "tasks/cancel":
		headers.Set("Mcp-Name", headerValue(params.TaskID))
	}
	return headers
}

// headerValue writes a value as the protocol wants it in a header: what is not plain ASCII, or would be taken for what is
// written so, in Base64.
func headerValue(s string) string {
	plain := strings.TrimSpace(s) == s && !strings.HasPrefix(s, "=?base64?")
	for _, c := range []byte(s) {
		plain = plain && ' ' <= c && c <= '~'
	}
	if plain {
		return s
	}
	return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(s)) + "?="
}

// track makes a request one that its client can cancel: one of a session until begin says that it is sent, since its cancellation
// must then reach the gateway; a stateless one until done is called. begin reports whether it may be sent.
func (b *Bridge) track(ctx context.Context, m message) (tracked context.Context, begin func() bool, done context.CancelFunc) {
	if !m.isRequest() {
		return ctx, func() bool { return true }, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	id, stateless := spelled(m.ID), m.statelessHeaders() != nil
	b.tracking.Lock()
	defer b.tracking.Unlock()
	b.cancels[id] = cancel
	begin = func() bool {
		b.tracking.Lock()
		defer b.tracking.Unlock()
		if params, ok := object(m.Params); ok && stateless && m.Method == methodListen {
			b.listening[id] = params["_meta"]
		}
		if !stateless {
			delete(b.cancels, id)
		}
		return ctx.Err() == nil
	}
	return ctx, begin, func() {
		cancel()
		b.tracking.Lock()
		defer b.tracking.Unlock()
		delete(b.cancels, id)
		delete(b.listening, id)
	}
}

// cancel ends the request that a cancellation names if it waits here or is stateless, and reports whether there is one: over HTTP
// the client of a stateless request cancels it by hanging up.
func (b *Bridge) cancel(m message) bool {
	var params struct {
		RequestID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(m.Params, &params) != nil {
		return false
	}
	b.tracking.Lock()
	defer b.tracking.Unlock()
	cancel := b.cancels[spelled(params.RequestID)]
	if cancel == nil {
		return false
	}
	cancel()
	return true
}
