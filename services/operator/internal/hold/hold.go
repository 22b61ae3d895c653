// Package hold keeps the operator's signing key open for a short while, so that somebody who decides on several requests in
// one sitting types the passphrase once.
//
// It runs in the operator's process, in a foreground program at a terminal, and nowhere else. It trusts its caller to have shown
// what is signed. Only a key whose passphrase was typed here is held: a key that ssh-agent has, or a security key, is asked
// for each signature, since its keeper's question is the human. Letting go forgets the key; that the memory is overwritten is
// more than a Go program can promise.
package hold

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/operator/internal/keys"
	"durward.internal/services/platform/statement"
)

// Longest is how long a key is held after its passphrase, at most.
const Longest = 5 * time.Minute

// ErrClosed means that the holder was closed.
var ErrClosed = errors.New("the signing key is not held any more")

// Config says which key, and how long.
type Config struct {
	// Open opens the key; a keys.Source whose Ask gives the passphrase that the person typed.
	Open func(ctx context.Context, ask keys.Asker) (*keys.Signer, error)
	// For is how long the key is held; at most Longest, which is the default.
	For time.Duration
}

// Key is the signing key, held or not. It is safe for concurrent use.
type Key struct {
	open func(context.Context, keys.Asker) (*keys.Signer, error)
	life time.Duration

	mu     sync.Mutex
	signer ssh.Signer
	until  time.Time
	timer  *time.Timer
	closed bool
}

// New returns a holder that holds nothing yet.
func New(c Config) (*Key, error) {
	if c.Open == nil {
		return nil, errors.New("hold: no key to open")
	}
	if c.For < 0 || c.For > Longest {
		return nil, errors.New("hold: a key is held for 5 minutes at most")
	}
	if c.For == 0 {
		c.For = Longest
	}
	return &Key{open: c.Open, life: c.For}, nil
}

// Held reports until when the key is held, if it is.
func (k *Key) Held() (until time.Time, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.until, k.held()
}

// held judges by the clock as well: a timer that is late, as after a suspended machine, holds nothing longer.
func (k *Key) held() bool { return k.signer != nil && !expired(k.until, time.Now()) }

// Sign signs with the held key, or opens it, asking for its passphrase where it has one. The time is not renewed by use.
func (k *Key) Sign(ctx context.Context, st *statement.Statement, ask keys.Asker) (*callv1.HumanStatement, error) {
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return nil, ErrClosed
	}
	if !k.held() {
		k.letGo()
	}
	signer := k.signer
	k.mu.Unlock()
	if signer != nil {
		return statement.Sign(st, signer)
	}
	opened, err := k.open(ctx, ask)
	if err != nil {
		return nil, err
	}
	signed, err := statement.Sign(st, opened)
	if err = errors.Join(err, opened.Close()); err != nil {
		return nil, err
	}
	if opened.Protection == "passphrase" {
		k.keep(opened.Signer)
	}
	return signed, nil
}

func (k *Key) keep(signer ssh.Signer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.letGo()
	if k.closed {
		return
	}
	// The wall clock, not the monotonic one, which stands still while a machine sleeps.
	k.signer, k.until = signer, time.Now().Add(k.life).Round(0)
	k.timer = time.AfterFunc(k.life, k.Lock)
}

// letGo forgets the key. mu is held.
func (k *Key) letGo() {
	if k.timer != nil {
		k.timer.Stop()
	}
	k.signer, k.timer, k.until = nil, nil, time.Time{}
}

// Lock forgets the key at once.
func (k *Key) Lock() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.letGo()
}

// Close forgets the key for good.
func (k *Key) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.letGo()
	k.closed = true
}
