// Package session keeps the sessions of authenticated clients, in memory alone: they end with the process, and the gateway
// opens them again. It runs inside the vault. The handle that a session is found by is a secret between gateway and vault;
// everything else names a session by its public reference.
package session

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
	"sync"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/proof"
	"durward.internal/services/vault/internal/clients"
)

// How long a session lives, and how many there are.
const (
	IdleTimeout = 30 * time.Minute
	MaxLife     = 8 * time.Hour
	DefaultCap  = 4096
	// OpenSkew is how far the time in a key-bound client's opening may be from the vault's.
	OpenSkew = 5 * time.Minute
	// openMemory is how long an opening is remembered: both sides of OpenSkew.
	openMemory = 2 * OpenSkew
)

// Session is one client's session. Its fields do not change.
type Session struct {
	// Ref is public: "s-" and 26 letters and digits.
	Ref       string
	Principal string
	// Client is as it was when the session opened.
	Client *clients.Client
	// ClientName is what the client calls itself, cleaned; untrusted all the same.
	ClientName string
	OpenedAt   time.Time

	handle [sha256.Size]byte
	used   time.Time // under Table.mu
	window proof.Window
}

// ExpiresAt is when the session ends however busy it is.
func (s *Session) ExpiresAt() time.Time { return s.OpenedAt.Add(MaxLife) }

// Accept reports whether a proof's counter is new in this session.
func (s *Session) Accept(counter uint64) bool { return s.window.Accept(counter) }

// Table holds all sessions. It is safe for concurrent use.
type Table struct {
	now func() time.Time
	cap int

	mu       sync.Mutex
	sessions map[[sha256.Size]byte]*Session
	counts   map[string]int
	openings map[opening]time.Time
}

type opening struct {
	client  string
	counter uint64
	time    int64
}

// New makes an empty table for at most most sessions in all; 0 means DefaultCap.
func New(now func() time.Time, most int) *Table {
	if most == 0 {
		most = DefaultCap
	}
	return &Table{
		now: now, cap: most, sessions: map[[sha256.Size]byte]*Session{}, counts: map[string]int{},
		openings: map[opening]time.Time{},
	}
}

// Fresh reports whether a key-bound client's opening is of this time and was not used before, and remembers it. Call it
// once the proof's signature was found good, so that strangers cannot fill the memory.
func (t *Table) Fresh(client string, p *callv1.Proof) bool {
	now := t.now()
	made := time.Unix(p.GetTime(), 0)
	if made.Before(now.Add(-OpenSkew)) || made.After(now.Add(OpenSkew)) {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	key := opening{client, p.GetCounter(), p.GetTime()}
	if _, seen := t.openings[key]; seen {
		return false
	}
	t.openings[key] = now
	return true
}

// Open makes a session and returns it with its handle: 128 random bits in hex. CODE_RATE_LIMITED above the client's cap or
// the table's.
func (t *Table) Open(client *clients.Client, clientName string) (string, *Session, error) {
	now := t.now()
	id := grant.NewID()
	handle := sha256.Sum256([]byte(id))
	s := &Session{
		Ref:       "s-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(handle[:16])),
		Principal: client.ID, Client: client, ClientName: clientName, OpenedAt: now, handle: handle, used: now,
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts[client.ID] >= client.Sessions || len(t.sessions) >= t.cap {
		return "", nil, fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded: too many sessions are open",
			fault.WithRetry(time.Minute))
	}
	t.sessions[handle] = s
	t.counts[client.ID]++
	return id, s, nil
}

// Find returns the session that the handle opens and marks it used; CODE_UNAUTHENTICATED for one that never was, has
// ended or was idle too long, all alike.
func (t *Table) Find(id string) (*Session, error) {
	handle := sha256.Sum256([]byte(id))
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.sessions[handle]
	if !ok || t.over(s, now) {
		return nil, fault.New(callv1.Code_CODE_UNAUTHENTICATED, "the session has ended; open another")
	}
	s.used = now
	return s, nil
}

// Close ends a session and returns it, or nil if the handle opens none.
func (t *Table) Close(id string) *Session {
	handle := sha256.Sum256([]byte(id))
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.sessions[handle]
	if !ok {
		return nil
	}
	t.remove(s)
	return s
}

// Sweep ends what is over, forgets old openings, and returns the sessions that it ended. keep says of each other session
// whether its client is still let in.
func (t *Table) Sweep(keep func(*Session) bool) []*Session {
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	var ended []*Session
	for _, s := range t.sessions {
		if t.over(s, now) || !keep(s) {
			t.remove(s)
			ended = append(ended, s)
		}
	}
	for key, at := range t.openings {
		if now.Sub(at) > openMemory {
			delete(t.openings, key)
		}
	}
	return ended
}

// Count returns how many sessions are open.
func (t *Table) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.sessions)
}

func (t *Table) over(s *Session, now time.Time) bool {
	return now.Sub(s.used) >= IdleTimeout || now.Sub(s.OpenedAt) >= MaxLife
}

func (t *Table) remove(s *Session) {
	delete(t.sessions, s.handle)
	if t.counts[s.Principal]--; t.counts[s.Principal] <= 0 {
		delete(t.counts, s.Principal)
	}
}
