package front

import (
	"crypto/sha256"
	"crypto/subtle"
	"sync"
	"time"

	"durward.internal/gateway/internal/relay"
)

// entry is one client session: the SDK's id, the SHA-256 of the token that opened it, the vault's session.
type entry struct {
	token [sha256.Size]byte
	relay *relay.Session
	end   func()

	// Guarded by the table's mutex.
	id       string
	inflight int
	used     time.Time
	dead     bool
}

// table holds the sessions by the id that the SDK gave them.
type table struct {
	perPrincipal int

	mu     sync.Mutex
	byID   map[string]*entry
	counts map[string]int
}

func newTable(perPrincipal int) *table {
	return &table{perPrincipal: perPrincipal, byID: map[string]*entry{}, counts: map[string]int{}}
}

// add admits a session under id, unless its handshake was abandoned. A principal at its cap loses the session that has
// been idle longest, which add returns; if none is idle, the new session is not admitted.
func (t *table) add(e *entry, id string, end func()) (evicted *entry, admitted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.dead || e.id != "" || id == "" || t.byID[id] != nil {
		return nil, false
	}
	principal := e.relay.Principal()
	if t.counts[principal] >= t.perPrincipal {
		for _, other := range t.byID {
			if other.inflight == 0 && other.relay.Principal() == principal && (evicted == nil || other.used.Before(evicted.used)) {
				evicted = other
			}
		}
		if evicted == nil {
			return nil, false
		}
		t.drop(evicted)
	}
	e.id, e.end, e.used = id, end, time.Now()
	t.byID[id] = e
	t.counts[principal]++
	return evicted, true
}

// abandon marks a session whose handshake has ended: it reports whether the session was never admitted, and then it never
// will be.
func (t *table) abandon(e *entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.id != "" {
		return false
	}
	e.dead = true
	return true
}

// acquire returns the session with that id if the token is the one that opened it, and nil otherwise. It is not evicted
// until it is released.
func (t *table) acquire(id string, token [sha256.Size]byte) *entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byID[id]
	if e == nil || subtle.ConstantTimeCompare(e.token[:], token[:]) != 1 {
		return nil
	}
	e.inflight++
	return e
}

func (t *table) release(e *entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.inflight--
	e.used = time.Now()
}

// oldest returns the session that this token opened and that has been idle longest, or nil.
func (t *table) oldest(token [sha256.Size]byte) *entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found *entry
	for _, e := range t.byID {
		if e.inflight == 0 && subtle.ConstantTimeCompare(e.token[:], token[:]) == 1 && (found == nil || e.used.Before(found.used)) {
			found = e
		}
	}
	return found
}

// remove takes e out of the table and reports whether it was there.
func (t *table) remove(e *entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.dead || t.byID[e.id] != e {
		return false
	}
	t.drop(e)
	return true
}

// drain empties the table.
func (t *table) drain() []*entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []*entry
	for _, e := range t.byID {
		all = append(all, e)
		t.drop(e)
	}
	return all
}

func (t *table) drop(e *entry) {
	e.dead = true
	delete(t.byID, e.id)
	principal := e.relay.Principal()
	if t.counts[principal]--; t.counts[principal] == 0 {
		delete(t.counts, principal)
	}
}
