package store

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"google.golang.org/protobuf/proto"

	"durward.internal/services/audit/internal/store/words"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/postgres"
)

//go:embed migrations/postgres/*.sql
var postgresMigrations embed.FS

// answerTime bounds a statement of the log's own; what became of one that took longer is unknown until the next Lead.
const answerTime = postgres.AnswerTime

// server is the engine of several processes with a PostgreSQL server.
type server struct {
	*postgres.Database
	lease  *postgres.Lease
	schema fs.FS
	// filling is the one reason for which a closed log is written all the same.
	filling string
	// sole keeps every process from the lead while a damaged log is copied; nil: nothing does.
	sole *pgx.Conn
}

// OpenPostgres opens the database of a PostgreSQL server, and brings its schema up to date.
func OpenPostgres(ctx context.Context, s postgres.Settings, logger *slog.Logger) (*Store, error) {
	p, err := openServer(ctx, s, logger)
	if err != nil {
		return nil, err
	}
	return &Store{engine: p, tail: &tail{db: p, after: settleAfter}}, nil
}

func openServer(ctx context.Context, s postgres.Settings, logger *slog.Logger) (*server, error) {
	schema := database.Embedded(postgresMigrations, "migrations/postgres")
	db, err := postgres.Open(ctx, s, "audit", logger)
	if err != nil {
		return nil, err
	}
	if err := db.Migrate(ctx, schema, database.Newest); err != nil {
		db.Pool.Close()
		return nil, fmt.Errorf("audit database: %w", err)
	}
	return &server{Database: db, lease: db.Lease(), schema: schema}, nil
}

func (p *server) Close() error {
	p.lease.Leave()
	if p.sole != nil {
		_ = p.sole.Close(context.Background()) // the server ends the session in any case
	}
	p.Pool.Close()
	return nil
}

func (p *server) Lead(ctx context.Context) error {
	closed, err := p.lease.Lead(ctx)
	if errors.Is(err, ErrFollows) {
		// Nobody follows a log of which a copy is made, or a part of one: it would be read as if it were the log.
		ctx, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		if closed, unread := p.Closed(ctx); unread == nil {
			err = cmp.Or(refuseClosed(closed, p.filling), err)
		}
	}
	if err != nil {
		return err
	}
	if err = refuseClosed(closed, p.filling); err == nil {
		if err = p.Known(ctx, p.schema); err != nil {
			err = fmt.Errorf("audit database: %w", err)
		}
	}
	if err != nil {
		p.lease.Leave() // one that may write takes it
	}
	return err
}

func (p *server) Closed(ctx context.Context) (closed string, err error) {
	err = p.Pool.QueryRow(ctx, `SELECT closed FROM sequencer`).Scan(&closed)
	return closed, err
}

func (p *server) SetClosed(ctx context.Context, why string) error {
	done, err := p.Pool.Exec(ctx, `UPDATE sequencer SET closed = $2 WHERE `+postgres.Fence(), p.lease.Epoch(), why)
	if err == nil && done.RowsAffected() == 0 {
		err = ErrFollows
	}
	return err
}

func (p *server) Fill(why string) { p.filling = why }

func (p *server) Hold(ctx context.Context) error { return p.lease.Hold(ctx) }

// fenced runs a statement behind a fence: the table fence has a row while this process leads, by postgres.Fence, and may write a log that is
// closed for what $2 says; without it there is nothing that is to be done. The statement's first answer is how many rows that are; the
// others go to into. It is one statement, and so one exchange: a process that is stopped has sent all of it, and then the server does all
// of it, or none. ErrFollows: there was no row.
func (p *server) fenced(ctx context.Context, statement string, args []any, into ...any) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	statement = `WITH fence AS MATERIALIZED (SELECT epoch FROM sequencer WHERE ` + postgres.Fence() + ` AND closed = $2 FOR UPDATE), ` + statement
	var leads int
	var said *pgconn.PgError
	err := p.Pool.QueryRow(ctx, statement, append([]any{p.lease.Epoch(), p.filling}, args...)...).Scan(append([]any{&leads}, into...)...)
	switch {
	case err == nil && leads == 0:
		return ErrFollows
	case errors.As(err, &said):
		if !postgres.Transient(err) {
			p.lease.Leave() // another process may be allowed what this one is not
		}
		// Its detail names values of a row.
		return fmt.Errorf("PostgreSQL refuses it: %s (%s)", said.Message, said.Code)
	}
	return err
}

