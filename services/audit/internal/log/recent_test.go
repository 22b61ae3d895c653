package log

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"durward.internal/services/audit/internal/store"
)

// nothing is a store of which no hash may be asked for.
type nothing struct{}

func (nothing) ReadHashes(context.Context, []int64) ([]tlog.Hash, error) {
	return nil, errors.New("the store was asked")
}

// However large the log has become, a head carries a bounded number of hashes, and those are all that the next entries need, and proofs
// about trees that end among the newest entries.
func TestRecentHashesAreEnough(t *testing.T) {
	t.Parallel()
	h := &head{}
	var all []tlog.Hash
	read := func(h *head) tlog.HashReader {
		return store.Hashes{Ctx: t.Context(), From: nothing{}, Fresh: &h.recent}
	}
	cuts := 0
	for size := int64(0); size < 3*maxRecent; {
		next := &head{recent: edge(h)}
		if next.recent.First != h.recent.First {
			cuts++
		}
		for range 1 + size%97 {
			hashes, err := tlog.StoredHashesForRecordHash(size, tlog.RecordHash([]byte{byte(size), byte(size >> 8)}), read(next))
			if err != nil {
				t.Fatalf("entry %d: %v", size, err)
			}
			next.recent.Hashes, all = append(next.recent.Hashes, hashes...), append(all, hashes...)
			size++
		}
		next.Size, h = uint64(size), next
		if len(h.recent.Hashes) > 2*maxRecent+4*97 {
			t.Fatalf("at %d entries %d hashes are carried", size, len(h.recent.Hashes))
		}
		root, err := tlog.TreeHash(size, read(h))
		if err != nil {
			t.Fatal(err)
		}
		for back := int64(1); back < min(size, maxRecent/2-97); back = back*3 + size%5 {
			proof, err := tlog.ProveTree(size, size-back, read(h))
			if err != nil {
				t.Fatalf("from %d to %d entries: %v", size-back, size, err)
			}
			before, err := tlog.TreeHash(size-back, tlog.HashReaderFunc(func(indexes []int64) (out []tlog.Hash, _ error) {
				for _, index := range indexes {
					out = append(out, all[index])
				}
				return out, nil
			}))
			if err == nil {
				err = tlog.CheckTree(proof, size, root, size-back, before)
			}
			if err != nil {
				t.Fatalf("from %d to %d entries: %v", size-back, size, err)
			}
		}
	}
	if cuts == 0 {
		t.Error("nothing was ever left out")
	}
}
