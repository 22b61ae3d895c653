package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"durward.internal/services/platform/clock"
)

// open relays the client's handshake and remembers it, to open the session again when the gateway lost it. One that the client had
// ends: nothing of it would be the client's any more.
func (b *Bridge) open(ctx context.Context, line []byte, m message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end(ctx, sessionHeaders(b.session, b.protocol))
	b.initialize, b.session, b.protocol = bytes.Clone(line), "", ""
	clear(b.subscribed)
	opening, cancel := context.WithTimeout(ctx, b.cfg.openPatience)
	defer cancel()
	answer, err := b.handshake(opening)
	if err != nil {
		b.failWith(ctx, m.ID, err)
		return
	}
	b.hear(false)
	b.write(answer)
}

// hear begins to listen to the session as it is now; unheard is as in listen. The caller holds mu.
func (b *Bridge) hear(unheard bool) {
	seen := b.opened
	b.background.Go(func() { b.listen(b.life, seen, unheard) })
}

// handshake sends the remembered initialize with a proof and takes up the session; once more with a new proof when the
// first was from before the vault's start. The caller holds mu.
func (b *Bridge) handshake(ctx context.Context) (answer []byte, err error) {
	answer, again, err := b.handshakeOnce(ctx)
	if errors.Is(err, errCredential) {
		answer, again, err = b.handshakeOnce(ctx)
	}
	if err != nil || !again || b.cfg.Key == nil || !b.pauseForOpening(ctx) {
		return answer, err
	}
	answer, _, err = b.handshakeOnce(ctx)
	return answer, err
}

// pauseForOpening waits until an opening can be dated after what happened before; false when ctx ended.
func (b *Bridge) pauseForOpening(ctx context.Context) bool {
	return clock.Sleep(ctx, b.prover.untilNextSecond())
}

func (b *Bridge) handshakeOnce(ctx context.Context) (answer []byte, again bool, err error) {
	signed, err := b.prover.open(b.initialize)
	if err != nil {
		return nil, false, err
	}
	response, err := b.post(ctx, signed, nil)
	if err != nil {
		return nil, false, err
	}
	defer b.discard(response)
	var m message
	if err := json.Unmarshal(b.initialize, &m); err != nil {
		return nil, false, fmt.Errorf("handshake: %w", err)
	}
	err = b.answers(response, m.ID, func(payload []byte) error {
		answer = payload
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	var reply struct {
		Result struct {
			Protocol string `json:"protocolVersion"`
			Meta     facts  `json:"_meta"`
		} `json:"result"`
		Error struct {
			Data facts `json:"data"`
		} `json:"error"`
	}
	if err := json.Unmarshal(answer, &reply); err != nil {
		return nil, false, fmt.Errorf("handshake: %w", err)
	}
	if reply.Result.Protocol != "" {
		b.session, b.protocol = response.Header.Get(headerSession), reply.Result.Protocol
		b.opened++
		b.prover.heard(reply.Result.Meta.Session, true)
	}
	return answer, reply.Error.Data.Code == codeProofRequired, nil
}

// reopen opens the session again after the gateway lost it; seen is the opening that the lost request belonged to. A session that is
// open but has not all that the client subscribed to is ended, and the lost one stays the bridge's: the next request, or who listens to
// it, finds it lost again.
func (b *Bridge) reopen(seen int) error {
	ctx, cancel := context.WithTimeout(b.life, b.cfg.openPatience) // with the wait for others that try to
	defer cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.opened != seen {
		return nil // another request did it meanwhile
	}
	if b.initialize == nil {
		return errors.New("the client has not opened a session")
	}
	lost, protocol := b.session, b.protocol
	answer, err := b.handshake(ctx)
	if err != nil {
		return err
	}
	if b.opened == seen {
		refused := &refusedError{}
		if err := json.Unmarshal(answer, refused); err != nil {
			return fmt.Errorf("handshake: %w", err)
		}
		return refused
	}
	headers := sessionHeaders(b.session, b.protocol)
	if err := b.restore(ctx, headers); err != nil {
		b.end(context.WithoutCancel(ctx), headers)
		b.session, b.protocol, b.opened = lost, protocol, seen
		return err
	}
	b.hear(true)
	b.cfg.Report("the session was lost and has been opened again")
	return nil
}

// refusedError is why the gateway does not open a session again, as a client is told it: the token was revoked, say.
type refusedError struct {
	Problem json.RawMessage `json:"error"`
}

func (*refusedError) Error() string { return "the gateway does not open the session again" }

// restore brings a session that was just opened again to where the one before it was. The caller holds mu.
func (b *Bridge) restore(ctx context.Context, headers http.Header) error {
	response, err := b.post(ctx, []byte(`{"jsonrpc":"2.0","method":"`+noteInitialized+`"}`), headers)
	if err != nil {
		return err
	}
	b.discard(response)
	for uri, line := range b.subscribed {
		taken, err := b.subscribeAgain(ctx, line, headers)
		if err != nil {
			return err
		}
		if !taken {
			delete(b.subscribed, uri)
			b.cfg.Report("the gateway refused a subscription when the session was opened again; the client hears no more of it")
		}
	}
	return nil
}
