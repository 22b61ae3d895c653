package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/proto"

	"durward.internal/services/audit/internal/postgres"
	"durward.internal/services/platform/database"
)

//go:embed migrations/postgres/*.sql
var postgresMigrations embed.FS

const (
	// leaseTime is how long the server waits for a word of the leading process before it ends its session, and with it its lead.
	leaseTime = 3 * time.Second
	// answerTime bounds a statement of the log's own; what became of one that took longer is unknown until the next Lead.
	answerTime = 1500 * time.Millisecond
	// The advisory locks, which are the database's: "durward" and a number.
	leadLock, schemaLock = 0x6475727761726401, 0x6475727761726402
)

// server is the engine of several processes with a PostgreSQL server.
type server struct {
	*postgres.Database
	// These belong to the goroutine that leads. lease holds the lock, or waits for it; nil: not connected.
	lease *pgx.Conn
	// epoch is the one that this process gave itself; 0: it does not lead.
	epoch int64
	// filling is the one reason for which a closed log is written all the same.
	filling string
}

// OpenPostgres opens the database of a PostgreSQL server, and brings its schema up to date.
func OpenPostgres(ctx context.Context, s postgres.Settings, logger *slog.Logger) (*Store, error) {
	db, err := postgres.Open(ctx, s, logger)
	if err != nil {
		return nil, err
	}
	p := &server{Database: db}
	p.Lease.RuntimeParams["idle_session_timeout"] = strconv.FormatInt(leaseTime.Milliseconds(), 10)
	if err := p.migrate(ctx); err != nil {
		p.Pool.Close()
		return nil, fmt.Errorf("audit database: %w", err)
	}
	return &Store{p}, nil
}

// migrate lets one process at a time migrate, for as long as it takes.
func (p *server) migrate(ctx context.Context) error {
	schema, err := fs.Sub(postgresMigrations, "migrations/postgres")
	if err != nil {
		return err
	}
	cfg := p.Lease.Copy()
	for _, limit := range []string{"statement_timeout", "lock_timeout", "idle_session_timeout"} {
		cfg.RuntimeParams[limit] = "0"
	}
	alone, err := pgx.ConnectConfig(ctx, cfg.Copy())
	if err != nil {
		return err
	}
	defer alone.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the lock goes with the session
	if _, err := alone.Exec(ctx, `SELECT pg_advisory_lock($1)`, int64(schemaLock)); err != nil {
		return err
	}
	db := stdlib.OpenDB(*cfg)
	return errors.Join(database.Migrate(ctx, goose.DialectPostgres, db, schema, "audit"), db.Close())
}

func (p *server) Close() error {
	p.leave()
	p.Pool.Close()
	return nil
}

// leave gives the lead up.
func (p *server) leave() {
	if p.lease != nil {
		ctx, cancel := context.WithTimeout(context.Background(), answerTime)
		defer cancel()
		_ = p.lease.Close(ctx) // the server ends the session in any case
	}
	p.lease, p.epoch = nil, 0
}

func (p *server) Lead(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	err := p.lead(ctx)
	if err != nil && !errors.Is(err, ErrFollows) {
		p.leave()
	}
	return err
}

func (p *server) lead(ctx context.Context) (err error) {
	held := p.epoch != 0
	p.epoch = 0
	if p.lease == nil {
		if p.lease, err = pgx.ConnectConfig(ctx, p.Lease.Copy()); err != nil {
			return fmt.Errorf("PostgreSQL cannot be reached: %w", err)
		}
		held = false
	}
	if !held {
		var locked bool
		if err := p.lease.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, int64(leadLock)).Scan(&locked); err != nil {
			return err
		}
		if !locked {
			return ErrFollows
		}
	}
	// This waits for a Commit that is under way, of whichever process: each holds the row. After it none of an earlier epoch does
	// anything, and everything that was committed before it is where this commit is, on the synchronous standby too.
	var closed string
	if err := p.lease.QueryRow(ctx, `UPDATE sequencer SET epoch = epoch + 1 RETURNING epoch, closed`).Scan(&p.epoch, &closed); err != nil {
		return err
	}
	return refuseClosed(closed, p.filling)
}

func (p *server) Closed(ctx context.Context) (closed string, err error) {
	err = p.Pool.QueryRow(ctx, `SELECT closed FROM sequencer`).Scan(&closed)
	return closed, err
}

func (p *server) SetClosed(ctx context.Context, why string) error {
	done, err := p.Pool.Exec(ctx, `UPDATE sequencer SET closed = $1 WHERE epoch = $2`, why, p.epoch)
	if err == nil && done.RowsAffected() == 0 {
		err = ErrFollows
	}
	return err
}

func (p *server) Fill(why string) { p.filling = why }

