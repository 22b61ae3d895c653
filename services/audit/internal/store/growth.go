package store

import (
	"context"
	"errors"
	"time"
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
	var first, size, since int64
	err := s.row(ctx, `SELECT idx, logged_at, (SELECT MAX(idx) + 1 FROM entries) FROM entries WHERE logged_at >= ? ORDER BY logged_at, idx LIMIT 1`,
		[]any{now.Add(-growthSpan).UnixNano()}, &first, &since, &size)
	if errors.Is(err, ErrNotFound) {
		return Growth{}, nil
	}
	span := now.Sub(moment(since))
	if err != nil || span < leastSpan {
		return Growth{}, err
	}
	perDay := float64(size-first) / span.Hours() * 24
	return Growth{perDay, perDay * float64(s.Bytes()) / float64(size)}, nil
}
