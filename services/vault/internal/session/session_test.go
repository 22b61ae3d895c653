package session

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/vault/internal/clients"
)

func TestHandles(t *testing.T) {
	table := New(time.Now, 0)
	client := &clients.Client{ID: "a", Sessions: 100}
	seen := map[string]bool{}
	for range 100 {
		id, s, _, err := table.Open(Opening{Client: client})
		if err != nil {
			t.Fatal(err)
		}
		if seen[id] || seen[s.Ref] || len(id) != 32 || strings.Contains(s.Ref, id) {
			t.Fatalf("handle %q, reference %q", id, s.Ref)
		}
		seen[id], seen[s.Ref] = true, true
		if got, err := table.Find(id); err != nil || got != s {
			t.Errorf("find: %v, %v", got, err)
		}
		// The public reference opens nothing.
		if _, err := table.Find(s.Ref); err == nil {
			t.Error("found by its reference")
		}
		if _, err := table.Find(strings.ToUpper(id)); err == nil && strings.ToUpper(id) != id {
			t.Error("found by another spelling")
		}
	}
}

func TestCapHoldsUnderLoad(t *testing.T) {
	table := New(time.Now, 10)
	client := &clients.Client{ID: "a", Sessions: 7}
	var opened atomic.Int32
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, _, _, err := table.Open(Opening{Client: client}); err == nil {
				opened.Add(1)
			}
		})
	}
	wg.Wait()
	if opened.Load() != 7 || table.Count() != 7 {
		t.Errorf("%d opened, %d there", opened.Load(), table.Count())
	}
}

func TestSweep(t *testing.T) {
	now := time.Now()
	table := New(func() time.Time { return now }, 0)
	client := &clients.Client{ID: "a", Sessions: 3}
	_, idle, _, _ := table.Open(Opening{Client: client})
	busyID, _, _, _ := table.Open(Opening{Client: client})
	_, revoked, _, _ := table.Open(Opening{Client: client})
	now = now.Add(IdleTimeout - time.Second)
	if _, err := table.Find(busyID); err != nil {
		t.Fatal(err)
	}
	ended := table.Sweep(func(s *Session) bool { return s != revoked })
	if len(ended) != 1 || ended[0] != revoked {
		t.Errorf("ended %v", ended)
	}
	now = now.Add(time.Second)
	ended = table.Sweep(func(*Session) bool { return true })
	if len(ended) != 1 || ended[0] != idle || table.Count() != 1 {
		t.Errorf("ended %v, %d left", ended, table.Count())
	}
	// Places are free again.
	for range 2 {
		if _, _, _, err := table.Open(Opening{Client: client}); err != nil {
			t.Error(err)
		}
	}
}

// What is of another time than now is not fresh, whenever the table was made: a wall clock that was ahead is set back.
func TestFreshnessEnds(t *testing.T) {
	now := time.Unix(1_800_000_000, 300_000_000)
	clock := now.Add(2 * time.Hour)
	table := New(func() time.Time { return clock }, 0)
	clock = now
	for name, c := range map[string]struct {
		made         time.Duration
		open, inside error
	}{
		"in this second":   {0, nil, nil},
		"119 s ago":        {-119 * time.Second, nil, nil},
		"121 s ago":        {-121 * time.Second, nil, ErrTime},
		"five minutes ago": {-OpenSkew + time.Second, nil, ErrTime},
		"and a second":     {-OpenSkew - time.Second, ErrTime, ErrTime},
		"5 s ahead":        {Ahead, nil, nil},
		"6 s ahead":        {Ahead + time.Second, ErrTime, ErrTime},
		"six minutes":      {6 * time.Minute, ErrTime, ErrTime},
		"no time":          {-now.Sub(time.Unix(0, 0)).Truncate(time.Second), ErrTime, ErrTime},
	} {
		p := &callv1.Proof{Counter: 1, Time: now.Truncate(time.Second).Add(c.made).Unix()}
		if err := table.Fresh(p); !errors.Is(err, c.open) {
			t.Errorf("an opening, %s: %v, want %v", name, err, c.open)
		}
		if err := table.Timely(p); !errors.Is(err, c.inside) {
			t.Errorf("a proof, %s: %v, want %v", name, err, c.inside)
		}
	}
}

func TestLive(t *testing.T) {
	now := time.Now()
	table := New(func() time.Time { return now }, 0)
	id, s, _, _ := table.Open(Opening{Client: &clients.Client{ID: "a", Sessions: 3}})
	if got, ok := table.Live(s.Ref); !ok || got != s {
		t.Errorf("an open session: %v, %v", got, ok)
	}
	_, idle, _, _ := table.Open(Opening{Client: &clients.Client{ID: "a", Sessions: 3}})
	table.Close(id)
	now = now.Add(IdleTimeout)
	for _, ref := range []string{s.Ref, idle.Ref, id, ""} {
		if _, ok := table.Live(ref); ok {
			t.Errorf("%q is open", ref)
		}
	}
}