// Hold is a word to the server in the session that has the lock, which asks whether this process still leads.
func (p *server) Hold(ctx context.Context) error {
	if p.lease == nil || p.epoch == 0 {
		return ErrFollows
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var epoch int64
	if err := p.lease.QueryRow(ctx, `SELECT epoch FROM sequencer`).Scan(&epoch); err != nil {
		p.leave()
		return fmt.Errorf("the session that holds the lead ended: %w", err)
	}
	if epoch != p.epoch {
		return ErrFollows
	}
	return nil
}

// add is one statement, and so one exchange: a process that is stopped has sent all of it, and then the server does all of it, or
// none. It adds nothing, and returns 0, when fence says so.
const add = `WITH fence AS MATERIALIZED (SELECT epoch FROM sequencer WHERE FENCE AND closed = $28 FOR UPDATE),
	w AS (INSERT INTO writers (identity, role, last_sequence)
		SELECT u.* FROM fence, unnest($2::text[], $3::text[], $4::bigint[]) AS u (identity, role, sequence)
		ON CONFLICT (identity) DO UPDATE SET last_sequence = excluded.last_sequence RETURNING id, identity),
	e AS (INSERT INTO entries (idx, writer, sequence, kind, tier, status, time, logged_at, request_id, operation_id, tool, body_commitment, leaf)
		SELECT u.idx, w.id, u.sequence, u.kind, u.tier, u.status, u.time, u.logged_at, u.request_id, u.operation_id, u.tool, u.body_commitment, u.leaf
		FROM unnest($5::bigint[], $6::text[], $7::bigint[], $8::integer[], $9::integer[], $10::integer[], $11::bigint[], $12::bigint[],
			$13::text[], $14::text[], $15::text[], $16::bytea[], $17::bytea[])
			AS u (idx, writer, sequence, kind, tier, status, time, logged_at, request_id, operation_id, tool, body_commitment, leaf)
		JOIN w ON w.identity = u.writer RETURNING idx),
	b AS (INSERT INTO bodies (idx, salt, session, principal, body, channel, words)
		SELECT u.idx, u.salt, u.session, u.principal, u.body, u.channel, array_to_tsvector(string_to_array(u.words, ' '))
		FROM fence, unnest($5::bigint[], $18::bytea[], $19::text[], $20::text[], $21::bytea[], $26::integer[], $27::text[])
			AS u (idx, salt, session, principal, body, channel, words)),
	h AS (INSERT INTO hashes (idx, hash)
		SELECT $22::bigint + u.n - 1, u.hash FROM fence, unnest($23::bytea[]) WITH ORDINALITY AS u (hash, n)),
	c AS (INSERT INTO checkpoints (size, note) SELECT $24::bigint, $25::bytea FROM fence)
	SELECT count(*) FROM e`

func (p *server) Commit(ctx context.Context, batch Batch) error {
	if p.epoch == 0 {
		return ErrFollows
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	args, err := columns(batch)
	if err != nil {
		return err
	}
	var added int
	err = p.Pool.QueryRow(ctx, strings.Replace(add, "FENCE", fence(), 1), append(append([]any{p.epoch}, args...), p.filling)...).Scan(&added)
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
		commitments[i], leaves[i], salts[i], bodies[i] = e.GetBodyCommitment(), e.GetLeafHash(), e.GetSalt(), append([]byte{}, body...)
		channels[i], words[i] = int32(r.GetBody().GetChannel()), strings.Join(wordsOf(r), " ")
		// PostgreSQL's text has no NUL. These two are for searching; the record has them as they are.
		sessions[i], principals[i] = withoutNUL(r.GetBody().GetSession()), withoutNUL(r.GetBody().GetPrincipal())
	}
	for i := range batch.Hashes {
		hashes[i] = batch.Hashes[i][:]
	}
	return []any{
		names, roles, lasts, indexes, writers, sequences, kinds, tiers, statuses, times, logged, requests, operations, tools, commitments, leaves,
		salts, sessions, principals, bodies, batch.FirstHash, hashes, int64(batch.Entries[n-1].GetIndex()) + 1, batch.Checkpoint, channels, words,
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
		err = errors.Join(err, fmt.Errorf("hash %d of the tree is missing", index))
	}
	return out, err
}

func (p *server) each(ctx context.Context, query string, args []any, row func(scan func(...any) error) (bool, error)) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, answerTime)
		defer cancel()
	}
	rows, err := p.Pool.Query(ctx, dollars(query), args...)
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

// dollars numbers a query's parameters. No text of ours holds a question mark otherwise.
func dollars(query string) string {
	var out strings.Builder
	for n := 1; ; n++ {
		before, after, found := strings.Cut(query, "?")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		out.WriteString("$" + strconv.Itoa(n))
		query = after
	}
}

// Probe looks whether the server takes writes: Hold and the heartbeat of the lead write nothing.
func (p *server) Probe(ctx context.Context) error {
	var readOnly string
	if err := p.Pool.QueryRow(ctx, `SHOW transaction_read_only`).Scan(&readOnly); err != nil {
		return fmt.Errorf("ask the database: %w", err)
	}
	if readOnly != "off" {
		return errors.New("the database takes no writes: another server leads its cluster")
	}
	return nil
}

func (p *server) InPlace() error { return nil }

// text asks for lexemes as they are: letters and digits have no meaning in a tsquery, within its quotes.
func (p *server) text(words []string) (condition string, match any) {
	return "b.words @@ ?::text::tsquery", "'" + strings.Join(words, "' & '") + "'"
}

func (p *server) plan(Query) (from, index, order string) { return selectEntries, "e.idx", "e.idx" }

func (p *server) Bytes() uint64 {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	var size int64
	if p.Pool.QueryRow(ctx, `SELECT pg_database_size(current_database())`).Scan(&size) != nil {
		return 0
	}
	return uint64(max(size, 0))
}

func (p *server) Folder() string { return "" }
