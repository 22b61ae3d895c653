package usage

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/reserve"
	"durward.internal/services/vault/internal/store"
)

func open(t *testing.T, dir string, kept *reserve.Reserve) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), dir, kept)
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

var alice = Who{Client: "alice", Session: "s-1", Tool: "switch_mode"}

func place(t *testing.T, b *Counters, who Who) *Reservation {
	t.Helper()
	r, err := b.Reserve(t.Context(), who)
	must(t, err)
	return r
}

func commit(t *testing.T, r *Reservation) {
	t.Helper()
	must(t, r.Commit(t.Context()))
}

// A hundred calls at once at a budget of ten: ten go.
func TestParallelCallsDoNotOvershoot(t *testing.T) {
	dir := t.TempDir()
	db := open(t, dir, nil)
	b := New(db, time.Now)
	var let atomic.Int32
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range 100 {
		wg.Go(func() {
			<-start
			r, err := b.Reserve(context.Background(), alice)
			if err != nil {
				t.Error(err)
				return
			}
			if r.Counts().Day >= 10 {
				if err := r.Release(context.Background()); err != nil {
					t.Error(err)
				}
				return
			}
			let.Add(1)
			if err := r.Commit(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	wg.Wait()
	if let.Load() != 10 {
		t.Errorf("%d calls went, want 10", let.Load())
	}
	if c, err := New(db, time.Now).Look(t.Context(), alice); err != nil || c.Day != 10 || c.Month != 10 || c.Session != 0 {
		t.Errorf("after a restart: %+v, %v", c, err)
	}
}

func TestCounts(t *testing.T) {
	now := time.Date(2026, 1, 31, 23, 0, 0, 0, time.Local)
	db := open(t, t.TempDir(), nil)
	b := New(db, func() time.Time { return now })
	want := func(who Who, c Counts) {
		t.Helper()
		got, err := b.Look(t.Context(), who)
		must(t, err)
		if diff := cmp.Diff(c, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", who, diff)
		}
	}
	want(alice, Counts{})
	first := now
	commit(t, place(t, b, alice))
	want(alice, Counts{Session: 1, Day: 1, Month: 1, Last: first})
	// Another session of hers shares day and month; another tool and another client share nothing.
	want(Who{"alice", "s-2", "switch_mode"}, Counts{Day: 1, Month: 1, Last: first})
	want(Who{"alice", "s-1", "start_service"}, Counts{})
	want(Who{"bob", "s-1", "switch_mode"}, Counts{})
	// A place that is held counts, and one that is given back does not.
	now = now.Add(time.Minute)
	held := place(t, b, alice)
	want(alice, Counts{Session: 2, Day: 2, Month: 2, Last: now})
	must(t, held.Release(t.Context()))
	want(alice, Counts{Session: 1, Day: 1, Month: 1, Last: first})
	// What was committed and not made is taken back, once.
	made := place(t, b, alice)
	commit(t, made)
	for range 2 {
		must(t, made.Release(t.Context()))
	}
	want(alice, Counts{Session: 1, Day: 1, Month: 1, Last: first})
	last := first
	// Midnight, which is the month's too.
	now = now.Add(time.Hour)
	want(alice, Counts{Session: 1, Last: last})
	b.Forget(func(session string) bool { return session != "s-1" })
	want(alice, Counts{Last: last})
	// Another process, another day of the same month.
	commit(t, place(t, b, alice))
	last = now
	now = now.Add(24 * time.Hour)
	b = New(db, func() time.Time { return now })
	want(alice, Counts{Month: 1, Last: last})
	now = now.Add(keep + 48*time.Hour)
	must(t, b.Prune(t.Context()))
	want(alice, Counts{})
}

func TestRates(t *testing.T) {
	var r Rates
	now := time.Now()
	ask := func(user, room string) (time.Duration, bool) {
		return r.Allow(now, Limit{"u/" + user, 2}, Limit{"r/" + room, 3}, Limit{"all", 4})
	}
	for _, step := range []struct {
		after      time.Duration
		user, room string
		ok         bool
		retry      time.Duration
	}{
		{0, "a", "x", true, 0},
		{10 * time.Second, "a", "x", true, 0},
		{0, "a", "y", false, 50 * time.Second}, // the user
		{0, "b", "x", true, 0},
		{0, "c", "x", false, 50 * time.Second}, // the room
		{0, "c", "y", true, 0},
		{0, "d", "z", false, 50 * time.Second}, // all
		{50 * time.Second, "d", "z", true, 0},
	} {
		now = now.Add(step.after)
		if retry, ok := ask(step.user, step.room); ok != step.ok || retry != step.retry {
			t.Errorf("%s in %s: %v after %s, want %v after %s", step.user, step.room, ok, retry, step.ok, step.retry)
		}
	}
	if _, ok := r.Allow(now, Limit{"none", 0}); ok {
		t.Error("a limit of nothing lets something through")
	}
	now = now.Add(2 * window)
	if _, ok := ask("a", "x"); !ok || len(r.events) != 3 {
		t.Errorf("%d names are remembered", len(r.events))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
