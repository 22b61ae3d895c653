package store

import (
	"context"
	"errors"

	"durward.internal/services/audit/internal/store/packed"
)

// Misfiled returns the index of the first and the last entry of a block that begins from one index to below another and whose filter
// leaves out what the block holds, so that no search finds it there; false: there is none, or it cannot be read.
func (s *Store) Misfiled(ctx context.Context, from, end uint64) (first, last uint64, found bool, err error) {
	err = s.tables().blocksOf(ctx, `WHERE b.first >= ? AND b.first < ? ORDER BY b.first`, []any{int64(from), int64(end)}, func(b *block, cells []packed.Cell) (bool, error) {
		want, err := packed.Filter(cells, len(b.filter))
		if err != nil {
			return false, err
		}
		found = len(b.filter) > 0 && len(want) != len(b.filter) // an empty one hides nothing
		for i := 0; i < len(b.filter) && !found; i++ {
			found = want[i]&^b.filter[i] != 0
		}
		first, last = uint64(b.first), uint64(b.last)
		return !found, nil
	})
	if Damaged(err) || errors.Is(err, ErrNotFound) {
		return 0, 0, false, nil // the block itself is what is named then
	}
	return first, last, found, err
}
