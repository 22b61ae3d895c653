package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/proto"

	"durward.internal/services/platform/postgres"
)

//go:embed migrations/postgres/*.sql
var postgresMigrations embed.FS

// answerTime bounds a statement of the log's own; what became of one that took longer is unknown until the next Lead.
const answerTime = postgres.AnswerTime

// server is the engine of several processes with a PostgreSQL server.
type server struct {
	*postgres.Database
	lease *postgres.Lease
	// filling is the one reason for which a closed log is written all the same.
	filling string
}

// OpenPostgres opens the database of a PostgreSQL server, and brings its schema up to date.
func OpenPostgres(ctx context.Context, s postgres.Settings, logger *slog.Logger) (*Store, error) {
	schema, err := fs.Sub(postgresMigrations, "migrations/postgres")
	if err != nil {
		return nil, err
	}
	db, err := postgres.Open(ctx, s, "audit", logger)
	if err != nil {
		return nil, err
	}
	if err := db.Migrate(ctx, schema); err != nil {
		db.Pool.Close()
		return nil, fmt.Errorf("audit database: %w", err)
	}
	return &Store{&server{Database: db, lease: db.Lease()}}, nil
}

func (p *server) Close() error {
	p.lease.Leave()
	p.Pool.Close()
	return nil
}

func (p *server) Lead(ctx context.Context) error {
	closed, err := p.lease.Lead(ctx)
	if err == nil {
		if err = refuseClosed(closed, p.filling); err != nil {
			p.lease.Leave()
		}
	}
	return err
}

func (p *server) Closed(ctx context.Context) (closed string, err error) {
	err = p.Pool.QueryRow(ctx, `SELECT closed FROM sequencer`).Scan(&closed)
	return closed, err
}

func (p *server) SetClosed(ctx context.Context, why string) error {
	done, err := p.Pool.Exec(ctx, `UPDATE sequencer SET closed = $1 WHERE epoch = $2`, why, p.lease.Epoch())
	if err == nil && done.RowsAffected() == 0 {
		err = ErrFollows
	}
	return err
}

func (p *server) Fill(why string) { p.filling = why }

func (p *server) Hold(ctx context.Context) error { return p.lease.Hold(ctx) }

// add is one statement, and so one exchange: a process that is stopped has sent all of it, and then the server does all of it, or
// none. It adds nothing, and returns 0, when postgres.Fence says so.
const add = `WITH fence AS MATERIALIZED (SELECT epoch FROM sequencer WHERE FENCE AND closed = $29 FOR UPDATE),
	w AS (INSERT INTO writers (identity, role, last_sequence)
		SELECT u.* FROM fence, unnest($2::text[], $3::text[], $4::bigint[]) AS u (identity, role, sequence)
		ON CONFLICT (identity) DO UPDATE SET last_sequence = excluded.last_sequence RETURNING id, identity),
	e AS (INSERT INTO entries (idx, writer, sequence, kind, tier, status, time, logged_at, request_id, operation_id, tool, body_commitment, leaf, pruned_by)
		SELECT u.idx, w.id, u.sequence, u.kind, u.tier, u.status, u.time, u.logged_at, u.request_id, u.operation_id, u.tool, u.body_commitment, u.leaf, u.pruned_by
		FROM unnest($5::bigint[], $6::text[], $7::bigint[], $8::integer[], $9::integer[], $10::integer[], $11::bigint[], $12::bigint[],
			$13::text[], $14::text[], $15::text[], $16::bytea[], $17::bytea[], $28::bigint[])
			AS u (idx, writer, sequence, kind, tier, status, time, logged_at, request_id, operation_id, tool, body_commitment, leaf, pruned_by)
		JOIN w ON w.identity = u.writer RETURNING idx),
	b AS (INSERT INTO bodies (idx, salt, session, principal, body, channel, words)
		SELECT u.idx, u.salt, u.session, u.principal, u.body, u.channel, array_to_tsvector(string_to_array(u.words, ' '))
		FROM fence, unnest($5::bigint[], $18::bytea[], $19::text[], $20::text[], $21::bytea[], $26::integer[], $27::text[])
			AS u (idx, salt, session, principal, body, channel, words) WHERE length(u.salt) > 0),
	h AS (INSERT INTO hashes (idx, hash)
		SELECT $22::bigint + u.n - 1, u.hash FROM fence, unnest($23::bytea[]) WITH ORDINALITY AS u (hash, n)),
	c AS (INSERT INTO checkpoints (size, note) SELECT $24::bigint, $25::bytea FROM fence)
	SELECT count(*) FROM e`

