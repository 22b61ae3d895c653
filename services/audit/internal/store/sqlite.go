package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"

	"durward.internal/services/audit/internal/store/words"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/logproof"
)

//go:embed migrations/*.sql
var migrations embed.FS

// File is the database's name in the state folder.
const File = "audit.db"

// sqlite is the engine of one process with a file.
type sqlite struct {
	// db has one connection and writes; reader has its own and reads what is committed.
	db, reader *sql.DB
	path       string
	place      database.Place
	// filling is the one reason for which a closed log is written all the same.
	filling string
	// wiping is how far Wipe is.
	wiping int
	// writers caches the rows of writers for Commit's goroutine.
	writers map[string]int64

	insertEntry, insertBody, insertText, insertChunk, growChunk, insertCheckpoint, dropCheckpoints, updateWriter *sql.Stmt
	insertBlock, growBlock, insertPack, growPack, insertSpan, insertTail, dropTail                               *sql.Stmt
}

// Open opens or makes the database in the state folder.
func Open(ctx context.Context, stateDir string) (*Store, error) {
	cfg := database.Config{
		Path: filepath.Join(stateDir, File), StateDir: stateDir, Migrations: database.Embedded(migrations, "migrations"), Service: "audit", Proved: true, Wiped: true,
	}
	s := &sqlite{path: cfg.Path, writers: map[string]int64{}}
	var err error
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
	return &Store{engine: s, tail: &tail{db: s, after: settleAfter}}, nil
}

