// Package store keeps the audit log in a database: headers, bodies apart from them, the Merkle tree's hashes, signed
// checkpoints and each writer's last sequence. It only ever adds, but for bodies that a human let go (Prune). It belongs to the audit process and trusts its database as
// far as the log's own verification at the start goes.
//
// There are two engines with one Store over them: an SQLite file, which one process has to itself, and PostgreSQL, which several
// processes share. There one of them writes, the one that has the lease of package postgres; each Commit is one statement that does
// nothing without it, so that a process that wakes after it lost the lead commits nothing.
package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/audit/internal/store/packed"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/postgres"
)

// ErrNotFound means that the log has no such entry.
var ErrNotFound = errors.New("no such entry")

// ErrFollows means that another process writes the log.
var ErrFollows = postgres.ErrFollows

// ErrClosed means that the log was moved to another database, or that it is still being moved to this one.
var ErrClosed = errors.New("this database's log is not to be written")

// Store is the database. It is safe for concurrent use; Lead, Hold, Commit and Prune are for one goroutine.
type Store struct {
	engine
	// open are the newest block's entries, as this process wrote them; nil: they are in the database.
	open  []packed.Cell
	sieve sieve
	// tail is nil for the tables alone.
	tail *tail
}

// each is engine's, of everything that is written; where another process leads, of what that has moved by now.
func (s *Store) each(ctx context.Context, query string, args []any, row func(scan func(...any) error) (bool, error)) error {
	if err := s.settle(ctx); err != nil && !errors.Is(err, ErrFollows) {
		return err
	}
	return s.engine.each(ctx, query, args, row)
}

// Close moves what waits to the tables. It is as safe where it is.
func (s *Store) Close() error {
	_ = s.settle(context.Background())
	return s.engine.Close()
}

// engine is what the databases differ in. Queries have question marks for parameters.
type engine interface {
	// each calls row for each row of the answer, until it returns false or an error.
	each(ctx context.Context, query string, args []any, row func(scan func(...any) error) (bool, error)) error

	// add does the work durably, or nothing of it. ErrFollows: this process leads no more, and nothing was added.
	add(ctx context.Context, w work) error
	// text is how entries are found by words that they all hold: a condition with one parameter, and that.
	text(words []string) (condition string, match any)
	// plan is what a search selects from, what is called there an entry's index, and what its entries are ordered by.
	plan(q Query) (from, index, order string)
	// Lead makes this process the only one that writes, and settles what any process wrote before: when it returns, nothing
	// that was under way is committed any more. ErrFollows: another process leads. ErrClosed: none may. database.ErrNewerSchema: a
	// newer program migrated the database, and this one may not.
	Lead(ctx context.Context) error
	// Hold keeps the lead. An error says that it is lost, or may be; nothing is then written before the next Lead.
	Hold(ctx context.Context) error
	// drop removes bodies, those of blocks by writing the blocks anew; see Prune.
	drop(ctx context.Context, by int64, entries []int64, blocks []block) error
	// SetPruned remembers that a pruning was carried out to the end.
	SetPruned(ctx context.Context, by uint64) error
	// Wipe overwrites, a piece at a time, what was removed and is still in the database's files, and reports whether there is more to
	// do. Commit waits for a piece at most.
	Wipe(ctx context.Context) (more bool, err error)
	// Closed is why no process may write; "": one may. SetClosed changes it, for the process that leads and no other.
	Closed(ctx context.Context) (string, error)
	SetClosed(ctx context.Context, why string) error
	// Fill lets this process lead, and write, although the log is closed for that reason.
	Fill(why string)
	// Probe returns an error while the store cannot be written.
	Probe(ctx context.Context) error
	// InPlace returns an error once the database's files were removed or replaced under this process.
	InPlace() error
	// Bytes is how large the database is.
	Bytes() uint64
	// Folder is where it lies, and "" where that is another process's to know.
	Folder() string
	Close() error
}