func (p *server) Commit(ctx context.Context, batch Batch) error {
	epoch := p.lease.Epoch()
	if epoch == 0 {
		return ErrFollows
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	args, err := columns(batch)
	if err != nil {
		return err
	}
	var added int
	err = p.Pool.QueryRow(ctx, strings.Replace(add, "FENCE", postgres.Fence(), 1), append(append([]any{epoch}, args...), p.filling)...).Scan(&added)
	var said *pgconn.PgError
	switch {
	case errors.As(err, &said):
		// The detail names values of the row.
		return fmt.Errorf("PostgreSQL refuses the records: %s (%s)", said.Message, said.Code)
	case err != nil:
		return err
	case added == 0:
		return ErrFollows
	case added != len(batch.Entries):
		return fmt.Errorf("PostgreSQL added %d of %d records", added, len(batch.Entries))
	}
	return nil
}

// columns are the parameters of add from the second on.
func columns(batch Batch) ([]any, error) {
	n := len(batch.Entries)
	var (
		names, roles                         []string
		lasts                                []int64
		indexes, sequences, times, logged    = make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
		writers, requests, operations, tools = make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		sessions, principals                 = make([]string, n), make([]string, n)
		kinds, tiers, statuses, channels     = make([]int32, n), make([]int32, n), make([]int32, n), make([]int32, n)
		words                                = make([]string, n)
		commitments, leaves, salts, bodies   = make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n)
		pruned                               = make([]*int64, n)
		hashes                               = make([][]byte, len(batch.Hashes))
		last                                 = map[string]int{}
	)
	for i, e := range batch.Entries {
		r := e.GetRecord()
		at, known := last[e.GetWriter()]
		if !known {
			name, err := role(e.GetWriter())
			if err != nil {
				return nil, err
			}
			at = len(names)
			last[e.GetWriter()] = at
			names, roles, lasts = append(names, e.GetWriter()), append(roles, name), append(lasts, 0)
		}
		lasts[at] = int64(r.GetSequence())
		body, err := proto.Marshal(r.GetBody())
		if err != nil {
			return nil, err
		}
		indexes[i], writers[i], sequences[i] = int64(e.GetIndex()), e.GetWriter(), int64(r.GetSequence())
		kinds[i], tiers[i], statuses[i] = int32(r.GetKind()), int32(r.GetTier()), int32(r.GetStatus())
		times[i], logged[i] = r.GetTime().AsTime().UnixNano(), e.GetLoggedAt().AsTime().UnixNano()
		requests[i], operations[i], tools[i] = r.GetRequestId(), r.GetOperationId(), r.GetTool()
		commitments[i], leaves[i], salts[i], bodies[i] = e.GetBodyCommitment(), e.GetLeafHash(), append([]byte{}, e.GetSalt()...), append([]byte{}, body...)
		pruned[i] = prunedBy(e)
		channels[i], words[i] = int32(r.GetBody().GetChannel()), strings.Join(wordsOf(r), " ")
		// PostgreSQL's text has no NUL. These two are for searching; the record has them as they are.
		sessions[i], principals[i] = withoutNUL(r.GetBody().GetSession()), withoutNUL(r.GetBody().GetPrincipal())
	}
	for i := range batch.Hashes {
		hashes[i] = batch.Hashes[i][:]
	}
	return []any{
		names, roles, lasts, indexes, writers, sequences, kinds, tiers, statuses, times, logged, requests, operations, tools, commitments, leaves,
		salts, sessions, principals, bodies, batch.FirstHash, hashes, int64(batch.Entries[n-1].GetIndex()) + 1, batch.Checkpoint, channels, words, pruned,
	}, nil
}