// A session's ceiling falls and never rises, and never above its client's.
func TestCeiling(t *testing.T) {
	const read, write, destructive = optionsv1.Tier_TIER_READ, optionsv1.Tier_TIER_WRITE, optionsv1.Tier_TIER_DESTRUCTIVE
	_, s, _, err := New(time.Now, 0).Open(Opening{Client: &clients.Client{ID: "a", Sessions: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if s.Ceiling(destructive) != destructive || s.Lower(0) {
		t.Error("lowered by itself")
	}
	if !s.Lower(write) || s.Lower(write) || s.Lower(destructive) || s.Ceiling(destructive) != write || s.Ceiling(read) != read {
		t.Errorf("at WRITE: %s, %s", s.Ceiling(destructive), s.Ceiling(read))
	}
	if !s.Lower(read) || s.Lower(write) || s.Ceiling(destructive) != read {
		t.Errorf("at READ: %s", s.Ceiling(destructive))
	}
}

// A session ends by its own bounds, and is not listed any more.
func TestBoundsOfASession(t *testing.T) {
	now := time.Now()
	table := New(func() time.Time { return now }, 0)
	client := &clients.Client{ID: "a", Sessions: 10}
	open := func(o Opening) *Session {
		t.Helper()
		o.Client = client
		_, s, _, err := table.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Nanosecond)
		return s
	}
	usual := open(Opening{Agent: "coder", User: "alice"})
	long := open(Opening{Sender: &Sender{User: "u", Room: "r"}, Idle: 24 * time.Hour, Life: 24 * time.Hour})
	if list := table.List(); len(list) != 2 || list[0] != usual || list[1] != long {
		t.Errorf("%v", list)
	}
	if usual.Agent != "coder" || usual.User != "alice" || usual.Sender != nil || long.Sender.Room != "r" {
		t.Errorf("%+v, %+v", usual, long)
	}
	now = now.Add(IdleTimeout)
	if list := table.List(); len(list) != 1 || list[0] != long {
		t.Errorf("after half an hour: %v", list)
	}
	now = now.Add(24 * time.Hour)
	if list := table.List(); len(list) != 0 {
		t.Errorf("after a day: %v", list)
	}
}

// While a machine is suspended a session rests and ages, and a wall clock that is set back prolongs neither.
func TestBoundsOfASessionByEitherClock(t *testing.T) {
	began := time.Now()
	for name, c := range map[string]struct {
		used, now time.Time
		live      bool
	}{
		"half an hour suspended":      {began, platformtest.Suspended(began, IdleTimeout), false},
		"not quite half an hour":      {began, platformtest.Suspended(began, IdleTimeout-time.Second), true},
		"half an hour, and set back":  {began, platformtest.Suspended(began.Add(IdleTimeout), -time.Hour), false},
		"eight hours, some suspended": {began.Add(MaxLife - 2*time.Minute), platformtest.Suspended(began.Add(MaxLife-time.Minute), time.Minute), false},
		"eight hours, and set back":   {platformtest.Suspended(began.Add(MaxLife-time.Minute), -time.Hour), platformtest.Suspended(began.Add(MaxLife), -time.Hour), false},
	} {
		now := began
		table := New(func() time.Time { return now }, 0)
		id, s, _, err := table.Open(Opening{Client: &clients.Client{ID: "a", Sessions: 1}})
		if err != nil {
			t.Fatal(err)
		}
		s.used = c.used
		now = c.now
		_, live := table.Live(s.Ref)
		if _, err := table.Find(id); live != c.live || (err == nil) != c.live {
			t.Errorf("%s: live %v, found: %v; want %v", name, live, err, c.live)
		}
		if suspended := platformtest.Suspended(began, MaxLife); suspended.Before(s.ExpiresAt()) {
			t.Errorf("its end is told by the clock that stands still: %v, at %v", s.ExpiresAt(), suspended)
		}
	}
}

// Strangers cannot use up a messaging client's sessions: the sender who rested longest makes room, and nobody else does.
func TestSendersMakeRoom(t *testing.T) {
	now := time.Now()
	table := New(func() time.Time { return now }, 0)
	chat := &clients.Client{ID: "chat", Sessions: 3}
	open := func(user string) (string, *Session, *Session) {
		t.Helper()
		id, s, ended, err := table.Open(Opening{Client: chat, Sender: &Sender{User: user, Room: "r"}})
		if err != nil {
			t.Fatalf("%s: %v", user, err)
		}
		now = now.Add(time.Second)
		return id, s, ended
	}
	_, elsewhere, _, err := table.Open(Opening{Client: &clients.Client{ID: "other", Sessions: 1}, Sender: &Sender{User: "u", Room: "r"}})
	if err != nil {
		t.Fatal(err)
	}
	firstID, first, _ := open("first")
	_, second, _ := open("second")
	_, third, _ := open("third")
	if _, err := table.Find(firstID); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Second)
	for _, want := range []*Session{second, third, first} {
		_, _, ended := open("stranger")
		if _, live := table.Live(want.Ref); ended != want || live {
			t.Errorf("%v made room, want %v", ended, want)
		}
	}
	if _, live := table.Live(elsewhere.Ref); !live || table.Count() != 4 {
		t.Errorf("another client's sender is live: %v; %d sessions", live, table.Count())
	}
	// Who speaks for nobody is refused as before.
	if _, _, ended, err := table.Open(Opening{Client: chat}); err == nil || ended != nil {
		t.Errorf("a session without a sender: %v, %v", ended, err)
	}
}

// Sessions of two clients, agents, people or rooms have two owners, whatever the names are cut into.
func TestOwners(t *testing.T) {
	owners := map[string]bool{}
	sessions := []*Session{
		{Principal: "a"}, {Principal: "b"}, {Principal: "a", Agent: "b"}, {Principal: "ab"},
		{Principal: "a", Sender: &Sender{"u", "r"}}, {Principal: "a", Sender: &Sender{"v", "r"}}, {Principal: "a", Sender: &Sender{"u", "s"}},
		{Principal: "a", Sender: &Sender{"ur", ""}}, {Principal: "a", Agent: "u", Sender: &Sender{"r", ""}},
	}
	for _, s := range sessions {
		owners[s.Owner()] = true
	}
	if len(owners) != len(sessions) {
		t.Errorf("%d sessions have %d owners: %v", len(sessions), len(owners), owners)
	}
}