// Head is where the log ends.
type Head struct {
	// Checkpoint is the newest signed one; nil in an empty store.
	Checkpoint []byte
	// Entries and Hashes are how many rows there are, counted by their last key; a sound log has one entry for each of
	// the checkpoint's size and tlog.StoredHashCount(size) hashes.
	Entries, Hashes int64
	// LoggedAt is the newest entry's.
	LoggedAt time.Time
	// Last holds every writer's last sequence.
	Last map[string]uint64
}

// Head reads where the log ends.
func (s *Store) Head(ctx context.Context) (Head, error) {
	if t := s.tail; t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.fixed {
			return s.end(ctx, t.waiting)
		}
		err := s.recall(ctx)
		h := t.end
		h.Last = maps.Clone(h.Last)
		return h, err
	}
	h := Head{Last: map[string]uint64{}}
	var logged int64
	// One statement: another process may be adding to the log.
	if err := s.row(ctx, `SELECT (SELECT note FROM checkpoints ORDER BY size DESC LIMIT 1),
		(SELECT COALESCE(MAX(n), 0) FROM (SELECT MAX(idx) + 1 AS n FROM entries UNION ALL SELECT MAX(last) + 1 FROM blocks) AS ends),
		COALESCE((SELECT chunk * 126 + LENGTH(hashes) / 32 FROM tree ORDER BY chunk DESC LIMIT 1), 0),
		(SELECT COALESCE(MAX(n), 0) FROM (SELECT MAX(logged_at) AS n FROM entries UNION ALL SELECT MAX(logged_last) FROM blocks) AS times)`,
		nil, &h.Checkpoint, &h.Entries, &h.Hashes, &logged); err != nil {
		return Head{}, fmt.Errorf("read the head: %w", err)
	}
	if h.Entries > 0 {
		h.LoggedAt = time.Unix(0, logged).UTC()
	}
	if err := s.each(ctx, `SELECT identity, last_sequence FROM writers`, nil, func(scan func(...any) error) (bool, error) {
		var writer string
		var last int64
		err := scan(&writer, &last)
		h.Last[writer] = uint64(last)
		return true, err
	}); err != nil {
		return Head{}, fmt.Errorf("read the writers: %w", err)
	}
	return h, nil
}

// row reads one row.
func (s *Store) row(ctx context.Context, query string, args []any, into ...any) error {
	found := false
	err := s.each(ctx, query, args, func(scan func(...any) error) (bool, error) {
		found = true
		return false, scan(into...)
	})
	if err == nil && !found {
		err = ErrNotFound
	}
	return err
}

// Batch is what one Commit adds: consecutive sealed entries, the tree's hashes from FirstHash on, and the signed checkpoint
// of the size that results.
type Batch struct {
	Entries    []*auditv1.Entry
	FirstHash  int64
	Hashes     []tlog.Hash
	Checkpoint []byte
}

// refuseClosed is Lead's answer to a log that is closed.
func refuseClosed(closed, filling string) error {
	if closed != "" && closed != filling {
		return fmt.Errorf("%w: %s", ErrClosed, closed)
	}
	return nil
}

// role is the role of a writer.
func role(writer string) (string, error) {
	id, err := identity.Parse(writer)
	return identity.RoleName(id.Role()), err
}

const selectEntries = `SELECT e.idx, w.identity, e.sequence, e.kind, e.tier, e.status, e.time, e.logged_at, e.request_id, e.operation_id,
	e.tool, e.body_commitment, e.leaf, e.pruned_by, b.salt, b.body
	FROM entries e JOIN writers w ON w.id = e.writer LEFT JOIN bodies b ON b.idx = e.idx `

// Entry returns the entry at index, or ErrNotFound.
func (s *Store) Entry(ctx context.Context, index uint64) (*auditv1.Entry, error) {
	e, err := s.oneInTail(ctx, func(e *auditv1.Entry) bool { return e.GetIndex() == index })
	if !errors.Is(err, ErrNotFound) {
		return e, err
	}
	s = s.tables()
	e, err = s.one(ctx, selectEntries+`WHERE e.idx = ?`, int64(index)) // no entry has what becomes negative
	if errors.Is(err, ErrNotFound) {
		return s.inBlock(ctx, func(c *packed.Cell) bool { return c.Index == index }, beginAt, int64(index))
	}
	return e, err
}

