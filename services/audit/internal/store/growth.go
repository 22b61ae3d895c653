package store

import (
	"context"
	"errors"
	"slices"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/audit/internal/store/packed"
)

// Growth is by how much the log grows in a day.
type Growth struct{ Records, Bytes float64 }

const (
	// growthSpan is the time that growth is measured in, leastSpan the least of it that tells anything.
	growthSpan, leastSpan = 7 * 24 * time.Hour, time.Hour
)

// Growth measures the log's growth in the week before now, or since it began; zero for a log that is too young to tell. A record counts
// with what one takes on average.
func (s *Store) Growth(ctx context.Context, now time.Time) (Growth, error) {
	from := now.Add(-growthSpan).UnixNano()
	newest, err := s.inTail(ctx, bare, func(*auditv1.Entry) (bool, error) { return true, nil })
	if err != nil {
		return Growth{}, err
	}
	s = s.tables()
	var first, since, size int64
	err = s.row(ctx, `SELECT MAX(size), COALESCE((SELECT idx FROM entries WHERE logged_at >= ? ORDER BY logged_at, idx LIMIT 1), MAX(size)),
		COALESCE((SELECT logged_at FROM entries WHERE logged_at >= ? ORDER BY logged_at, idx LIMIT 1), 0) FROM checkpoints HAVING COUNT(*) > 0`,
		[]any{from, from}, &size, &first, &since)
	if errors.Is(err, ErrNotFound) {
		err = nil // all that there is waits in the tail
	}
	if err == nil {
		err = s.blocksOf(ctx, `WHERE b.first >= COALESCE((SELECT first FROM blocks WHERE logged < ? ORDER BY logged DESC, first DESC LIMIT 1), 0) ORDER BY b.first LIMIT 2`,
			[]any{from}, func(_ *block, cells []packed.Cell) (bool, error) {
				i := slices.IndexFunc(cells, func(c packed.Cell) bool { return c.Logged >= from })
				if i >= 0 && int64(cells[i].Index) < first {
					first, since = int64(cells[i].Index), cells[i].Logged
				}
				return i < 0, nil
			})
	}
	for _, e := range newest {
		n, at := int64(e.GetIndex()), e.GetLoggedAt().AsTime().UnixNano()
		switch {
		case at < from:
			first = max(first, n+1)
		case since == 0:
			first, since = n, at
		}
		size = max(size, n+1)
	}
	if err == nil && first == size {
		return Growth{}, nil
	}
	span := now.Sub(moment(since))
	if err != nil || span < leastSpan {
		return Growth{}, err
	}
	perDay := float64(size-first) / span.Hours() * 24
	return Growth{perDay, perDay * float64(s.Bytes()) / float64(size)}, nil
}
