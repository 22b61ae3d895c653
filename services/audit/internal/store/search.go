package store

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/audit/internal/store/packed"
	"durward.internal/services/audit/internal/store/words"
)

// Query narrows a search; zero values narrow nothing.
type Query struct {
	RequestID, OperationID, Session, Principal, Tool string
	Tier                                             optionsv1.Tier
	Channel                                          callv1.Channel
	Kinds                                            []auditv1.Kind
	Statuses                                         []auditv1.Status
	// Since <= logged_at < Until.
	Since, Until time.Time
	// Writer is a role's name or a whole SPIFFE ID.
	Writer string
	// Text is words all of which the arguments, the summary or the reason hold.
	Text string
	// Before is an index that every result lies below, and From one that none does.
	Before, From uint64

	// noReads: what is in blocks is none of it.
	noReads bool
}

// The most common values have no index: looking through the newest entries finds them. These conditions let a query use the indexes
// that leave them out.
const (
	rareKind   = " AND e.kind != 42"
	rareStatus = " AND e.status > 1"
	rareTier   = " AND e.tier > 1"
)

// Search returns matching entries, newest first, at most limit of them and about maxBytes. What waits in the tail and cannot be moved, on a
// full disk for one, is looked through where it is.
func (s *Store) Search(ctx context.Context, q Query, limit, maxBytes int) ([]*auditv1.Entry, error) {
	if err := s.settle(ctx); err == nil && !s.fixed() {
		return s.filed(ctx, q, limit, maxBytes)
	}
	asked := words.In(q.Text)
	newest, err := s.inTail(ctx, whole, func(e *auditv1.Entry) (bool, error) {
		c, err := packed.New(e)
		if err != nil {
			return false, fmt.Errorf("%w: %w", errStored, err)
		}
		return q.fits(&c, asked)
	})
	if err != nil {
		return nil, err
	}
	older, err := s.tables().filed(ctx, q, limit, maxBytes)
	return first(append(newest, older...), limit, maxBytes, byNewest), err
}

// filed is Search among what is in the tables.
func (s *Store) filed(ctx context.Context, q Query, limit, maxBytes int) ([]*auditv1.Entry, error) {
	parts, err := s.parts(ctx, q)
	if err != nil {
		return nil, err
	}
	if len(parts) != 1 {
		return s.merged(ctx, parts, limit, maxBytes)
	}
	q = parts[0]
	rows, err := s.rows(ctx, q, limit, maxBytes)
	if err != nil {
		return nil, err
	}
	if size := sizeOfAll(rows); len(rows) > 0 && (len(rows) >= limit || size >= maxBytes) {
		q.From = max(q.From, rows[len(rows)-1].GetIndex()) // what is older is on no first page
	}
	reads, err := s.reads(ctx, q, rows, limit, maxBytes)
	return both(rows, reads, limit, maxBytes, byNewest), err
}

func sizeOfAll(entries []*auditv1.Entry) (size int) {
	for _, e := range entries {
		size += proto.Size(e)
	}
	return size
}

// rows searches among the entries that are kept in rows of their own.
func (s *Store) rows(ctx context.Context, q Query, limit, maxBytes int) ([]*auditv1.Entry, error) {
	var where []string
	var args []any
	add := func(condition string, values ...any) {
		where = append(where, condition)
		args = append(args, values...)
	}
	from, index, order := s.plan(q)
	if q.Text != "" {
		list := words.In(q.Text)
		if len(list) == 0 {
			return nil, nil // signs alone are in no index
		}
		condition, match := s.text(list)
		add(condition, match)
	}
	// The indexes on texts leave out empty ones; SQLite uses them only if the query says so too.
	for _, text := range []struct{ column, value string }{
		{"e.request_id", q.RequestID}, {"e.operation_id", q.OperationID}, {"e.tool", q.Tool}, {"b.session", q.Session}, {"b.principal", q.Principal},
	} {
		if text.value != "" {
			add(text.column+" = ? AND "+text.column+" != ''", text.value)
		}
	}
	switch {
	case q.Tier == optionsv1.Tier_TIER_UNSPECIFIED:
	case q.Tier > optionsv1.Tier_TIER_READ:
		add("e.tier = ?"+rareTier, int64(q.Tier))
	default:
		add("e.tier = ?", int64(q.Tier))
	}
	switch {
	case q.noReads:
		add("e.kind != 42")
	case len(q.Kinds) == 1 && q.Kinds[0] == auditv1.Kind_KIND_READ:
		// Rows have the reads of before there were blocks alone.
		add(index + " < COALESCE((SELECT MIN(first) FROM blocks), 9223372036854775807)")
	}
	if q.Channel != callv1.Channel_CHANNEL_UNSPECIFIED {
		add("b.channel = ? AND b.channel != 0", int64(q.Channel))
	}
	if len(q.Kinds) > 0 {
		add("e.kind IN ("+marks(len(q.Kinds))+")"+rare(rareKind, q.Kinds, auditv1.Kind_KIND_READ), numbers(q.Kinds)...)
	}
	if len(q.Statuses) > 0 {
		add("e.status IN ("+marks(len(q.Statuses))+")"+rare(rareStatus, q.Statuses, auditv1.Status_STATUS_UNSPECIFIED, auditv1.Status_STATUS_OK), numbers(q.Statuses)...)
	}
	// The log's clock does not go back, so that a time is a place.
	if !q.Since.IsZero() {
		add(index+" >= (SELECT idx FROM entries WHERE logged_at >= ? ORDER BY logged_at, idx LIMIT 1)", q.Since.UnixNano())
	}
	if !q.Until.IsZero() {
		add(index+" < COALESCE((SELECT idx FROM entries WHERE logged_at >= ? ORDER BY logged_at, idx LIMIT 1), 9223372036854775807)", q.Until.UnixNano())
	}
	switch {
	case q.Writer == "":
	case q.oneWriter():
		add("e.writer = (SELECT id FROM writers WHERE identity = ?)", q.Writer)
	default:
		add("e.writer IN (SELECT id FROM writers WHERE role = ?)", q.Writer)
	}
	if q.Before > 0 {
		add(index+" < ?", int64(min(q.Before, math.MaxInt64)))
	}
	if q.From > 0 {
		add(index+" >= ?", int64(min(q.From, math.MaxInt64)))
	}
	query := from
	if len(where) > 0 {
		query += "WHERE " + strings.Join(where, " AND ")
	}
	return s.list(ctx, maxBytes, query+" ORDER BY "+order+" DESC LIMIT ?", append(args, int64(limit))...)
}