// BySequence returns what a writer wrote under a sequence, or ErrNotFound.
func (s *Store) BySequence(ctx context.Context, writer string, sequence uint64) (*auditv1.Entry, error) {
	e, err := s.oneInTail(ctx, func(e *auditv1.Entry) bool { return e.GetWriter() == writer && e.GetRecord().GetSequence() == sequence })
	if !errors.Is(err, ErrNotFound) {
		return e, err
	}
	s = s.tables()
	e, err = s.one(ctx, selectEntries+`WHERE w.identity = ? AND e.sequence = ?`, writer, int64(sequence))
	if errors.Is(err, ErrNotFound) {
		return s.inBlock(ctx, func(c *packed.Cell) bool { return c.Writer == writer && c.Sequence == sequence }, `WHERE p.first =
			(SELECT s.first FROM spans s JOIN writers w ON w.id = s.writer WHERE w.identity = ? AND s.sequence <= ? ORDER BY s.sequence DESC LIMIT 1)`, writer, int64(sequence))
	}
	return e, err
}

// lastKinds are the kinds of the index entries_last, by their numbers: what a process asks for when its own state is lost.
var lastKinds = []auditv1.Kind{
	auditv1.Kind_KIND_STATE, auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_REDEEMED, auditv1.Kind_KIND_HALTED, auditv1.Kind_KIND_RESUMED,
	auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME,
}

var inLast = in(lastKinds)

// Last returns a writer's newest entry of a kind, of one operation unless that is "", or ErrNotFound. Without an operation it finds
// lastKinds alone.
func (s *Store) Last(ctx context.Context, writer string, kind auditv1.Kind, operation string) (*auditv1.Entry, error) {
	newest, err := s.inTail(ctx, whole, func(e *auditv1.Entry) (bool, error) {
		of := operation == "" && slices.Contains(lastKinds, kind) || operation != "" && operation == e.GetRecord().GetOperationId()
		return of && e.GetWriter() == writer && e.GetRecord().GetKind() == kind, nil
	})
	if err != nil {
		return nil, err
	}
	if n := len(newest); n > 0 {
		return newest[n-1], nil
	}
	s = s.tables()
	if operation != "" {
		return s.one(ctx, selectEntries+`WHERE w.identity = ? AND e.kind = ? AND e.operation_id != '' AND e.operation_id = ? ORDER BY e.idx DESC LIMIT 1`, writer, int64(kind), operation)
	}
	return s.one(ctx, selectEntries+`WHERE e.writer = (SELECT id FROM writers WHERE identity = ?) AND e.kind = ? AND e.kind `+inLast+`
		ORDER BY e.idx DESC LIMIT 1`, writer, int64(kind))
}

func (s *Store) one(ctx context.Context, query string, args ...any) (*auditv1.Entry, error) {
	list, err := s.list(ctx, math.MaxInt, query, args...)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, ErrNotFound
	}
	return list[0], nil
}

// Range returns entries from the index on, in order, below end, at most limit of them and about maxBytes.
func (s *Store) Range(ctx context.Context, from, end uint64, limit, maxBytes int) ([]*auditv1.Entry, error) {
	return s.between(ctx, whole, from, end, limit, maxBytes)
}

// Bare is Range without what whoever verifies an entry computes: its leaf and, unless its body is missing, its commitment.
func (s *Store) Bare(ctx context.Context, from, end uint64, limit, maxBytes int) ([]*auditv1.Entry, error) {
	return s.between(ctx, bare, from, end, limit, maxBytes)
}

