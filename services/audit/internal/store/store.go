// Package store keeps the audit log in one SQLite file: headers, bodies apart from them, the Merkle tree's hashes, signed
// checkpoints and each writer's last sequence. It only ever adds. It belongs to the audit process and trusts its file as
// far as the log's own verification at the start goes.
package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/logproof"
)

//go:embed migrations/*.sql
var migrations embed.FS

// File is the database's name in the state folder.
const File = "audit.db"

// ErrNotFound means that the log has no such entry.
var ErrNotFound = errors.New("no such entry")

// Store is the database. It is safe for concurrent use; Commit is for one goroutine.
type Store struct {
	// db has one connection and writes; reader has its own and reads what is committed.
	db, reader *sql.DB
	path       string
	place      database.Place
	// writers caches the rows of writers for Commit's goroutine.
	writers map[string]int64

	insertEntry, insertBody, insertHash, insertCheckpoint, updateWriter *sql.Stmt
	selectHash                                                          *sql.Stmt
}

// Open opens or makes the database in the state folder.
func Open(ctx context.Context, stateDir string) (*Store, error) {
	schema, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	cfg := database.Config{Path: filepath.Join(stateDir, File), StateDir: stateDir, Migrations: schema, Service: "audit", Proved: true}
	s := &Store{path: cfg.Path, writers: map[string]int64{}}
	if s.db, err = database.Open(ctx, cfg); err != nil {
		return nil, err
	}
	if s.reader, err = database.OpenReader(ctx, cfg); err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	err = s.prepare(ctx)
	if err == nil {
		s.place, err = database.Locate(cfg.Path)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Store) prepare(ctx context.Context) error {
	if err := errors.Join(database.Prepare(ctx, s.db, map[**sql.Stmt]string{
		&s.insertEntry: `INSERT INTO entries (idx, writer, sequence, kind, tier, status, time, logged_at, request_id, operation_id,
			tool, body_commitment, leaf) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		&s.insertBody:       `INSERT INTO bodies (idx, salt, session, principal, body) VALUES (?, ?, ?, ?, ?)`,
		&s.insertHash:       `INSERT INTO hashes (idx, hash) VALUES (?, ?)`,
		&s.insertCheckpoint: `INSERT INTO checkpoints (size, note) VALUES (?, ?)`,
		&s.updateWriter:     `UPDATE writers SET last_sequence = ? WHERE id = ?`,
	}), database.Prepare(ctx, s.reader, map[**sql.Stmt]string{
		&s.selectHash: `SELECT hash FROM hashes WHERE idx = ?`,
	})); err != nil {
		return fmt.Errorf("audit database: %w", err)
	}
	return nil
}

// Close closes the database.
func (s *Store) Close() error { return errors.Join(s.reader.Close(), s.db.Close()) }

// Probe returns an error while the store cannot be written.
func (s *Store) Probe(ctx context.Context) error { return database.Probe(ctx, s.db) }

// InPlace returns an error once the database's files were removed or replaced under this process.
func (s *Store) InPlace() error { return s.place.Check() }

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
	h := Head{Last: map[string]uint64{}}
	err := s.reader.QueryRowContext(ctx, `SELECT note FROM checkpoints ORDER BY size DESC LIMIT 1`).Scan(&h.Checkpoint)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return Head{}, fmt.Errorf("read the checkpoint: %w", err)
	}
	var logged int64
	if err := s.reader.QueryRowContext(ctx, `SELECT
		(SELECT COALESCE(MAX(idx) + 1, 0) FROM entries),
		(SELECT COALESCE(MAX(idx) + 1, 0) FROM hashes),
		(SELECT COALESCE(MAX(logged_at), 0) FROM entries)`).Scan(&h.Entries, &h.Hashes, &logged); err != nil {
		return Head{}, fmt.Errorf("read the head: %w", err)
	}
	if h.Entries > 0 {
		h.LoggedAt = time.Unix(0, logged).UTC()
	}
	rows, err := s.reader.QueryContext(ctx, `SELECT identity, last_sequence FROM writers`)
	if err != nil {
		return Head{}, fmt.Errorf("read the writers: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var writer string
		var last int64
		if err := rows.Scan(&writer, &last); err != nil {
			return Head{}, err
		}
		h.Last[writer] = uint64(last)
	}
	return h, rows.Err()
}

// Batch is what one Commit adds: consecutive sealed entries, the tree's hashes from FirstHash on, and the signed checkpoint
// of the size that results.
type Batch struct {
	Entries    []*auditv1.Entry
	FirstHash  int64
	Hashes     []tlog.Hash
	Checkpoint []byte
}

// Commit adds the batch durably, or nothing of it.
func (s *Store) Commit(ctx context.Context, b Batch) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	added := map[string]int64{}
	if err := s.write(ctx, tx, b, added); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		_ = tx.Rollback() // already rolled back, mostly; the first error is the one that counts
		return err
	}
	for writer, id := range added {
		s.writers[writer] = id
	}
	return nil
}

func (s *Store) write(ctx context.Context, tx *sql.Tx, b Batch, added map[string]int64) error {
	last := map[string]uint64{}
	for _, e := range b.Entries {
		last[e.GetWriter()] = e.GetRecord().GetSequence()
	}
	for writer, sequence := range last {
		id, err := s.setLast(ctx, tx, writer, sequence)
		if err != nil {
			return fmt.Errorf("write the writer: %w", err)
		}
		added[writer] = id
	}
	// The transaction's end closes the statements that are made for it.
	entry, body, hash := tx.StmtContext(ctx, s.insertEntry), tx.StmtContext(ctx, s.insertBody), tx.StmtContext(ctx, s.insertHash)
	for _, e := range b.Entries {
		r := e.GetRecord()
		raw, err := proto.Marshal(r.GetBody())
		if err != nil {
			return err
		}
		if raw == nil {
			raw = []byte{}
		}
		if _, err := entry.ExecContext(ctx, e.GetIndex(), added[e.GetWriter()], r.GetSequence(), r.GetKind(), r.GetTier(), r.GetStatus(),
			r.GetTime().AsTime().UnixNano(), e.GetLoggedAt().AsTime().UnixNano(), r.GetRequestId(), r.GetOperationId(), r.GetTool(),
			e.GetBodyCommitment(), e.GetLeaf()); err != nil {
			return fmt.Errorf("write the entry: %w", err)
		}
		if _, err := body.ExecContext(ctx, e.GetIndex(), e.GetSalt(), r.GetBody().GetSession(), r.GetBody().GetPrincipal(), raw); err != nil {
			return fmt.Errorf("write the body: %w", err)
		}
	}
	for i, h := range b.Hashes {
		if _, err := hash.ExecContext(ctx, b.FirstHash+int64(i), h[:]); err != nil {
			return fmt.Errorf("write the tree: %w", err)
		}
	}
	if _, err := tx.StmtContext(ctx, s.insertCheckpoint).ExecContext(ctx,
		b.Entries[len(b.Entries)-1].GetIndex()+1, b.Checkpoint); err != nil {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	return nil
}

func (s *Store) setLast(ctx context.Context, tx *sql.Tx, writer string, sequence uint64) (int64, error) {
	if id, known := s.writers[writer]; known {
		_, err := tx.StmtContext(ctx, s.updateWriter).ExecContext(ctx, sequence, id)
		return id, err
	}
	who, err := identity.Parse(writer)
	if err != nil {
		return 0, err
	}
	var id int64
	err = tx.QueryRowContext(ctx, `INSERT INTO writers (identity, role, last_sequence) VALUES (?, ?, ?)
		ON CONFLICT (identity) DO UPDATE SET last_sequence = excluded.last_sequence RETURNING id`,
		writer, identity.RoleName(who.Role()), sequence).Scan(&id)
	return id, err
}

// ReadHashes returns the tree's hashes at these stored indexes, as tlog.HashReader wants them.
func (s *Store) ReadHashes(ctx context.Context, indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		var b []byte
		if err := s.selectHash.QueryRowContext(ctx, index).Scan(&b); err != nil {
			return nil, fmt.Errorf("read hash %d of the tree: %w", index, err)
		}
		if len(b) != tlog.HashSize {
			return nil, fmt.Errorf("hash %d of the tree has %d bytes", index, len(b))
		}
		out[i] = tlog.Hash(b)
	}
	return out, nil
}

const selectEntries = `SELECT e.idx, w.identity, e.sequence, e.kind, e.tier, e.status, e.time, e.logged_at, e.request_id, e.operation_id,
	e.tool, e.body_commitment, e.leaf, b.salt, b.body
	FROM entries e JOIN writers w ON w.id = e.writer LEFT JOIN bodies b ON b.idx = e.idx `

// Entry returns the entry at index, or ErrNotFound.
func (s *Store) Entry(ctx context.Context, index uint64) (*auditv1.Entry, error) {
	if index > math.MaxInt64 {
		return nil, ErrNotFound
	}
	return s.one(ctx, selectEntries+`WHERE e.idx = ?`, index)
}

// BySequence returns what a writer wrote under a sequence, or ErrNotFound.
func (s *Store) BySequence(ctx context.Context, writer string, sequence uint64) (*auditv1.Entry, error) {
	return s.one(ctx, selectEntries+`WHERE w.identity = ? AND e.sequence = ?`, writer, sequence)
}

// Last returns a writer's newest entry of a kind, of one operation unless that is "", or ErrNotFound. It is quick for the kinds of
// the index entries_last.
func (s *Store) Last(ctx context.Context, writer string, kind auditv1.Kind, operation string) (*auditv1.Entry, error) {
	if operation != "" {
		return s.one(ctx, selectEntries+`WHERE w.identity = ? AND e.kind = ? AND e.operation_id != '' AND e.operation_id = ? ORDER BY e.idx DESC LIMIT 1`, writer, kind, operation)
	}
	return s.one(ctx, selectEntries+`WHERE e.writer = (SELECT id FROM writers WHERE identity = ?) AND e.kind = ? AND e.kind IN (3, 24, 28, 30, 31, 40, 41)
		ORDER BY e.idx DESC LIMIT 1`, writer, kind)
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
	if from >= end || from > math.MaxInt64 {
		return nil, nil
	}
	return s.list(ctx, maxBytes, selectEntries+`WHERE e.idx >= ? AND e.idx < ? ORDER BY e.idx LIMIT ?`, from, min(end, math.MaxInt64), limit)
}

// Query narrows a search; zero values narrow nothing.
type Query struct {
	RequestID, OperationID, Session, Principal, Tool string
	Tier                                             optionsv1.Tier
	Kinds                                            []auditv1.Kind
	Statuses                                         []auditv1.Status
	// Since <= logged_at < Until.
	Since, Until time.Time
	// Writer is a role's name or a whole SPIFFE ID.
	Writer string
	// Before is an index that every result lies below.
	Before uint64
}

// Search returns matching entries, newest first, at most limit of them and about maxBytes.
func (s *Store) Search(ctx context.Context, q Query, limit, maxBytes int) ([]*auditv1.Entry, error) {
	var where []string
	var args []any
	add := func(condition string, values ...any) {
		where = append(where, condition)
		args = append(args, values...)
	}
	// The indexes on texts leave out empty ones; SQLite uses them only if the query says so too.
	for _, text := range []struct{ column, value string }{
		{"e.request_id", q.RequestID}, {"e.operation_id", q.OperationID}, {"e.tool", q.Tool}, {"b.session", q.Session}, {"b.principal", q.Principal},
	} {
		if text.value != "" {
			add(text.column+" = ? AND "+text.column+" != ''", text.value)
		}
	}
	if q.Tier != optionsv1.Tier_TIER_UNSPECIFIED {
		add("e.tier = ?", q.Tier)
	}
	if len(q.Kinds) > 0 {
		add("e.kind IN ("+marks(len(q.Kinds))+")", anys(q.Kinds)...)
	}
	if len(q.Statuses) > 0 {
		add("e.status IN ("+marks(len(q.Statuses))+")", anys(q.Statuses)...)
	}
	if !q.Since.IsZero() {
		add("e.logged_at >= ?", q.Since.UnixNano())
	}
	if !q.Until.IsZero() {
		add("e.logged_at < ?", q.Until.UnixNano())
	}
	switch {
	case q.Writer == "":
	case strings.HasPrefix(q.Writer, "spiffe://"):
		add("w.identity = ?", q.Writer)
	default:
		add("w.role = ?", q.Writer)
	}
	if q.Before > 0 {
		add("e.idx < ?", min(q.Before, math.MaxInt64))
	}
	query := selectEntries
	if len(where) > 0 {
		query += "WHERE " + strings.Join(where, " AND ")
	}
	return s.list(ctx, maxBytes, query+" ORDER BY e.idx DESC LIMIT ?", append(args, limit)...)
}

func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?,", n), ",") }

func anys[T any](list []T) []any {
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = v
	}
	return out
}

// list stops early, but never before the first entry, when the entries' size reaches maxBytes.
func (s *Store) list(ctx context.Context, maxBytes int, query string, args ...any) ([]*auditv1.Entry, error) {
	rows, err := s.reader.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []*auditv1.Entry
	for size := 0; size < maxBytes && rows.Next(); {
		e, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
		size += proto.Size(e)
	}
	return out, rows.Err()
}

func scan(rows *sql.Rows) (*auditv1.Entry, error) {
	r := &auditv1.Record{}
	e := &auditv1.Entry{Record: r}
	var written, logged int64
	var body []byte
	if err := rows.Scan(&e.Index, &e.Writer, &r.Sequence, &r.Kind, &r.Tier, &r.Status, &written, &logged, &r.RequestId, &r.OperationId,
		&r.Tool, &e.BodyCommitment, &e.Leaf, &e.Salt, &body); err != nil {
		return nil, err
	}
	r.Time = timestamppb.New(time.Unix(0, written))
	e.LoggedAt = timestamppb.New(time.Unix(0, logged))
	if len(body) > 0 {
		r.Body = &auditv1.Body{}
		if err := proto.Unmarshal(body, r.Body); err != nil {
			return nil, err
		}
	}
	hash := logproof.LeafHash(e.Leaf)
	e.LeafHash = hash[:]
	return e, nil
}

// Bytes is how large the database's files are.
func (s *Store) Bytes() uint64 {
	var total int64
	for _, suffix := range []string{"", "-wal"} {
		if info, err := os.Stat(s.path + suffix); err == nil {
			total += info.Size()
		}
	}
	return uint64(max(total, 0))
}

// Folder is where the database lies.
func (s *Store) Folder() string { return filepath.Dir(s.path) }