func withoutNUL(s string) string { return strings.ReplaceAll(s, "\x00", "") }

func (p *server) ReadHashes(ctx context.Context, indexes []int64) ([]tlog.Hash, error) {
	places := map[int64][]int{}
	for i, index := range indexes {
		places[index] = append(places[index], i)
	}
	out := make([]tlog.Hash, len(indexes))
	err := p.each(ctx, `SELECT idx, hash FROM hashes WHERE idx = ANY(?)`, []any{indexes}, func(scan func(...any) error) (bool, error) {
		var index int64
		var b []byte
		if err := scan(&index, &b); err != nil {
			return false, err
		}
		for _, i := range places[index] {
			var err error
			if out[i], err = hash(index, b); err != nil {
				return false, err
			}
		}
		delete(places, index)
		return true, nil
	})
	for index := range places {
		err = errors.Join(err, fmt.Errorf("%w: hash %d of the tree is missing", errStored, index))
	}
	return out, err
}

// remove is one statement, as add is; it answers how many rows of sequencer let it.
const remove = `WITH fence AS MATERIALIZED (SELECT epoch FROM sequencer WHERE FENCE AND closed = '' FOR UPDATE),
	b AS (DELETE FROM bodies b USING fence WHERE b.idx = ANY($2)),
	e AS (UPDATE entries e SET pruned_by = $3 FROM fence WHERE e.idx = ANY($2))
	SELECT count(*) FROM fence`

func (p *server) drop(ctx context.Context, by int64, entries []int64) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var leads int
	err := p.Pool.QueryRow(ctx, strings.Replace(remove, "FENCE", postgres.Fence(), 1), p.lease.Epoch(), entries, by).Scan(&leads)
	if err == nil && leads == 0 {
		err = ErrFollows
	}
	return err
}

func (p *server) SetPruned(ctx context.Context, by uint64) error {
	_, err := p.Pool.Exec(ctx, `INSERT INTO pruned VALUES ($1) ON CONFLICT DO NOTHING`, int64(by))
	return err
}

// Wipe gives the room of removed rows back and makes the index of words anew, in which a word stays for good otherwise. Neither keeps
// Commit waiting. The server's pages, WAL and archives may hold what was removed until they are used again, which is the server's to
// say.
func (p *server) Wipe(ctx context.Context) (more bool, err error) {
	alone, err := p.Alone(ctx)
	if err != nil {
		return false, err
	}
	defer alone.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on its end
	for _, step := range []string{`VACUUM bodies`, `REINDEX INDEX CONCURRENTLY bodies_words`} {
		if _, err := alone.Exec(ctx, step); err != nil {
			return false, fmt.Errorf("%s: %w", step, err)
		}
	}
	return false, nil
}

func (p *server) each(ctx context.Context, query string, args []any, row func(scan func(...any) error) (bool, error)) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, answerTime)
		defer cancel()
	}
	rows, err := p.Pool.Query(ctx, postgres.Dollars(query), args...)
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

func (p *server) InPlace() error { return nil }

// text asks for lexemes as they are: letters and digits have no meaning in a tsquery, within its quotes.
func (p *server) text(words []string) (condition string, match any) {
	return "b.words @@ ?::text::tsquery", "'" + strings.Join(words, "' & '") + "'"
}

func (p *server) plan(Query) (from, index, order string) { return selectEntries, "e.idx", "e.idx" }

func (p *server) Folder() string { return "" }
