package usage

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A call that joins another is committed and given back. Whatever is pruned in between, the books stay right and open.
func TestPruneBetweenCommitAndRelease(t *testing.T) {
	db := open(t, t.TempDir(), nil)
	b := New(db, time.Now)
	kept := place(t, b, alice)
	commit(t, kept)
	kept.Keep()
	joined := place(t, b, alice)
	commit(t, joined)
	must(t, b.Prune(t.Context()))
	must(t, joined.Release(t.Context()))
	for name, book := range map[string]*Counters{"in memory": b, "in the table": New(db, time.Now)} {
		counts := make(chan Counts, 1)
		go func() { c, _ := book.Look(t.Context(), alice); counts <- c }()
		select {
		case c := <-counts:
			if c.Day != 1 || c.Month != 1 || !c.Last.Equal(kept.at) {
				t.Errorf("%s: %+v", name, c)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("%s: the book hangs", name)
		}
	}
	must(t, b.Prune(t.Context()))
	if len(b.tools) != 0 {
		t.Errorf("%d tallies are kept for nobody", len(b.tools))
	}
}

// A call that was kept is given back by nobody.
func TestKeptStaysCounted(t *testing.T) {
	b := New(open(t, t.TempDir(), nil), time.Now)
	r := place(t, b, alice)
	commit(t, r)
	r.Keep()
	must(t, r.Release(t.Context()))
	if c, err := b.Look(t.Context(), alice); err != nil || c.Day != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	var none *Reservation
	none.Keep()
}

// A clock that is set back over midnight finds what was counted that day.
func TestClockSetBack(t *testing.T) {
	now := time.Date(2026, 3, 1, 0, 5, 0, 0, time.Local)
	b := New(open(t, t.TempDir(), nil), func() time.Time { return now })
	now = now.Add(-10 * time.Minute) // the last day of February
	for range 2 {
		r := place(t, b, alice)
		commit(t, r)
		r.Keep()
	}
	last := now
	want := func(c Counts) {
		t.Helper()
		got, err := b.Look(t.Context(), alice)
		must(t, err)
		if diff := cmp.Diff(c, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	now = now.Add(10 * time.Minute)
	want(Counts{Session: 2, Last: last})
	now = now.Add(-10 * time.Minute)
	want(Counts{Session: 2, Day: 2, Month: 2, Last: last})
}