// insert is for fenced. What is not as this process left it divides by zero, which undoes all of it.
const insert = `
	w AS (INSERT INTO writers (identity, role, last_sequence)
		SELECT u.* FROM fence, unnest($3::text[], $4::text[], $5::bigint[]) AS u (identity, role, sequence)
		ON CONFLICT (identity) DO UPDATE SET last_sequence = excluded.last_sequence RETURNING id, identity),
	x AS (SELECT 1 / (count(*) = 0)::int AS free FROM fence, writers w, unnest($3::text[], $41::bigint[]) AS u (identity, sequence)
		WHERE w.identity = u.identity AND w.last_sequence >= u.sequence),
	e AS (INSERT INTO entries (idx, writer, sequence, kind, tier, status, time, logged_at, request_id, operation_id, tool, body_commitment, leaf, pruned_by)
		SELECT u.idx, w.id, u.sequence, u.kind, u.tier, u.status, u.time, u.logged_at, u.request_id, u.operation_id, u.tool, u.body_commitment, u.leaf, u.pruned_by
		FROM unnest($6::bigint[], $7::text[], $8::bigint[], $9::integer[], $10::integer[], $11::integer[], $12::bigint[], $13::bigint[],
			$14::text[], $15::text[], $16::text[], $17::bytea[], $18::bytea[], $29::bigint[])
			AS u (idx, writer, sequence, kind, tier, status, time, logged_at, request_id, operation_id, tool, body_commitment, leaf, pruned_by)
		JOIN w ON w.identity = u.writer RETURNING idx),
	b AS (INSERT INTO bodies (idx, salt, session, principal, body, channel, words)
		SELECT u.idx, u.salt, u.session, u.principal, u.body, u.channel, array_to_tsvector(string_to_array(u.words, ' '))
		FROM fence, unnest($6::bigint[], $19::bytea[], $20::text[], $21::text[], $22::bytea[], $27::integer[], $28::text[])
			AS u (idx, salt, session, principal, body, channel, words) WHERE length(u.salt) > 0),
	h AS (INSERT INTO tree (chunk, hashes)
		SELECT u.chunk, u.hashes FROM fence, unnest($23::bigint[], $30::integer[], $24::bytea[]) AS u (chunk, has, hashes) WHERE u.has = 0),
	hg AS (UPDATE tree t SET hashes = t.hashes || substr(u.hashes, 1 / (length(t.hashes) = u.has)::int)
		FROM fence, unnest($23::bigint[], $30::integer[], $24::bytea[]) AS u (chunk, has, hashes) WHERE u.has > 0 AND t.chunk = u.chunk),
	n AS (INSERT INTO blocks (first, last, logged, logged_last, filter)
		SELECT u.first, u.last, u.logged, u.logged_last, u.filter FROM fence, unnest($31::bigint[], $32::bigint[], $33::bigint[], $34::bigint[], $35::bigint[], $36::bytea[])
			AS u (first, last, was, logged, logged_last, filter) WHERE u.was < 0),
	np AS (INSERT INTO packs (first, data)
		SELECT u.first, u.data FROM fence, unnest($31::bigint[], $33::bigint[], $37::bytea[]) AS u (first, was, data) WHERE u.was < 0),
	g AS (UPDATE blocks b SET last = u.last / (b.last = u.was)::int, logged_last = u.logged_last, filter = u.filter
		FROM fence, unnest($31::bigint[], $32::bigint[], $33::bigint[], $35::bigint[], $36::bytea[])
			AS u (first, last, was, logged_last, filter) WHERE u.was >= 0 AND b.first = u.first),
	gp AS (UPDATE packs p SET data = u.data FROM fence, unnest($31::bigint[], $33::bigint[], $37::bytea[]) AS u (first, was, data)
		WHERE u.was >= 0 AND p.first = u.first),
	s AS (INSERT INTO spans (writer, sequence, first)
		SELECT w.id, u.sequence, u.first FROM unnest($38::text[], $39::bigint[], $40::bigint[]) AS u (writer, sequence, first) JOIN w ON w.identity = u.writer),
	c AS (INSERT INTO checkpoints (size, note, tail) SELECT $25::bigint, $26::bytea, true FROM fence),
	t AS (DELETE FROM tail USING fence WHERE size <= $25::bigint),
	d AS (DELETE FROM checkpoints c USING fence WHERE c.size < $25::bigint)
	SELECT (SELECT count(*) FROM fence), (SELECT count(*) FROM e), (SELECT free FROM x)`

func (p *server) add(ctx context.Context, w work) error {
	args, err := columns(w)
	if err != nil {
		return err
	}
	var added, free int
	err = p.fenced(ctx, insert, append(args, blockColumns(w)...), &added, &free)
	if err == nil && added != len(w.rows) {
		err = fmt.Errorf("PostgreSQL added %d of %d records", added, len(w.rows))
	}
	return err
}

// extend is for fenced.
const extend = `t AS (INSERT INTO tail SELECT $3::bigint, $4::bytea, $5::bigint, $6::bytea, $7::bytea FROM fence RETURNING size)
	SELECT count(*) FROM t`

func (p *server) leads() int64 { return p.lease.Epoch() }

func (p *server) extend(ctx context.Context, r tailRow) error {
	return p.fenced(ctx, extend, []any{r.size, r.entries, r.firstHash, r.hashes, r.checkpoint})
}

