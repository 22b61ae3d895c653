package signingkey

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/statement"
)

// Longest is how long a key is held after its passphrase, at most.
const Longest = 5 * time.Minute

// ErrClosed means that the holder was closed.
var ErrClosed = errors.New("the signing key is not held any more")

// HolderConfig says which key, and how long.
type HolderConfig struct {
	// Open opens the key; a Source whose Ask gives the passphrase that the person typed.
	Open func(ctx context.Context, ask Asker) (*Signer, error)
	// For is how long the key is held; at most Longest, which is the default.
	For time.Duration
}

// Holder keeps the operator's signing key open for a short while, so that somebody who decides on several requests in one sitting
// types the passphrase once: in a foreground program at a terminal, and nowhere else. It trusts its caller to have shown what is
// signed. Only a key whose passphrase was typed here is held: a key that ssh-agent has, or a security key, is asked for each
// signature, since its keeper's question is the human. Letting go forgets the key; that the memory is overwritten is more than a Go
// program can promise. It is safe for concurrent use.
type Holder struct {
	open func(context.Context, Asker) (*Signer, error)
	life time.Duration

	mu     sync.Mutex
	signer ssh.Signer
	until  time.Time
	timer  *time.Timer
	closed bool
	// locks counts calls of Lock: a key that was being opened at one is not kept.
	locks int
}

// NewHolder returns a Holder that holds nothing yet.
func NewHolder(c HolderConfig) (*Holder, error) {
	if c.Open == nil {
		return nil, errors.New("signing key: no key to open")
	}
	if c.For < 0 || c.For > Longest {
		return nil, errors.New("signing key: a key is held for 5 minutes at most")
	}
	c.For = cmp.Or(c.For, Longest)
	return &Holder{open: c.Open, life: c.For}, nil
}

// Held reports until when the key is held, if it is.
func (h *Holder) Held() (until time.Time, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.until, h.held()
}

// held judges by the clock as well: a timer that is late, as after a suspended machine, holds nothing longer.
func (h *Holder) held() bool { return h.signer != nil && !expired(h.until, time.Now()) }

// Sign signs with the held key, or opens it, asking for its passphrase where it has one. The time is not renewed by use.
func (h *Holder) Sign(ctx context.Context, st *statement.Statement, ask Asker) (*callv1.HumanStatement, error) {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil, ErrClosed
	}
	if !h.held() {
		h.letGo()
	}
	signer, locks := h.signer, h.locks
	h.mu.Unlock()
	if signer != nil {
		return statement.Sign(st, signer)
	}
	opened, err := h.open(ctx, ask)
	if err != nil {
		return nil, err
	}
	signed, err := statement.Sign(st, opened)
	if err = errors.Join(err, opened.Close()); err != nil {
		return nil, err
	}
	if opened.Protection == "passphrase" {
		h.keep(opened.Signer, locks)
	}
	return signed, nil
}

func (h *Holder) keep(signer ssh.Signer, locks int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.letGo()
	if h.closed || h.locks != locks {
		return
	}
	// The wall clock, not the monotonic one, which stands still while a machine sleeps.
	h.signer, h.until = signer, time.Now().Add(h.life).Round(0)
	h.timer = time.AfterFunc(h.life, h.Lock)
}

// letGo forgets the key. mu is held.
func (h *Holder) letGo() {
	if h.timer != nil {
		h.timer.Stop()
	}
	h.signer, h.timer, h.until = nil, nil, time.Time{}
}

// Lock forgets the key at once, and one that is being opened when it has signed.
func (h *Holder) Lock() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.locks++
	h.letGo()
}

// Close forgets the key for good.
func (h *Holder) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.letGo()
	h.closed = true
}
