package store_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"durward.internal/services/audit/internal/store"
)

// TestBlocksInMemory holds the blocks that a search goes through against those of the database, which it reads again only where they may
// have changed.
func TestBlocksInMemory(t *testing.T) {
	db, err := store.Open(t.Context(), t.TempDir())
	must(t, err)
	defer db.Close()
	n := 0
	alter := func(statement string) {
		t.Helper()
		must(t, db.Alter(t.Context(), statement))
	}
	check := func(what string, full bool) {
		t.Helper()
		for _, below := range []int64{math.MaxInt64, int64(n-1) * 10, int64(n)*5 + 3, 10, 1, 0} {
			var want []int64
			for i := n - 1; i >= 0; i-- {
				if int64(i)*10 < below {
					want = append(want, int64(i)*10+9)
				}
			}
			got, err := db.Outlined(t.Context(), below, full)
			must(t, err)
			if !slices.Equal(got, want) {
				t.Fatalf("%s, below %d: %d blocks, and there are %d", what, below, len(got), len(want))
			}
		}
	}
	add := func(to int) {
		t.Helper()
		alter(fmt.Sprintf(`WITH RECURSIVE c(i) AS (SELECT %d UNION ALL SELECT i + 1 FROM c WHERE i + 1 < %d)
			INSERT INTO blocks SELECT i * 10, i * 10 + 9, i, i, x'00' FROM c`, n, to))
		n = to
	}
	check("none", false)
	for _, to := range []int{1, 2, 5, 3000} {
		add(to)
		check(fmt.Sprint(to), false)
	}
	if _, err := db.Outlined(t.Context(), math.MaxInt64, false); err != nil || db.Kept() != n-1 {
		t.Errorf("%v; %d blocks are kept", err, db.Kept())
	}
	add(3003)
	check("grown", false)

	// The newest block grows, and a search sees that.
	for range 2 {
		if _, err := db.Outlined(t.Context(), math.MaxInt64, false); err != nil {
			t.Fatal(err)
		}
		alter(fmt.Sprintf(`UPDATE blocks SET last = last + 3 WHERE first = %d`, (n-1)*10))
	}
	got, err := db.Outlined(t.Context(), math.MaxInt64, false)
	if err != nil || got[0] != int64(n-1)*10+15 {
		t.Errorf("%v; the newest block ends at %d", err, got[0])
	}

	// Another copy of the log, which is behind, is read anew.
	alter(`DELETE FROM blocks WHERE first >= 20000`)
	n = 2000
	check("behind", false)
	check("more than is kept", true)
	if db.Kept() != 0 {
		t.Errorf("%d blocks are kept, and the bound was reached", db.Kept())
	}
}