// oneWriter reports whether the query names a writer, and not a role.
func (q Query) oneWriter() bool { return strings.HasPrefix(q.Writer, "spiffe://") }

// ofBodies reports whether what the query asks for is in bodies alone, but for places in the log.
func (q Query) ofBodies() bool {
	return (q.Session != "" || q.Principal != "" || q.Channel != 0) && q.Text == "" && q.RequestID == "" && q.OperationID == "" && q.Tool == "" &&
		q.Tier == 0 && len(q.Kinds) == 0 && len(q.Statuses) == 0
}

// writerAlone reports whether the query asks for nothing but who wrote.
func (q Query) writerAlone() bool {
	return q.RequestID == "" && q.OperationID == "" && q.Session == "" && q.Principal == "" && q.Tool == "" && q.Tier == 0 && q.Channel == 0 &&
		len(q.Kinds) == 0 && len(q.Statuses) == 0 && q.Since.IsZero() && q.Until.IsZero() && q.Text == ""
}

// parts are queries that find together what q finds, and each in the order of the log by an index: there is an index of each writer's
// entries in order, and none of a role's; of each kind's, and none of several kinds'.
func (s *Store) parts(ctx context.Context, q Query) (parts []Query, err error) {
	switch {
	case q.Writer != "" && !q.oneWriter() && q.writerAlone():
		err = s.each(ctx, `SELECT identity FROM writers WHERE role = ?`, []any{q.Writer}, func(scan func(...any) error) (bool, error) {
			one := q
			err := scan(&one.Writer)
			parts = append(parts, one)
			return true, err
		})
	case q.Tier == optionsv1.Tier_TIER_READ && len(q.Kinds) == 0 && !q.noReads:
		// Most of that is reads, and what is not has an index.
		others, reads := q, q
		others.noReads, reads.Kinds = true, []auditv1.Kind{auditv1.Kind_KIND_READ}
		parts = []Query{others, reads}
	case q.Text == "" && len(q.Kinds) > 1:
		for _, kind := range q.Kinds {
			one := q
			one.Kinds = []auditv1.Kind{kind}
			parts = append(parts, one)
		}
	case q.Text == "" && len(q.Statuses) > 1:
		for _, status := range q.Statuses {
			one := q
			one.Statuses = []auditv1.Status{status}
			parts = append(parts, one)
		}
	default:
		parts = []Query{q}
	}
	return parts, err
}

// merged is filed for each part.
func (s *Store) merged(ctx context.Context, parts []Query, limit, maxBytes int) ([]*auditv1.Entry, error) {
	var all []*auditv1.Entry
	for _, q := range parts {
		found, err := s.filed(ctx, q, limit, maxBytes)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return first(all, limit, maxBytes, byNewest), nil
}

func byIndex(a, b *auditv1.Entry) int  { return cmp.Compare(a.GetIndex(), b.GetIndex()) }
func byNewest(a, b *auditv1.Entry) int { return byIndex(b, a) }

// both are the first of what was found in rows and in blocks, each of which is in order and cut short by the same bounds.
func both(rows, reads []*auditv1.Entry, limit, maxBytes int, order func(a, b *auditv1.Entry) int) []*auditv1.Entry {
	if len(rows) == 0 {
		return reads
	}
	if len(reads) == 0 {
		return rows
	}
	return first(append(rows, reads...), limit, maxBytes, order)
}

// first returns what comes first of entries that were found apart, each once, at most limit of them and about maxBytes. A part that was
// cut short reaches maxBytes by itself, so that none is left out in between.
func first(all []*auditv1.Entry, limit, maxBytes int, order func(a, b *auditv1.Entry) int) []*auditv1.Entry {
	slices.SortFunc(all, order)
	all = slices.CompactFunc(all, func(a, b *auditv1.Entry) bool { return a.GetIndex() == b.GetIndex() })
	n, size := 0, 0
	for ; n < min(len(all), limit) && size < maxBytes; n++ {
		size += proto.Size(all[n])
	}
	return all[:n]
}

// rare is the condition of an index that leaves out the values common, where none of those is asked for.
func rare[T comparable](condition string, asked []T, common ...T) string {
	if slices.ContainsFunc(asked, func(one T) bool { return slices.Contains(common, one) }) {
		return ""
	}
	return condition
}

// in is the condition that a kind is one of these, written out: an index is used for the very words that it was made with.
func in(kinds []auditv1.Kind) string {
	var words []string
	for _, k := range kinds {
		words = append(words, strconv.Itoa(int(k)))
	}
	return `IN (` + strings.Join(words, ", ") + `)`
}

func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?,", n), ",") }

func numbers[T ~int32](list []T) []any {
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = int64(v)
	}
	return out
}
