package store

import (
	"context"
	"math"
	"slices"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/audit/internal/store/packed"
)

// Alike is what Counts tells records apart by. Tool and principal are those of calls that ended alone.
type Alike struct {
	Kind            auditv1.Kind
	Status          auditv1.Status
	Tool, Principal string
}

// Counts are how many records there are, and what came of what was asked for.
type Counts struct {
	// First is when the log took the first of them; zero: there is none.
	First time.Time
	Alike map[Alike]uint64
	// Waits are how long operations took, in order, that were approved after they were asked for.
	Waits []time.Duration
}

// ends are the kinds in which calls end: a refusal at the gateway, by the vault or a human, an outcome, a read, a refusal at a sink, and
// what a restart found.
var ends = []auditv1.Kind{auditv1.Kind_KIND_REFUSED, auditv1.Kind_KIND_DENIED, auditv1.Kind_KIND_OUTCOME, auditv1.Kind_KIND_READ, auditv1.Kind_KIND_SINK_REFUSED, auditv1.Kind_KIND_RECOVERED}

// Count counts the entries below an index that the log took since a time, those of the tail where they are.
func (s *Store) Count(ctx context.Context, since time.Time, end uint64) (Counts, error) {
	out := Counts{Alike: map[Alike]uint64{}}
	end = min(end, math.MaxInt64)
	from := int64(math.MinInt64)
	if !since.IsZero() {
		from = since.UnixNano()
	}
	newest, err := s.inTail(ctx, bare, func(e *auditv1.Entry) (bool, error) {
		return e.GetIndex() < end && e.GetLoggedAt().AsTime().UnixNano() >= from, nil
	})
	if err != nil {
		return Counts{}, err
	}
	end, s = boundary(newest, end), s.tables()
	earliest := int64(math.MaxInt64)
	count := func(a Alike, n, first int64) {
		out.Alike[a] += uint64(n)
		earliest = min(earliest, first)
	}
	ended := in(ends)
	err = s.each(ctx, `SELECT kind, status, tool, principal, COUNT(*), MIN(logged_at) FROM (
		SELECT e.kind, e.status, CASE WHEN e.kind `+ended+` THEN e.tool ELSE '' END AS tool, COALESCE(b.principal, '') AS principal, e.logged_at
		FROM entries e LEFT JOIN bodies b ON b.idx = e.idx AND e.kind `+ended+` WHERE e.logged_at >= ? AND e.idx < ?) AS counted
		GROUP BY kind, status, tool, principal`, []any{from, int64(end)}, func(scan func(...any) error) (bool, error) {
		var kind, status int32
		var n, first int64
		var a Alike
		if err := scan(&kind, &status, &a.Tool, &a.Principal, &n, &first); err != nil {
			return false, err
		}
		a.Kind, a.Status = auditv1.Kind(kind), auditv1.Status(status)
		count(a, n, first)
		return true, nil
	})
	if err != nil {
		return Counts{}, err
	}
	var begin int64
	if err := s.row(ctx, `SELECT COALESCE((SELECT first FROM blocks WHERE logged < ? ORDER BY logged DESC, first DESC LIMIT 1), 0)`, []any{from}, &begin); err != nil {
		return Counts{}, err
	}
	if err := s.cells(ctx, uint64(begin), end, func(c *packed.Cell) (bool, error) {
		if c.Logged >= from {
			count(Alike{auditv1.Kind(int32(uint32(c.Kind))), auditv1.Status(int32(uint32(c.Status))), c.Tool, c.Principal}, 1, c.Logged)
		}
		return true, nil
	}); err != nil {
		return Counts{}, err
	}
	for _, e := range newest {
		a := Alike{Kind: e.GetRecord().GetKind(), Status: e.GetRecord().GetStatus()}
		if slices.Contains(ends, a.Kind) {
			a.Tool, a.Principal = e.GetRecord().GetTool(), e.GetRecord().GetBody().GetPrincipal()
		}
		count(a, 1, e.GetLoggedAt().AsTime().UnixNano())
	}
	if len(out.Alike) > 0 {
		out.First = moment(earliest).UTC()
	}
	out.Waits, err = s.waits(ctx, from, int64(end), newest)
	return out, err
}

// waits returns how long approvals took, of those in the tables and then of newer entries.
func (s *Store) waits(ctx context.Context, from, end int64, newest []*auditv1.Entry) (waits []time.Duration, err error) {
	asked := map[string]int64{}
	next := func(kind auditv1.Kind, operation string, logged int64) {
		at, known := asked[operation]
		switch {
		case kind == auditv1.Kind_KIND_ASKED && !known:
			asked[operation] = logged
		case kind == auditv1.Kind_KIND_APPROVED && known:
			waits = append(waits, time.Duration(logged-at))
			delete(asked, operation)
		}
	}
	err = s.each(ctx, `SELECT e.kind, e.operation_id, e.logged_at FROM entries e WHERE e.kind IN (23, 24)`+rareKind+` AND e.logged_at >= ? AND e.idx < ? ORDER BY e.idx`,
		[]any{from, end}, func(scan func(...any) error) (bool, error) {
			var kind int32
			var operation string
			var logged int64
			if err := scan(&kind, &operation, &logged); err != nil {
				return false, err
			}
			next(auditv1.Kind(kind), operation, logged)
			return true, nil
		})
	for _, e := range newest {
		next(e.GetRecord().GetKind(), e.GetRecord().GetOperationId(), e.GetLoggedAt().AsTime().UnixNano())
	}
	return waits, err
}
