package httpfront

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"durward.internal/gateway/internal/relay"
)

// key finds a session: by the id that the SDK gave it, or, in the stateless era, by its token and the client's instance.
type key struct {
	era Era
	id  string
}

// statelessKey is the session of one program of a principal, and of one agent and sender there: what a message says of itself. Each
// part is followed by what none of them holds.
func statelessKey(token [sha256.Size]byte, instance string, by relay.Caller) key {
	sender := by.Sender
	if !senderRequired() {
		sender = relay.Sender{}
	}
	if sender != (relay.Sender{}) {
		instance = "" // the vault has one session for each sender, whichever program speaks for them
	}
	if by.Remote {
		instance = "\x01" + instance
	}
	return key{Stateless, string(token[:]) + instance + "\x00" + by.Agent + "\x00" + sender.User + "\x00" + sender.Room}
}

// entry is one client session: the SHA-256 of the token that opened it, and the vault's session.
type entry struct {
	token [sha256.Size]byte
	relay *relay.Session
	// end closes the SDK's side; nil in the stateless era, which has none.
	end func()

	// Guarded by the table's mutex.
	key      key
	inflight int
	used     time.Time
	admitted bool
	dead     bool
	// asked are the ids of the requests under way, as requestKey spells them.
	asked map[string]*asked
	// streaming: the one standalone stream of the session is open.
	streaming bool
	// idle ends a session that nobody used for long.
	idle *time.Timer
}

// asked is a request under way.
type asked struct {
	// ended is closed when it is answered.
	ended chan struct{}
	// cancel ends one that is answered here; nil for those that are the SDK's.
	cancel context.CancelFunc
}

// maxSenders is how many sessions for senders a principal keeps, apart from its others: as many as a vault holds at most. A
// messaging channel has many people, who all come with one token.
const maxSenders = 1024

// forSender reports whether a session is somebody's on a messaging platform.
func (e *entry) forSender() bool { return e.relay.Sender() != relay.Sender{} }

// account is whose sessions count together.
type account struct {
	principal string
	senders   bool
}

func (e *entry) account() account { return account{e.relay.Principal(), e.forSender()} }

// table holds the sessions of both eras. It is safe for concurrent use.
type table struct {
	perPrincipal int
	idleAfter    time.Duration
	// expired is called for a session that was idle too long and is in the table no more.
	expired func(*entry)

	mu     sync.Mutex
	byKey  map[key]*entry
	counts map[account]int
	closed bool
}

func newTable(perPrincipal int, idleAfter time.Duration, expired func(*entry)) *table {
	return &table{perPrincipal: perPrincipal, idleAfter: idleAfter, expired: expired, byKey: map[key]*entry{}, counts: map[account]int{}}
}

// add admits a session under a key, unless its handshake was abandoned. A principal at its cap loses the session that has
// been idle longest, which add returns; if none is idle, the new session is not admitted.
func (t *table) add(e *entry, k key, end func()) (evicted *entry, admitted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || e.dead || e.admitted || k.id == "" || t.byKey[k] != nil {
		return nil, false
	}
	whose, most := e.account(), t.perPrincipal
	if whose.senders {
		most = maxSenders
	}
	if t.counts[whose] >= most {
		evicted = t.longestIdle(func(other *entry) bool { return other.account() == whose })
		if evicted == nil {
			return nil, false
		}
		t.drop(evicted)
	}
	e.key, e.end, e.used, e.admitted = k, end, time.Now(), true
	t.byKey[k] = e
	t.counts[whose]++
	t.watch(e)
	return evicted, true
}

// abandon marks a session whose handshake has ended: it reports whether the session was never admitted, and then it never
// will be.
func (t *table) abandon(e *entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.admitted {
		return false
	}
	e.dead = true
	return true
}

// find returns the session with that key if the token is the one that opened it, and nil otherwise.
func (t *table) find(k key, token [sha256.Size]byte) *entry {
	e := t.byKey[k]
	if e == nil || !sameToken(e.token, token) {
		return nil
	}
	return e
}

// acquire is find, and what it returns is neither idle nor evicted until it is released.
func (t *table) acquire(k key, token [sha256.Size]byte) *entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.find(k, token)
	if e == nil {
		return nil
	}
	e.inflight++
	if e.idle != nil {
		e.idle.Stop()
	}
	return e
}

// has reports whether there is a session with that key and token.
func (t *table) has(k key, token [sha256.Size]byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.find(k, token) != nil
}