// columns are the first parameters of insert behind the fence's, those of rows.
func columns(w work) ([]any, error) {
	n := len(w.rows)
	var (
		names, roles                         = make([]string, len(w.last)), make([]string, len(w.last))
		lasts                                = make([]int64, len(w.last))
		indexes, sequences, times, logged    = make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
		writers, requests, operations, tools = make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		sessions, principals                 = make([]string, n), make([]string, n)
		kinds, tiers, statuses, channels     = make([]int32, n), make([]int32, n), make([]int32, n), make([]int32, n)
		texts                                = make([]string, n)
		commitments, leaves, salts, bodies   = make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n)
		pruned                               = make([]*int64, n)
		chunks                               = make([]int64, len(w.tree))
		hashes                               = make([][]byte, len(w.tree))
	)
	for i, l := range w.last {
		names[i], roles[i], lasts[i] = l.writer, l.role, l.sequence
	}
	for i, e := range w.rows {
		r := e.GetRecord()
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
		channels[i], texts[i] = int32(r.GetBody().GetChannel()), strings.Join(words.Of(r.GetBody()), " ")
		// PostgreSQL's text has no NUL. These two are for searching; the record has them as they are.
		sessions[i], principals[i] = withoutNUL(r.GetBody().GetSession()), withoutNUL(r.GetBody().GetPrincipal())
	}
	for i, c := range w.tree {
		chunks[i], hashes[i] = c.number, c.hashes
	}
	return []any{
		names, roles, lasts, indexes, writers, sequences, kinds, tiers, statuses, times, logged, requests, operations, tools, commitments, leaves,
		salts, sessions, principals, bodies, chunks, hashes, w.size, w.checkpoint, channels, texts, pruned,
	}, nil
}

// blockColumns are the parameters of insert that are about chunks, blocks and what sequences are free.
func blockColumns(w work) []any {
	has := make([]int32, len(w.tree))
	for i, c := range w.tree {
		has[i] = int32(c.has)
	}
	b := blockArrays(w.blocks)
	spanWriters, spanSequences, spanFirsts := []string{}, []int64{}, []int64{}
	for _, block := range w.blocks {
		for _, s := range block.spans {
			spanWriters, spanSequences, spanFirsts = append(spanWriters, s.writer), append(spanSequences, s.sequence), append(spanFirsts, block.first)
		}
	}
	firsts := make([]int64, len(w.last))
	for i, l := range w.last {
		firsts[i] = l.first
	}
	return []any{has, b.first, b.last, b.was, b.logged, b.loggedLast, b.filter, b.data, spanWriters, spanSequences, spanFirsts, firsts}
}

// arrays are blocks as unnest takes them.
type arrays struct {
	first, last, was, logged, loggedLast []int64
	filter, data                         [][]byte
}

func blockArrays(blocks []block) arrays {
	a := arrays{[]int64{}, []int64{}, []int64{}, []int64{}, []int64{}, [][]byte{}, [][]byte{}}
	for _, b := range blocks {
		a.first, a.last, a.was = append(a.first, b.first), append(a.last, b.last), append(a.was, b.was)
		a.logged, a.loggedLast = append(a.logged, b.logged), append(a.loggedLast, b.loggedLast)
		a.filter, a.data = append(a.filter, b.filter), append(a.data, b.data)
	}
	return a
}

func withoutNUL(s string) string { return strings.ReplaceAll(s, "\x00", "") }

// remove is for fenced.
const remove = `
	b AS (DELETE FROM bodies b USING fence WHERE b.idx = ANY($3)),
	e AS (UPDATE entries e SET pruned_by = $4 FROM fence WHERE e.idx = ANY($3)),
	g AS (UPDATE blocks b SET filter = u.filter FROM fence, unnest($5::bigint[], $6::bytea[]) AS u (first, filter) WHERE b.first = u.first),
	gp AS (UPDATE packs p SET data = u.data FROM fence, unnest($5::bigint[], $7::bytea[]) AS u (first, data) WHERE p.first = u.first)
	SELECT count(*) FROM fence`

func (p *server) drop(ctx context.Context, by int64, entries []int64, blocks []block) error {
	b := blockArrays(blocks)
	return p.fenced(ctx, remove, []any{append([]int64{}, entries...), by, b.first, b.filter, b.data})
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
	// One that was broken off left an index beside, which may hold the words, and takes room for good.
	rows, err := alone.Query(ctx, `SELECT 'DROP INDEX CONCURRENTLY IF EXISTS ' || indexrelid::regclass FROM pg_index
		WHERE indrelid = 'bodies'::regclass AND NOT indisvalid AND indexrelid::regclass::text LIKE 'bodies\_words\_cc%'`)
	if err != nil {
		return false, err
	}
	left, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return false, err
	}
	for _, step := range slices.Concat([]string{`VACUUM bodies`, `VACUUM packs`}, left, []string{`REINDEX INDEX CONCURRENTLY bodies_words`}) {
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
