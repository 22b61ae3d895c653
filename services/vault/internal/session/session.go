// Package session keeps the sessions of authenticated clients, in memory alone: they end with the process, and the gateway
// opens them again. It runs inside the vault. The handle that a session is found by is a secret between gateway and vault;
// everything else names a session by its public reference.
package session

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/clock"
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
	// OpenSkew is how far the time in a key-bound client's opening may be behind the vault's, and Skew in its other proofs.
	OpenSkew = 5 * time.Minute
	Skew     = 2 * time.Minute
	// Ahead is how far either may be before the vault's. It is shorter: a proof of the future is of use to whoever keeps it.
	Ahead = 5 * time.Second
)

// Why a proof is not fresh.
var (
	ErrTime = errors.New("the proof is of another time")
	ErrUsed = errors.New("the proof was used before")
)

// Opening is what a session begins with.
type Opening struct {
	Client *clients.Client
	// Name is what the client calls itself, cleaned.
	Name string
	// Agent is the one of the client's agents that it speaks for, and User the human that the client belongs to; empty for none.
	Agent, User string
	// Remote: the client's program runs on another machine.
	Remote bool
	// Sender is whom a messaging client speaks for; nil for any other.
	Sender *Sender
	// Idle and Life bound the session; 0 means IdleTimeout and MaxLife.
	Idle, Life time.Duration
}

// Sender is a person on a messaging platform and the room they wrote in, as the client tells: untrusted.
type Sender struct{ User, Room string }

// Session is one client's session. Its fields do not change.
type Session struct {
	// Ref is public: "s-" and 26 letters and digits.
	Ref       string
	Principal string
	// Client is as it was when the session opened.
	Client *clients.Client
	// ClientName is what the client calls itself, cleaned; untrusted all the same.
	ClientName string
	// Agent is the client's agent, as clients.yaml knows it, and User the human that the client belongs to; empty for none.
	Agent, User string
	// Remote: the client's program runs on another machine.
	Remote bool
	// Sender is nil but for a messaging client's session.
	Sender   *Sender
	OpenedAt time.Time
	// Idle is how long it may rest, Life how long it lasts however busy it is.
	Idle, Life time.Duration

	// lowered is the tier that the session's own agent brought it down to; 0: it did not.
	lowered atomic.Int32

	handle [sha256.Size]byte
	used   time.Time // under Table.mu
	window proof.Window
}

// Owner names whose the session is: the client, its agent and, for a messaging client, the person and the room. Two sessions of one
// owner may know what the other knows.
func (s *Session) Owner() string {
	parts := []string{s.Principal, s.Agent}
	if s.Sender != nil {
		parts = append(parts, s.Sender.User, s.Sender.Room)
	}
	return strings.Join(parts, "\x00")
}

// ExpiresAt is when the session ends however busy it is, by the wall clock.
func (s *Session) ExpiresAt() time.Time { return s.OpenedAt.Round(0).Add(s.Life) }

// Ceiling is the highest tier that the session may use, of a client that may use so much.
func (s *Session) Ceiling(client optionsv1.Tier) optionsv1.Tier {
	if low := optionsv1.Tier(s.lowered.Load()); low != 0 && low < client {
		return low
	}
	return client
}

// Lower brings the session's ceiling down until it ends, and reports whether that changed it: nothing raises it again.
func (s *Session) Lower(to optionsv1.Tier) bool {
	for {
		now := s.lowered.Load()
		if to <= 0 || now != 0 && int32(to) >= now {
			return false
		}
		if s.lowered.CompareAndSwap(now, int32(to)) {
			return true
		}
	}
}

// Accept reports whether a proof's counter is new in this session.
func (s *Session) Accept(counter uint64) bool { return s.window.Accept(counter) }

// Ref is the public reference of the session that the handle opens, or opened.
func Ref(id string) string {
	handle := sha256.Sum256([]byte(id))
	return "s-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(handle[:16]))
}

// Table holds all sessions. It is safe for concurrent use.
type Table struct {
	now func() time.Time
	cap int

	mu       sync.Mutex
	sessions map[[sha256.Size]byte]*Session
	refs     map[string]*Session
	counts   map[string]int
}

// New makes an empty table for at most most sessions in all; 0 means DefaultCap.
func New(now func() time.Time, most int) *Table {
	most = cmp.Or(most, DefaultCap)
	return &Table{now: now, cap: most, sessions: map[[sha256.Size]byte]*Session{}, refs: map[string]*Session{}, counts: map[string]int{}}
}

