package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func peak(digest, state string, at int64, readings uint32, mib ...uint32) *Peak {
	return &Peak{
		Service: "chat", Digest: digest, GPUs: "One 24 GiB", State: state, MiB: mib, Readings: readings,
		Run: time.Unix(at, 5), First: time.Unix(at, 0), Last: time.Unix(at, 0),
	}
}

func peaks(t *testing.T, s *Store) []Peak {
	t.Helper()
	all, err := s.Peaks(t.Context())
	must(t, err)
	return all
}

func TestAPeakOutlivesAndNeverShrinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	must(t, s.NotePeak(t.Context(), peak("a", PeakAwake, 100, 3, 4000, 100)))
	must(t, s.NotePeak(t.Context(), peak("a", PeakAwake, 200, 1, 10, 900)))
	must(t, s.NotePeak(t.Context(), peak("a", PeakAsleep, 150, 1, 50, 50)))
	must(t, s.Close())
	s = open(t, dir)
	awake := peak("a", PeakAwake, 200, 3, 4000, 900)
	awake.First = time.Unix(100, 0)
	if diff := cmp.Diff([]Peak{*peak("a", PeakAsleep, 150, 1, 50, 50), *awake}, peaks(t, s)); diff != "" {
		t.Errorf("after a restart (-want +got):\n%s", diff)
	}
	if err := s.NotePeak(t.Context(), peak("a", "dreaming", 1, 1, 1)); err == nil {
		t.Error("a state that there is not was written down")
	}
}

// TestOldConfigurationsAreForgotten: each change of an entry is another configuration, and people change entries often.
func TestOldConfigurationsAreForgotten(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	other := peak("z", PeakAwake, 1, 3, 7)
	other.Service = "other"
	must(t, s.NotePeak(t.Context(), other))
	for i := range 12 {
		must(t, s.NotePeak(t.Context(), peak(fmt.Sprintf("d%02d", i), PeakAwake, int64(100+i), 3, 1000)))
		must(t, s.NotePeak(t.Context(), peak(fmt.Sprintf("d%02d", i), PeakLoading, int64(100+i), 3, 1000)))
	}
	// One that is used again is not old.
	must(t, s.NotePeak(t.Context(), peak("d04", PeakAwake, 500, 3, 1000)))
	must(t, s.NotePeak(t.Context(), peak("new", PeakAwake, 501, 3, 1000)))
	got := map[string]int{}
	for _, p := range peaks(t, s) {
		got[p.Service+" "+p.Digest]++
	}
	want := map[string]int{"other z": 1, "chat d04": 2, "chat new": 1}
	for i := 6; i < 12; i++ {
		want[fmt.Sprintf("chat d%02d", i)] = 2
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}

// TestPeaksAreBounded: services of catalogs that are long gone take no room for ever.
func TestPeaksAreBounded(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	if _, err := s.DB.ExecContext(t.Context(), `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO peak SELECT 'old' || i, 'd', 'g', 'awake', '[1]', 3, 0, i, i FROM n`, keepPeaks); err != nil {
		t.Fatal(err)
	}
	must(t, s.NotePeak(t.Context(), peak("a", PeakAwake, 100, 3, 4000)))
	all := peaks(t, s)
	oldest := slices.MinFunc(all, func(a, b Peak) int { return a.Last.Compare(b.Last) })
	if len(all) != keepPeaks || oldest.Service != "old2" || !slices.ContainsFunc(all, func(p Peak) bool { return p.Service == "chat" }) {
		t.Errorf("%d are kept, the oldest is %+v", len(all), oldest)
	}
}
