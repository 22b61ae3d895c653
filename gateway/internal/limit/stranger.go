package limit

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// rememberFor is how long an accepted credential is remembered after its last use.
const rememberFor = 24 * time.Hour

// Known remembers, by its SHA-256, each credential that the vault accepted and whom it names. It proves nothing: it only
// tells whose buckets a request counts in before the vault is asked, and keeps clients that work apart from those that
// guess. It is safe for concurrent use.
type Known struct {
	most int

	mu     sync.Mutex
	byHash map[[sha256.Size]byte]acquaintance
}

type acquaintance struct {
	principal string
	used      time.Time
}

// NewKnown returns an empty memory for at most most credentials; a further one pushes out the one that was used longest
// ago.
func NewKnown(most int) *Known {
	return &Known{most: most, byHash: map[[sha256.Size]byte]acquaintance{}}
}

// Principal returns whom a credential names, if the vault accepted it.
func (k *Known) Principal(hash [sha256.Size]byte) (string, bool) {
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	a, ok := k.byHash[hash]
	switch {
	case !ok:
		return "", false
	case now.Sub(a.used) > rememberFor:
		delete(k.byHash, hash)
		return "", false
	}
	a.used = now
	k.byHash[hash] = a
	return a.principal, true
}

// Remember notes that the vault accepted a credential.
func (k *Known) Remember(hash [sha256.Size]byte, principal string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, known := k.byHash[hash]; !known && len(k.byHash) >= k.most {
		var oldest [sha256.Size]byte
		var used time.Time
		for h, a := range k.byHash {
			if used.IsZero() || a.used.Before(used) {
				oldest, used = h, a.used
			}
		}
		delete(k.byHash, oldest)
	}
	k.byHash[hash] = acquaintance{principal: principal, used: time.Now()}
}

// Forget drops a credential that the vault accepts no more.
func (k *Known) Forget(hash [sha256.Size]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.byHash, hash)
}

// strangersWait is how long a stranger may wait for a turn.
const strangersWait = time.Second

// Gate lets strangers, whose credentials the vault has not accepted, through slowly and few at a time, so that guessing
// tokens neither pays nor keeps the vault busy. It is safe for concurrent use.
type Gate struct {
	bucket *rate.Limiter
	inside chan struct{}
}

// NewGate returns an open gate for conf, which must be valid.
func NewGate(conf Config) *Gate {
	return &Gate{
		bucket: rate.NewLimiter(rate.Limit(conf.Strangers.PerS), conf.Strangers.Burst),
		inside: make(chan struct{}, conf.StrangersAtOnce),
	}
}

// ErrCrowded is returned when too many strangers wait already.
var ErrCrowded = errors.New("too many requests with unknown credentials")

// Wait waits until one more request of a stranger may be looked at, a second at most.
func (g *Gate) Wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, strangersWait)
	defer cancel()
	// The bucket answers at once if the turn would come too late, so that those who wait are bounded by its rate.
	if g.bucket.Wait(ctx) != nil {
		return ErrCrowded
	}
	return nil
}

// Enter waits until one more stranger may be before the vault, a second at most. Unless it returns an error, leave must be
// called.
func (g *Gate) Enter(ctx context.Context) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, strangersWait)
	defer cancel()
	select {
	case g.inside <- struct{}{}:
		return func() { <-g.inside }, nil
	case <-ctx.Done():
		return nil, ErrCrowded
	}
}
