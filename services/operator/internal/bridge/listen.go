package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"durward.internal/services/platform/clock"
)

// listenPause and listenPauseMost bound the wait before the stream of a session is asked for again.
const (
	listenPause     = 200 * time.Millisecond
	listenPauseMost = 10 * time.Second
)

func sessionHeaders(session, protocol string) http.Header {
	headers := http.Header{}
	if session != "" {
		headers.Set(headerSession, session)
	}
	if protocol != "" {
		headers.Set(headerProtocol, protocol)
	}
	return headers
}

// listen relays what the gateway says of its own accord, until the session that was opened as the seen-th ends or ctx does.
// A gateway that has nothing to say so does not offer the stream. A session that is lost is opened again for what the client
// subscribed to, as soon as that succeeds. unheard: something may have changed since the client heard last.
func (b *Bridge) listen(ctx context.Context, seen int, unheard bool) {
	reported := false
	for pause := listenPause; ; pause = min(2*pause, listenPauseMost) {
		headers, opened := b.headers()
		if opened != seen || headers.Get(headerSession) == "" {
			return
		}
		token := *b.token.Load()
		response, err := b.send(ctx, http.MethodGet, nil, headers, token)
		if err == nil {
			kind, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";")
			switch {
			case response.StatusCode == http.StatusOK && strings.TrimSpace(kind) == "text/event-stream":
				pause = listenPause
				if unheard {
					b.catchUp()
				}
				unheard = true
				_ = events(response.Body, func(m message) error { b.pass(m); return nil }) // asked for again below
			case response.StatusCode == http.StatusTooManyRequests, response.StatusCode == http.StatusConflict: // it may not know yet that the last one broke
			case response.StatusCode == http.StatusUnauthorized && b.renewed(token): // with the new one it says whether the session is there
			case response.StatusCode < http.StatusInternalServerError:
				b.discard(response)
				if response.StatusCode != http.StatusNotFound || !b.subscribes() || b.reopen(seen) == nil {
					return
				}
				if !reported {
					b.cfg.Report("the session was lost, and with it what the client subscribed to; it is tried again")
					reported = true
				}
			}
			_ = response.Body.Close()
		}
		if !clock.Sleep(ctx, pause) {
			return
		}
	}
}

// catchUp tells the client that everything that it hears of may have changed. It cannot know that there was no stream for a while, and nobody
// says again what was said meanwhile.
func (b *Bridge) catchUp() {
	for _, list := range []string{"tools", "prompts", "resources"} {
		b.write([]byte(`{"jsonrpc":"2.0","method":"notifications/` + list + `/list_changed"}`))
	}
	b.mu.Lock()
	uris := slices.Sorted(maps.Keys(b.subscribed))
	b.mu.Unlock()
	for _, uri := range uris {
		if quoted, err := json.Marshal(uri); err == nil {
			b.write([]byte(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":` + string(quoted) + `}}`))
		}
	}
}

// watchTick is how often the permits behind subscriptions are looked at, and watchPause how long a renewal that came to nothing
// is not tried again.
const (
	watchTick  = time.Second
	watchPause = 10 * time.Second
)

// keepWatching signs renewals for as long as the client subscribes to something, where it asks for nothing else that would
// carry them: the gateway watches under the session's permits, which a client that signs must renew itself.
func (b *Bridge) keepWatching(ctx context.Context) {
	if b.cfg.Key == nil {
		return
	}
	looks := b.cfg.looks
	if looks == nil {
		tick := time.NewTicker(watchTick)
		defer tick.Stop()
		looks = tick.C
	}
	tried := map[*prover]time.Time{}
	due := func(p *prover) bool {
		now := b.cfg.Now()
		if p.age() < usedFrom || now.Sub(tried[p]) < watchPause {
			return false
		}
		tried[p] = now
		return true
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-looks:
		}
		session, stateless := b.watched()
		if session && due(b.prover) {
			b.renew(ctx, methodPing, nil)
		}
		if stateless != nil && due(b.stateless) {
			b.renew(ctx, methodListTools, stateless)
		}
	}
}

// watched reports whether there are subscriptions of the session, and the _meta of one of the stateless era.
func (b *Bridge) watched() (session bool, stateless json.RawMessage) {
	session = b.subscribes()
	b.tracking.Lock()
	defer b.tracking.Unlock()
	for _, meta := range b.listening {
		stateless = meta
	}
	return session, stateless
}

// renewFor renews the permits of the session, or of the one of the stateless era that a request is in.
func (b *Bridge) renewFor(ctx context.Context, stateless bool, m message) {
	if !stateless {
		b.renew(ctx, methodPing, nil)
		return
	}
	var params struct {
		Meta json.RawMessage `json:"_meta"`
	}
	if json.Unmarshal(m.Params, &params) == nil {
		b.renew(ctx, methodListTools, params.Meta)
	}
}

// renew makes a request of the bridge's own that carries a renewal. What becomes of it is nobody's to know: the next one, or a
// request of the client's, is as good.
func (b *Bridge) renew(ctx context.Context, method string, meta json.RawMessage) {
	m := message{ID: json.RawMessage(`"durward-renewal"`), Method: method, Params: json.RawMessage(`{}`)}
	if meta != nil {
		m.Params = json.RawMessage(`{"_meta":` + string(meta) + `}`)
	}
	line := []byte(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"method":"` + method + `","params":` + string(m.Params) + `}`)
	if err := b.exchange(ctx, line, m, needRenew, func([]byte) {}); err != nil && ctx.Err() == nil {
		b.cfg.Report("the session's permits were not renewed: " + err.Error())
	}
}

// subscribe remembers the session's subscriptions by a request that was answered well.
func (b *Bridge) subscribe(m message, line, answer []byte) {
	uri, ok := m.uri()
	var reply message
	if m.Method != methodSubscribe || !ok || json.Unmarshal(answer, &reply) != nil || len(reply.Result) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subscribed[uri] = bytes.Clone(line)
}

// unsubscribe forgets a subscription: from then on nothing is signed for its sake.
func (b *Bridge) unsubscribe(m message) {
	uri, ok := m.uri()
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.subscribed, uri)
}

// uri is the resource that a request names.
func (m message) uri() (uri string, ok bool) {
	var params struct {
		URI string `json:"uri"`
	}
	err := json.Unmarshal(m.Params, &params)
	return params.URI, err == nil
}

// subscribeAgain sends a subscription's request in the session as it is now, and reports whether the gateway took it. The caller
// holds mu.
func (b *Bridge) subscribeAgain(ctx context.Context, line []byte, headers http.Header) (taken bool, err error) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return false, fmt.Errorf("subscription: %w", err)
	}
	sent, err := b.prover.request(line, m, "")
	if err != nil {
		return false, err
	}
	response, err := b.post(ctx, sent.body, headers)
	if err != nil {
		return false, err
	}
	defer b.discard(response)
	err = b.answers(response, m.ID, func(payload []byte) error {
		b.prover.answer(payload, sent) // the session has just been opened: there is no more to sign
		var reply message
		taken = json.Unmarshal(payload, &reply) == nil && len(reply.Result) > 0
		return nil
	})
	return taken && err == nil, nil // an answer that cannot be read took nothing
}

func (b *Bridge) subscribes() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.subscribed) > 0
}
