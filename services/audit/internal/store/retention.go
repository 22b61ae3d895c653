package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/audit/internal/store/packed"
	"durward.internal/services/platform/logproof"
)

// Headers calls row with the header of each entry from one index to below another whose body is there, in order: with its writer, times
// and ids, and nothing that a body or a proof needs. It reads at most limit entries and returns where it ended.
func (s *Store) Headers(ctx context.Context, from, end uint64, limit int, row func(*auditv1.Entry)) (next uint64, err error) {
	next = min(end, from+uint64(max(limit, 0)), math.MaxInt64)
	if from >= next {
		return end, nil
	}
	found, err := s.inTail(ctx, bare, func(e *auditv1.Entry) (bool, error) {
		return e.GetIndex() >= from && e.GetIndex() < next && !logproof.BodyMissing(e), nil
	})
	if err != nil {
		return 0, err
	}
	end, s = boundary(found, next), s.tables()
	if err := s.each(ctx, `SELECT e.idx, w.identity, e.kind, e.tier, e.time, e.logged_at, e.request_id, e.operation_id
		FROM entries e JOIN bodies b ON b.idx = e.idx JOIN writers w ON w.id = e.writer WHERE e.idx >= ? AND e.idx < ? ORDER BY e.idx`,
		[]any{int64(from), int64(end)}, func(scan func(...any) error) (bool, error) {
			var index, written, logged int64
			var kind, tier int32
			r := &auditv1.Record{}
			e := &auditv1.Entry{Record: r}
			if err := scan(&index, &e.Writer, &kind, &tier, &written, &logged, &r.RequestId, &r.OperationId); err != nil {
				return false, err
			}
			e.Index, r.Kind, r.Tier = uint64(index), auditv1.Kind(kind), optionsv1.Tier(tier)
			r.Time, e.LoggedAt = timestamppb.New(moment(written)), timestamppb.New(moment(logged))
			found = append(found, e)
			return true, nil
		}); err != nil {
		return 0, err
	}
	if err := s.cells(ctx, from, end, func(c *packed.Cell) (bool, error) {
		if c.Salt != nil {
			found = append(found, c.Header())
		}
		return true, nil
	}); err != nil {
		return 0, err
	}
	slices.SortFunc(found, byIndex)
	for _, e := range found {
		row(e)
	}
	return next, nil
}

// Newest returns, of the entries below end, each writer's newest of the kinds that a process asks for when its own state is lost.
func (s *Store) Newest(ctx context.Context, end uint64) (map[uint64]bool, error) {
	end = min(end, math.MaxInt64)
	newest, err := s.inTail(ctx, bare, func(e *auditv1.Entry) (bool, error) {
		return e.GetIndex() < end && slices.Contains(lastKinds, e.GetRecord().GetKind()), nil
	})
	if err != nil {
		return nil, err
	}
	type one struct {
		writer string
		kind   int32
	}
	last := map[one]uint64{}
	if err := s.tables().each(ctx, `SELECT (SELECT identity FROM writers WHERE id = writer), kind, MAX(idx) FROM entries WHERE kind `+inLast+` AND idx < ? GROUP BY writer, kind`,
		[]any{int64(end)}, func(scan func(...any) error) (bool, error) {
			var of one
			var index int64
			err := scan(&of.writer, &of.kind, &index)
			last[of] = uint64(index)
			return true, err
		}); err != nil {
		return nil, err
	}
	for _, e := range newest {
		of := one{e.GetWriter(), int32(e.GetRecord().GetKind())}
		last[of] = max(last[of], e.GetIndex())
	}
	out := map[uint64]bool{}
	for _, index := range last {
		out[index] = true
	}
	return out, nil
}

// Prune removes the bodies of these entries with their salts and words, durably, all or none, and names the entry that let them go.
// Another process must not lead: ErrFollows.
func (s *Store) Prune(ctx context.Context, by uint64, entries []uint64) error {
	if len(entries) == 0 {
		return nil
	}
	if by > math.MaxInt64 {
		return errors.New("no entry has that index")
	}
	blocks, rest, err := s.without(ctx, by, entries)
	if err == nil {
		err = s.drop(ctx, int64(by), rest, blocks)
	}
	s.forget()
	if err != nil {
		return fmt.Errorf("remove bodies: %w", err)
	}
	return nil
}

// Pruned reports whether a pruning was carried out to the end, and SetPruned remembers it.
func (s *Store) Pruned(ctx context.Context, by uint64) (done bool, err error) {
	err = s.tables().row(ctx, `SELECT EXISTS (SELECT 1 FROM pruned WHERE idx = ?)`, []any{int64(by)}, &done)
	return done, err
}

// prunedBy is what is stored of an entry's.
func prunedBy(e *auditv1.Entry) *int64 {
	if e.PrunedBy == nil {
		return nil
	}
	by := int64(e.GetPrunedBy())
	return &by
}