// who returns the session that a request names, or that its principal has, so that a refusal can be put to somebody's account;
// nil where nobody is known.
func (t *table) who(id string, token [sha256.Size]byte) *relay.Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range []key{{Stateful, id}, statelessKey(token, "", relay.Caller{})} {
		if e := t.find(k, token); e != nil {
			return e.relay
		}
	}
	return nil
}

func (t *table) release(e *entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.inflight--
	e.used = time.Now()
	t.watch(e)
}

// justAnswered is how long a request may still end here whose answer its client has read, and used its id again.
const justAnswered = 250 * time.Millisecond

// ask notes that a request is under way, and reports whether none with its id was: a second answer could be taken for the first's.
func (t *table) ask(e *entry, id string) bool {
	var patience <-chan time.Time // of the few that have to wait
	for {
		t.mu.Lock()
		before, twice := e.asked[id]
		if !twice {
			if e.asked == nil {
				e.asked = map[string]*asked{}
			}
			e.asked[id] = &asked{ended: make(chan struct{})}
		}
		t.mu.Unlock()
		if !twice {
			return true
		}
		if patience == nil {
			patience = time.After(justAnswered)
		}
		select {
		case <-before.ended:
		case <-patience:
			return false
		}
	}
}

func (t *table) answered(e *entry, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(e.asked[id].ended)
	delete(e.asked, id)
}

// cancellable notes how a request under way is cancelled.
func (t *table) cancellable(e *entry, id string, cancel context.CancelFunc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := e.asked[id]; a != nil {
		a.cancel = cancel
	}
}

// cancel cancels a request of the session that is answered here, if that is under way.
func (t *table) cancel(e *entry, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := e.asked[id]; a != nil && a.cancel != nil {
		a.cancel()
	}
}

// restsFor is how long a session may be idle: one for a sender as long as the vault says, which a human set for messaging
// channels.
func (t *table) restsFor(e *entry) time.Duration {
	if e.forSender() {
		if idle := e.relay.About().Idle; idle > 0 {
			return idle
		}
	}
	return t.idleAfter
}

// watch starts the clock of a session that nobody uses.
func (t *table) watch(e *entry) {
	if e.dead || e.inflight > 0 {
		return
	}
	if e.idle != nil {
		e.idle.Reset(t.restsFor(e))
		return
	}
	e.idle = time.AfterFunc(t.restsFor(e), func() {
		if t.expire(e) {
			t.expired(e)
		}
	})
}

// expire takes e out of the table if it is idle still, and reports whether it did.
func (t *table) expire(e *entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.dead || e.inflight > 0 || time.Since(e.used) < t.restsFor(e) {
		return false
	}
	t.drop(e)
	return true
}

// stream opens the standalone stream of a session, which has one at a time: taken says that it is open already. A stream
// keeps no session alive.
func (t *table) stream(k key, token [sha256.Size]byte) (e *entry, taken bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e = t.find(k, token); e == nil {
		return nil, false
	}
	taken, e.streaming = e.streaming, true
	return e, taken
}

func (t *table) endStream(e *entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.streaming = false
}

// oldest returns the session that this token opened and that has been idle longest, or nil.
func (t *table) oldest(token [sha256.Size]byte) *entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.longestIdle(func(e *entry) bool { return sameToken(e.token, token) })
}

// longestIdle returns, of the sessions that nobody uses, the one that has been idle longest among those that match, or nil.
func (t *table) longestIdle(match func(*entry) bool) *entry {
	var found *entry
	for _, e := range t.byKey {
		if e.inflight == 0 && match(e) && (found == nil || e.used.Before(found.used)) {
			found = e
		}
	}
	return found
}

// remove takes e out of the table and reports whether it was there.
func (t *table) remove(e *entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.dead || !e.admitted {
		return false
	}
	t.drop(e)
	return true
}

// close empties the table, for good.
func (t *table) close() []*entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	var all []*entry
	for _, e := range t.byKey {
		all = append(all, e)
		t.drop(e)
	}
	return all
}

// size is how many sessions there are.
func (t *table) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byKey)
}

func (t *table) drop(e *entry) {
	e.dead = true
	if e.idle != nil {
		e.idle.Stop()
	}
	delete(t.byKey, e.key)
	whose := e.account()
	if t.counts[whose]--; t.counts[whose] == 0 {
		delete(t.counts, whose)
	}
}