func (s *Store) between(ctx context.Context, finish func(*auditv1.Entry) error, from, end uint64, limit, maxBytes int) ([]*auditv1.Entry, error) {
	if from >= end || from > math.MaxInt64 {
		return nil, nil
	}
	end = min(end, math.MaxInt64)
	newest, err := s.inTail(ctx, finish, func(e *auditv1.Entry) (bool, error) { return e.GetIndex() >= from && e.GetIndex() < end, nil })
	if err != nil {
		return nil, err
	}
	s = s.tables()
	rows, err := s.listed(ctx, finish, maxBytes, selectEntries+`WHERE e.idx >= ? AND e.idx < ? ORDER BY e.idx LIMIT ?`, int64(from), int64(end), int64(limit))
	if err != nil {
		return nil, err
	}
	reads, err := s.readsFrom(ctx, finish, from, end, limit, maxBytes)
	list := both(rows, reads, limit, maxBytes, byIndex)
	if len(newest) > 0 {
		list = first(append(list, newest...), limit, maxBytes, byIndex)
	}
	return list, err
}

// list stops early, but never before the first entry, when the entries' size reaches maxBytes.
func (s *Store) list(ctx context.Context, maxBytes int, query string, args ...any) ([]*auditv1.Entry, error) {
	return s.listed(ctx, whole, maxBytes, query, args...)
}

func (s *Store) listed(ctx context.Context, finish func(*auditv1.Entry) error, maxBytes int, query string, args ...any) ([]*auditv1.Entry, error) {
	var out []*auditv1.Entry
	size := 0
	err := s.each(ctx, query, args, func(scan func(...any) error) (bool, error) {
		e, err := entry(scan)
		if err == nil {
			err = finish(e)
		}
		if err != nil {
			return false, err
		}
		out = append(out, e)
		size += proto.Size(e)
		return size < maxBytes, nil
	})
	return out, err
}

// moment is a stored time.
func moment(nanoseconds int64) time.Time { return time.Unix(0, nanoseconds) }

func entry(scan func(...any) error) (*auditv1.Entry, error) {
	r := &auditv1.Record{}
	e := &auditv1.Entry{Record: r}
	var index, sequence, written, logged int64
	var kind, tier, status int32
	var body []byte
	var pruned *int64
	if err := scan(&index, &e.Writer, &sequence, &kind, &tier, &status, &written, &logged, &r.RequestId, &r.OperationId,
		&r.Tool, &e.BodyCommitment, &e.Leaf, &pruned, &e.Salt, &body); err != nil {
		return nil, fmt.Errorf("%w: %w", errStored, err)
	}
	e.Index, r.Sequence = uint64(index), uint64(sequence)
	r.Kind, r.Tier, r.Status = auditv1.Kind(kind), optionsv1.Tier(tier), auditv1.Status(status)
	r.Time, e.LoggedAt = timestamppb.New(moment(written)), timestamppb.New(moment(logged))
	if pruned != nil {
		e.PrunedBy = proto.Uint64(uint64(*pruned))
	}
	if len(body) > 0 {
		r.Body = &auditv1.Body{}
		if proto.Unmarshal(body, r.Body) != nil {
			r.Body = nil // the header stands by itself, and whoever verifies the entry sees that this is not its body
		}
	}
	if len(e.Leaf) != sha256.Size {
		// An entry of before, which was stored with all of its leaf.
		hash := logproof.LeafHash(e.Leaf)
		e.LeafHash = hash[:]
		return e, nil
	}
	e.LeafHash, e.Leaf = e.Leaf, nil
	return e, nil
}

// whole computes what is not stored of an entry. A header or body that was altered makes another leaf than the hash is of, and whoever
// verifies the entry sees it.
func whole(e *auditv1.Entry) error {
	if len(e.GetBodyCommitment()) == 0 && !logproof.BodyMissing(e) {
		commitment, err := logproof.BodyCommitment(e.GetSalt(), e.GetRecord().GetBody())
		if err != nil {
			return err
		}
		e.BodyCommitment = commitment[:]
	}
	if len(e.GetLeaf()) > 0 {
		return nil
	}
	var err error
	if e.Leaf, err = logproof.Leaf(e); err != nil && !errors.Is(err, logproof.ErrIncomplete) {
		return fmt.Errorf("%w: %w", errStored, err)
	}
	return nil
}

// bare leaves out what can be computed of an entry.
func bare(e *auditv1.Entry) error {
	e.Leaf = nil
	if !logproof.BodyMissing(e) {
		e.BodyCommitment = nil
	}
	return nil
}