// Fresh checks that the proof of a key-bound client's opening is of this time: ErrTime. That it is used once the disk says, since a process
// cannot tell by its clock, which may have been wrong, what an earlier one took.
func (t *Table) Fresh(p *callv1.Proof) error { return t.timely(p, OpenSkew) }

// Timely checks that a proof of what happens inside a session is of this time: ErrTime. That it is used once is Accept's.
func (t *Table) Timely(p *callv1.Proof) error { return t.timely(p, Skew) }

func (t *Table) timely(p *callv1.Proof, skew time.Duration) error {
	now, made := t.now(), time.Unix(p.GetTime(), 0)
	if made.Before(now.Add(-skew)) || made.After(now.Add(Ahead)) {
		return ErrTime
	}
	return nil
}

// Open makes a session and returns it with its handle: 128 random bits in hex. CODE_RATE_LIMITED above the client's cap or
// the table's. A sender takes the place of the same client's sender who rested longest instead, which is returned as ended: so
// many strangers cannot shut a messaging channel.
func (t *Table) Open(o Opening) (id string, s, ended *Session, err error) {
	now, client := t.now(), o.Client
	id = grant.NewID()
	handle := sha256.Sum256([]byte(id))
	s = &Session{
		Ref:       Ref(id),
		Principal: client.ID, Client: client, ClientName: o.Name, Agent: o.Agent, User: o.User, Sender: o.Sender, Remote: o.Remote,
		OpenedAt: now, Idle: cmp.Or(o.Idle, IdleTimeout), Life: cmp.Or(o.Life, MaxLife), handle: handle, used: now,
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if ended, err = t.roomLocked(client, o.Sender != nil); err != nil {
		return "", nil, nil, err
	}
	if ended != nil {
		t.remove(ended)
	}
	t.sessions[handle], t.refs[s.Ref] = s, s
	t.counts[client.ID]++
	return id, s, ended, nil
}

// Room returns Open's CODE_RATE_LIMITED where it would have that now, for who is not to use up for nothing what opens a session.
func (t *Table) Room(client *clients.Client, sender bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, err := t.roomLocked(client, sender)
	return err
}

// roomLocked returns the session that ends for a new one, nil where none has to.
func (t *Table) roomLocked(client *clients.Client, sender bool) (ends *Session, err error) {
	if t.counts[client.ID] < client.Sessions && len(t.sessions) < t.cap {
		return nil, nil
	}
	for _, s := range t.sessions { // the sender's that rested longest, where a sender opens one
		if sender && s.Principal == client.ID && s.Sender != nil && (ends == nil || s.used.Before(ends.used)) {
			ends = s
		}
	}
	if ends == nil {
		err = fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded: too many sessions are open", fault.WithRetry(time.Minute))
	}
	return ends, err
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

// Live returns the session of that public reference, if it is open; it does not mark it used.
func (t *Table) Live(ref string) (*Session, bool) {
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.refs[ref]
	if !ok || t.over(s, now) {
		return nil, false
	}
	return s, true
}

// Owner is the owner of an open session, by its public reference; empty where there is none.
func (t *Table) Owner(ref string) string {
	if s, live := t.Live(ref); live {
		return s.Owner()
	}
	return ""
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

// Sweep ends what is over and returns the sessions that it ended. keep says of each other session whether its client is still let in.
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
	return ended
}

// List returns the sessions that are open, oldest first; it marks none used.
func (t *Table) List() []*Session {
	now := t.now()
	t.mu.Lock()
	var out []*Session
	for _, s := range t.sessions {
		if !t.over(s, now) {
			out = append(out, s)
		}
	}
	t.mu.Unlock()
	slices.SortFunc(out, func(a, b *Session) int { return cmp.Or(a.OpenedAt.Compare(b.OpenedAt), strings.Compare(a.Ref, b.Ref)) })
	return out
}

// Count returns how many sessions are open.
func (t *Table) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.sessions)
}

func (t *Table) over(s *Session, now time.Time) bool {
	return clock.Passed(s.used, now) >= s.Idle || clock.Passed(s.OpenedAt, now) >= s.Life
}

func (t *Table) remove(s *Session) {
	delete(t.sessions, s.handle)
	delete(t.refs, s.Ref)
	if t.counts[s.Principal]--; t.counts[s.Principal] <= 0 {
		delete(t.counts, s.Principal)
	}
}
