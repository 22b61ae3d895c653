package usage

import (
	"path/filepath"
	"testing"
	"time"

	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/reserve"
)

// TestABudgetStopsNoStop: on a disk that is really full a call that is counted is refused in the disk's own words, unless it takes
// load off the host: it is counted out of the reserve, and given back out of it.
func TestABudgetStopsNoStop(t *testing.T) {
	dir := platformtest.SmallDisk(t, 12<<20)
	if dir == "" {
		return // it ran in a process of its own
	}
	kept, err := reserve.Open(dir, 6<<20)
	must(t, err)
	db := open(t, dir, kept)
	b := New(db, time.Now)
	start, stop := Who{Client: "alice", Session: "s-1", Tool: "start_service"}, Who{Client: "alice", Session: "s-1", Tool: "stop_service"}
	commit(t, place(t, b, start))
	platformtest.Fill(t, filepath.Join(dir, "ballast"))
	var refused error
	started := uint32(1)
	for range 5000 { // what the database had allocated already
		r := place(t, b, start)
		if refused = r.Commit(t.Context()); refused != nil {
			if err := r.Release(t.Context()); err != nil {
				t.Errorf("what was not counted cannot be given back: %v", err)
			}
			break
		}
		started++
	}
	if refused == nil || fault.From(refused).Message != reserve.Sentence || kept.InUse() {
		t.Fatalf("a start that is counted, on a full disk: %v, reserve given up: %v", refused, kept.InUse())
	}
	for range 20 {
		commit(t, place(t, b, stop))
	}
	back := place(t, b, stop)
	commit(t, back)
	if err := back.Release(t.Context()); err != nil {
		t.Errorf("a stop that came to nothing: %v", err)
	}
	if !kept.InUse() {
		t.Error("the reserve was not needed: the disk was not full")
	}
	if err := place(t, b, start).Commit(t.Context()); err == nil || fault.From(err).Message != reserve.Sentence {
		t.Errorf("a start uses the reserve: %v", err)
	}
	if err := b.Prune(t.Context()); err != nil {
		t.Errorf("what is over: %v", err)
	}
	again := New(db, time.Now)
	for who, want := range map[Who]uint32{start: started, stop: 20} {
		if c, err := again.Look(t.Context(), who); err != nil || c.Day != want {
			t.Errorf("%s after a restart: %+v, %v; want %d", who.Tool, c, err, want)
		}
	}
}