func (s *sqlite) prepare(ctx context.Context) error {
	if err := database.Prepare(ctx, s.db, map[**sql.Stmt]string{
		&s.insertEntry: `INSERT INTO entries (idx, writer, sequence, kind, tier, status, time, logged_at, request_id, operation_id,
			tool, body_commitment, leaf, pruned_by) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		&s.insertBody:       `INSERT INTO bodies (idx, salt, session, principal, channel, body) VALUES (?, ?, ?, ?, ?, ?)`,
		&s.insertText:       `INSERT INTO texts (rowid, words) VALUES (?, ?)`,
		&s.insertBlock:      `INSERT INTO blocks (first, last, logged, logged_last, filter) VALUES (?, ?, ?, ?, ?)`,
		&s.growBlock:        `UPDATE blocks SET last = ?, logged_last = ?, filter = ? WHERE first = ? AND last = ?`,
		&s.insertPack:       `INSERT INTO packs (first, data) VALUES (?, ?)`,
		&s.growPack:         `UPDATE packs SET data = ? WHERE first = ?`,
		&s.insertSpan:       `INSERT INTO spans (writer, sequence, first) VALUES (?, ?, ?)`,
		&s.insertChunk:      `INSERT INTO tree (chunk, hashes) VALUES (?, ?)`,
		&s.growChunk:        `UPDATE tree SET hashes = CAST(hashes || ? AS BLOB) WHERE chunk = ? AND LENGTH(hashes) = ?`,
		&s.insertCheckpoint: `INSERT INTO checkpoints (size, note) VALUES (?, ?)`,
		&s.dropCheckpoints:  `DELETE FROM checkpoints WHERE size < ?`,
		&s.insertTail:       `INSERT INTO tail (size, entries, first_hash, hashes, checkpoint) VALUES (?, ?, ?, ?, ?)`,
		&s.dropTail:         `DELETE FROM tail WHERE size <= ?`,
		&s.updateWriter:     `UPDATE writers SET last_sequence = ? WHERE id = ? AND last_sequence < ?`,
	}); err != nil {
		return fmt.Errorf("audit database: %w", err)
	}
	return nil
}

func (s *sqlite) Close() error { return errors.Join(s.reader.Close(), s.db.Close()) }

func (s *sqlite) Probe(ctx context.Context) error { return database.Probe(ctx, s.db) }

func (s *sqlite) InPlace() error { return s.place.Check() }

// Lead asks whether the log is to be written. No other process does: each has its state folder to itself.
func (s *sqlite) Lead(ctx context.Context) error {
	closed, err := s.Closed(ctx)
	if err != nil {
		return err
	}
	return refuseClosed(closed, s.filling)
}

func (s *sqlite) Closed(ctx context.Context) (closed string, err error) {
	err = s.reader.QueryRowContext(ctx, `SELECT closed FROM sequencer`).Scan(&closed)
	return closed, err
}

func (s *sqlite) SetClosed(ctx context.Context, why string) error {
	_, err := s.db.ExecContext(ctx, `UPDATE sequencer SET closed = ?`, why)
	return err
}

func (s *sqlite) Fill(why string) { s.filling = why }

func (s *sqlite) Hold(context.Context) error { return nil }

func (s *sqlite) leads() int64 { return 1 }

func (s *sqlite) extend(ctx context.Context, r tailRow) error {
	_, err := s.insertTail.ExecContext(ctx, r.size, r.entries, r.firstHash, r.hashes, r.checkpoint)
	return err
}

func (s *sqlite) each(ctx context.Context, query string, args []any, row func(scan func(...any) error) (bool, error)) error {
	rows, err := s.reader.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if more, err := row(rows.Scan); err != nil || !more {
			return err
		}
	}
	return rows.Err()
}

func (s *sqlite) add(ctx context.Context, w work) error {
	ids := map[string]int64{}
	if err := database.Within(ctx, s.db, func(tx *sql.Tx) error { return s.write(ctx, tx, w, ids) }); err != nil {
		return err
	}
	maps.Copy(s.writers, ids)
	return nil
}

// one carries a statement out that is to change one row.
func one(ctx context.Context, tx *sql.Tx, what string, statement *sql.Stmt, args ...any) error {
	done, err := tx.StmtContext(ctx, statement).ExecContext(ctx, args...)
	if err != nil {
		return fmt.Errorf("write %s: %w", what, err)
	}
	if n, err := done.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, fmt.Errorf("write %s: the database is not as this process left it", what))
	}
	return nil
}

func (s *sqlite) write(ctx context.Context, tx *sql.Tx, w work, ids map[string]int64) error {
	for _, l := range w.last {
		id, err := s.setLast(ctx, tx, l)
		if err != nil {
			return fmt.Errorf("write the writer: %w", err)
		}
		ids[l.writer] = id
	}
	// The transaction's end closes the statements that are made for it.
	entry, body, text := tx.StmtContext(ctx, s.insertEntry), tx.StmtContext(ctx, s.insertBody), tx.StmtContext(ctx, s.insertText)
	for _, e := range w.rows {
		r := e.GetRecord()
		raw, err := proto.Marshal(r.GetBody())
		if err != nil {
			return err
		}
		if raw == nil {
			raw = []byte{}
		}
		if _, err := entry.ExecContext(ctx, e.GetIndex(), ids[e.GetWriter()], r.GetSequence(), r.GetKind(), r.GetTier(), r.GetStatus(),
			r.GetTime().AsTime().UnixNano(), e.GetLoggedAt().AsTime().UnixNano(), r.GetRequestId(), r.GetOperationId(), r.GetTool(),
			e.GetBodyCommitment(), e.GetLeafHash(), prunedBy(e)); err != nil {
			return fmt.Errorf("write the entry: %w", err)
		}
		if logproof.BodyMissing(e) {
			continue // a copy brings it without its body: there is its header alone to store
		}
		if _, err := body.ExecContext(ctx, e.GetIndex(), e.GetSalt(), r.GetBody().GetSession(), r.GetBody().GetPrincipal(), r.GetBody().GetChannel(), raw); err != nil {
			return fmt.Errorf("write the body: %w", err)
		}
		if list := words.Of(r.GetBody()); len(list) > 0 {
			if _, err := text.ExecContext(ctx, e.GetIndex(), strings.Join(list, " ")); err != nil {
				return fmt.Errorf("write the words: %w", err)
			}
		}
	}
	for _, b := range w.blocks {
		if err := s.writeBlock(ctx, tx, b, ids); err != nil {
			return err
		}
	}
	for _, c := range w.tree {
		statement, args := s.insertChunk, []any{c.number, c.hashes}
		if c.has > 0 {
			statement, args = s.growChunk, []any{c.hashes, c.number, c.has}
		}
		if err := one(ctx, tx, "the tree", statement, args...); err != nil {
			return err
		}
	}
	if err := one(ctx, tx, "the checkpoint", s.insertCheckpoint, w.size, w.checkpoint); err != nil {
		return err
	}
	_, err := tx.StmtContext(ctx, s.dropCheckpoints).ExecContext(ctx, w.size)
	if err == nil {
		_, err = tx.StmtContext(ctx, s.dropTail).ExecContext(ctx, w.size)
	}
	return err
}

func (s *sqlite) writeBlock(ctx context.Context, tx *sql.Tx, b block, ids map[string]int64) error {
	var err error
	if b.was < 0 {
		err = errors.Join(one(ctx, tx, "a block", s.insertBlock, b.first, b.last, b.logged, b.loggedLast, b.filter),
			one(ctx, tx, "a block", s.insertPack, b.first, b.data))
	} else {
		err = errors.Join(one(ctx, tx, "a block", s.growBlock, b.last, b.loggedLast, b.filter, b.first, b.was),
			one(ctx, tx, "a block", s.growPack, b.data, b.first))
	}
	for _, span := range b.spans {
		err = errors.Join(err, one(ctx, tx, "a block's writer", s.insertSpan, ids[span.writer], span.sequence, b.first))
	}
	return err
}

func (s *sqlite) setLast(ctx context.Context, tx *sql.Tx, l lastOf) (id int64, err error) {
	if id, known := s.writers[l.writer]; known {
		return id, one(ctx, tx, "its last sequence", s.updateWriter, l.sequence, id, l.first)
	}
	err = tx.QueryRowContext(ctx, `INSERT INTO writers (identity, role, last_sequence) VALUES (?, ?, ?)
		ON CONFLICT (identity) DO UPDATE SET last_sequence = excluded.last_sequence WHERE last_sequence < ? RETURNING id`,
		l.writer, l.role, l.sequence, l.first).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		err = errors.New("a sequence is taken")
	}
	return id, err
}

func (s *sqlite) drop(ctx context.Context, by int64, entries []int64, blocks []block) error {
	return database.Within(ctx, s.db, func(tx *sql.Tx) error {
		for _, b := range blocks {
			if err := s.writeBlock(ctx, tx, b, nil); err != nil {
				return err
			}
		}
		for _, index := range entries {
			for _, step := range []struct {
				query string
				args  []any
			}{
				{`DELETE FROM bodies WHERE idx = ?`, []any{index}},
				{`DELETE FROM texts WHERE rowid = ?`, []any{index}},
				{`UPDATE entries SET pruned_by = ? WHERE idx = ?`, []any{by, index}},
			} {
				if _, err := tx.ExecContext(ctx, step.query, step.args...); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func (s *sqlite) SetPruned(ctx context.Context, by uint64) error {
	_, err := s.db.ExecContext(ctx, `INSERT OR IGNORE INTO pruned VALUES (?)`, by)
	return err
}

// wipePages is how much of the index of words one piece of Wipe writes anew.
const wipePages = 64

// Wipe merges the index of words into one part, since a word of what was removed stays in the parts that held it; makes the indexes of
// texts anew, since a page of an index that was split keeps what went to the other; and has the write-ahead log begin anew. What is
// removed from a table is overwritten at once (database.Config.Wiped).
func (s *sqlite) Wipe(ctx context.Context) (more bool, err error) {
	switch s.wiping {
	case 0: // a negative number begins with all parts
		_, err = s.merge(ctx, -wipePages)
	case 1:
		if more, err = s.merge(ctx, wipePages); more {
			return true, nil
		}
	case 2:
		_, err = s.db.ExecContext(ctx, `REINDEX bodies_session`)
	case 3:
		_, err = s.db.ExecContext(ctx, `REINDEX bodies_principal`)
	default:
		emptied, err := database.EmptyLog(ctx, s.db)
		if err != nil {
			return false, fmt.Errorf("empty the write-ahead log: %w", err)
		}
		if emptied {
			s.wiping = 0
		}
		return !emptied, nil
	}
	if err != nil {
		return false, fmt.Errorf("overwrite what was removed: %w", err)
	}
	s.wiping++
	return true, nil
}

// merge reports whether it did anything.
func (s *sqlite) merge(ctx context.Context, pages int) (bool, error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback() // it is committed, or nothing of it counts
	var before, after int64
	if err := tx.QueryRowContext(ctx, `SELECT total_changes()`).Scan(&before); err != nil {
		return false, err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO texts (texts, rank) VALUES ('merge', ?)`, pages); err != nil {
		return false, err
	}
	if err := tx.QueryRowContext(ctx, `SELECT total_changes()`).Scan(&after); err != nil {
		return false, err
	}
	return after-before >= 2, tx.Commit() // the command itself counts as one
}

func (s *sqlite) text(words []string) (condition string, match any) {
	return "texts MATCH ?", `"` + strings.Join(words, `" AND "`) + `"`
}

// plan begins where an index has the entries in the order of the log, so that none is sorted and the older ones are not read: SQLite does
// not see by itself that the orders of two tables are one.
func (s *sqlite) plan(q Query) (from, index, order string) {
	first := func(table, column string) (string, string, string) {
		return strings.Replace(selectEntries, "FROM entries e ", "FROM "+table+" CROSS JOIN entries e ON e.idx = "+column+" ", 1), column, column
	}
	switch {
	case q.Text != "":
		return first("texts t", "t.rowid")
	case q.ofBodies():
		from, index, order = first("bodies b", "b.idx")
		return strings.Replace(from, "LEFT JOIN bodies b ON b.idx = e.idx ", "", 1), index, order
	case q.oneWriter() && q.writerAlone():
		return selectEntries, "e.idx", "e.sequence" // one writer's entries are in both orders, and there is an index of this one
	}
	return selectEntries, "e.idx", "e.idx"
}

func (s *sqlite) Bytes() uint64 {
	var total int64
	for _, suffix := range []string{"", "-wal"} {
		if info, err := os.Stat(s.path + suffix); err == nil {
			total += info.Size()
		}
	}
	return uint64(max(total, 0))
}

func (s *sqlite) Folder() string { return filepath.Dir(s.path) }
