package store

import (
	"context"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/postgres"
)

//go:embed migrations/postgres/*.sql
var postgresFiles embed.FS

var (
	// ErrFollows means that another vault leads, or may.
	ErrFollows = postgres.ErrFollows
	// ErrClosed means that the state was moved to another database.
	ErrClosed = errors.New("this database is not to be used")
	// ErrUnknown means that a commit was sent and its answer did not come: it may hold.
	ErrUnknown = errors.New("whether it was committed is not known")
)

// Standby is a database on a PostgreSQL server that several vaults share, of which one leads and the others stand by. A vault that
// stands by reads nothing of it: what it would know would be old when it leads.
type Standby struct {
	db     *postgres.Database
	lease  *postgres.Lease
	dir    string
	schema fs.FS
}

// firstSchema has what a lead needs.
const firstSchema = 1

// OpenPostgres connects to the server, and gives an empty database its first tables. The key of the seals is in the state folder, and is one
// for all vaults of a database.
func OpenPostgres(ctx context.Context, s postgres.Settings, stateDir string, logger *slog.Logger) (*Standby, error) {
	schema := database.Embedded(postgresFiles, "migrations/postgres")
	db, err := postgres.Open(ctx, s, "vault", logger)
	if err != nil {
		return nil, err
	}
	if err := db.Migrate(ctx, schema, firstSchema); err != nil {
		db.Pool.Close()
		return nil, fmt.Errorf("the vault's database: %w", err)
	}
	return &Standby{db, db.Lease(), stateDir, schema}, nil
}

// Lead takes the lead, brings the schema up to date, and returns the store that goes with it, whose Close closes the standby too.
// ErrFollows: another vault leads. ErrClosed: none may.
func (s *Standby) Lead(ctx context.Context) (*Store, error) {
	closed, err := s.lease.Lead(ctx)
	if err == nil && closed != "" {
		err = fmt.Errorf("%w: %s", ErrClosed, closed)
	}
	if err != nil {
		return nil, err
	}
	e := &server{Database: s.db, lease: s.lease, dir: s.dir, lost: make(chan struct{})}
	// To read every row, and to migrate, may take longer than the server waits for a word.
	opening, opened := context.WithCancel(ctx)
	held := make(chan error, 1)
	go func() { held <- e.hold(opening) }()
	err = e.openSeals(ctx, func(ctx context.Context) error { return s.db.Migrate(ctx, s.schema, database.Newest) })
	opened()
	if err = errors.Join(err, <-held); err != nil {
		s.lease.Leave()
		return nil, fmt.Errorf("the vault's database: %w", err)
	}
	st := &Store{engine: e}
	if err := st.distrust(ctx); err != nil {
		s.lease.Leave()
		return nil, err
	}
	return st, nil
}

// Close gives the lead up, where there is one, and disconnects.
func (s *Standby) Close() error {
	s.lease.Leave()
	s.db.Pool.Close()
	return nil
}

// server is the engine of the vault that leads. Each transaction holds the row of sequencer, so that they follow one another, as on
// SQLite, and none is of a vault that lost its lead.
type server struct {
	*postgres.Database
	lease *postgres.Lease
	dir   string
	key   database.SealKey
	// found is what damage returns.
	found []string
	// lost is closed when this process may not know what the database holds.
	lost chan struct{}
	once sync.Once
}

func (p *server) close() error {
	p.lease.Leave()
	p.Pool.Close()
	return nil
}

func (p *server) probe(ctx context.Context) error { return p.Probe(ctx) }

// holdEvery is how often the server is told that this process is there; well under what it waits for.
const holdEvery = 500 * time.Millisecond

// hold keeps the lead until it is lost, or ctx ends.
func (p *server) hold(ctx context.Context) error {
	tick := time.NewTicker(holdEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.lost:
			return fmt.Errorf("%w: a transaction was refused, or its outcome is unknown", ErrFollows)
		case <-tick.C:
		}
		// A word that was begun is said: one that is broken off would cost the lead.
		if err := p.lease.Hold(context.WithoutCancel(ctx)); err != nil && ctx.Err() == nil {
			return fmt.Errorf("%w: %w", ErrFollows, err)
		}
	}
}

func (p *server) lasts() bool { return p.lease.Lasts() }

// give ends the lead of a process that may not know what the database holds.
func (p *server) give() { p.once.Do(func() { close(p.lost) }) }

// unavailable is what a caller is told whose call the database did not carry out, or may not have.
func unavailable(err error) error {
	var said *pgconn.PgError
	if err == nil || errors.As(err, &said) && !strings.HasPrefix(said.Code, "08") && !strings.HasPrefix(said.Code, "57") {
		return err // the server's word on the statement itself
	}
	sentence := "the vault's database does not answer; try again"
	if errors.Is(err, ErrFollows) {
		sentence = "this vault leads no more, and another one takes over; try again"
	}
	return fault.New(callv1.Code_CODE_UNAVAILABLE, sentence, fault.WithRetry(time.Second), fault.WithCause(err))
}

func (p *server) transact(ctx context.Context, f func(writer) error) error {
	ctx, cancel := context.WithTimeout(ctx, postgres.AnswerTime)
	defer cancel()
	return p.within(ctx, f)
}

// within runs f in a transaction of the epoch that this process gave itself.
func (p *server) within(ctx context.Context, f func(writer) error) error {
	tx, err := p.Pool.Begin(ctx)
	if err != nil {
		return unavailable(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // after Commit it does nothing
	var epoch int64
	err = tx.QueryRow(ctx, `SELECT epoch FROM sequencer WHERE `+postgres.Fence()+` AND closed = '' FOR UPDATE`, p.lease.Epoch()).Scan(&epoch)
	if errors.Is(err, pgx.ErrNoRows) {
		p.give()
		err = ErrFollows
	}
	if err != nil {
		return unavailable(err)
	}
	w := &sealing{server: p, tx: tx, changed: map[*table]*database.Totals{}}
	if err := f(w); err != nil {
		return err
	}
	if err := w.total(ctx); err != nil {
		return unavailable(err)
	}
	if err := ctx.Err(); err != nil {
		return unavailable(err)
	}
	// A commit that is cut off is one of which nobody knows whether it holds, and the end of the lead: it has its own time, whatever its caller's
	// is and however long the others held it up.
	committing := context.WithoutCancel(ctx)
	if _, bounded := ctx.Deadline(); bounded {
		var cancel context.CancelFunc
		committing, cancel = context.WithTimeout(committing, postgres.AnswerTime)
		defer cancel()
	}
	if err := tx.Commit(committing); err != nil {
		p.give() // whether it is there, the next one to lead reads
		return unavailable(fmt.Errorf("%w: %w", ErrUnknown, err))
	}
	return nil
}

func (p *server) find(ctx context.Context, t *table, rest string, args []any, row func(scanner) (bool, error)) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, postgres.AnswerTime)
		defer cancel()
	}
	return p.each(ctx, p.Pool, t, rest, args, row)
}

// queryer is the pool or a transaction.
type queryer interface {
	Query(ctx context.Context, text string, args ...any) (pgx.Rows, error)
}

func (p *server) each(ctx context.Context, on queryer, t *table, rest string, args []any, row func(scanner) (bool, error)) error {
	rows, err := on.Query(ctx, postgres.Dollars("SELECT "+t.list()+" FROM "+t.name+" "+rest), args...)
	if err != nil {
		return unavailable(err)
	}
	defer rows.Close()
	for rows.Next() {
		more, err := row(func(into ...any) (bool, error) {
			sound, all := true, into
			if t.sealed {
				values, err := rows.Values()
				if err != nil {
					return false, err
				}
				sound, all = p.sound(t, values), append(all, nil)
			}
			err := rows.Scan(all...)
			for _, v := range into {
				if b, ok := v.(*[]byte); ok && len(*b) == 0 {
					*b = nil // as SQLite has it
				}
			}
			return sound, err
		})
		if err != nil || !more {
			return err
		}
	}
	return unavailable(rows.Err())
}

// list is a table's columns, with the seal where it has one.
func (t *table) list() string {
	list := strings.Join(t.columns, ", ")
	if t.sealed {
		list += ", seal"
	}
	return list
}

// sealing is a writer that seals what it writes.
type sealing struct {
	*server
	tx pgx.Tx
	// changed is by how much the totals of tables change.
	changed map[*table]*database.Totals
}

func (s *sealing) find(ctx context.Context, t *table, rest string, args []any, row func(scanner) (bool, error)) error {
	return s.each(ctx, s.tx, t, rest, args, row)
}

// change counts a row that was written with that seal, in place of one with the other; nil: none.
func (s *sealing) change(t *table, rows int64, seal, before []byte) {
	c := s.changed[t]
	if c == nil {
		c = &database.Totals{Table: t.name}
		s.changed[t] = c
	}
	c.Rows += rows
	c.Revision++
	c.Sum.Add(seal, false)
	c.Sum.Add(before, true)
}

func (s *sealing) exec(ctx context.Context, text string, args ...any) (int64, error) {
	done, err := s.tx.Exec(ctx, postgres.Dollars(text), args...)
	return done.RowsAffected(), unavailable(err)
}

func (s *sealing) insert(ctx context.Context, t *table, values ...any) (bool, error) {
	values, seal, err := s.seal(t, values)
	if err != nil {
		return false, err
	}
	if t.sealed {
		values = append(values, seal)
	}
	n, err := s.exec(ctx, "INSERT INTO "+t.name+" ("+t.list()+") VALUES ("+marks(len(values))+") ON CONFLICT DO NOTHING", values...)
	if err == nil && n > 0 && t.sealed {
		s.change(t, 1, seal, nil)
	}
	return n > 0, err
}

func (s *sealing) update(ctx context.Context, t *table, set []column, where string, args ...any) (int64, error) {
	names, values := make([]string, len(set)), make([]any, len(set))
	for i, c := range set {
		names[i], values[i] = c.name+" = ?", text(c.value)
	}
	if !t.sealed {
		return s.exec(ctx, "UPDATE "+t.name+" SET "+strings.Join(names, ", ")+" WHERE "+where, append(values, args...)...)
	}
	rows, err := s.rows(ctx, "SELECT "+t.list()+" FROM "+t.name+" WHERE "+where+" FOR UPDATE", args...)
	if err != nil {
		return 0, err
	}
	for _, row := range rows {
		before, _ := row[len(t.columns)].([]byte)
		sound, key := s.sound(t, row), make([]any, len(t.keys))
		for i, name := range t.keys {
			key[i] = row[slices.Index(t.columns, name)]
		}
		for i, c := range set {
			row[slices.Index(t.columns, c.name)] = values[i]
		}
		_, seal, err := s.seal(t, row[:len(t.columns)])
		if err != nil {
			return 0, err
		}
		if !sound {
			seal = []byte{} // damage is found, not washed away
		}
		if _, err := s.exec(ctx, "UPDATE "+t.name+" SET "+strings.Join(names, ", ")+", seal = ? WHERE "+strings.Join(t.keys, " = ? AND ")+" = ?",
			slices.Concat(values, []any{seal}, key)...); err != nil {
			return 0, err
		}
		s.change(t, 0, seal, before)
	}
	return int64(len(rows)), nil
}

func (s *sealing) remove(ctx context.Context, t *table, where string, args ...any) error {
	if !t.sealed {
		_, err := s.exec(ctx, "DELETE FROM "+t.name+" WHERE "+where, args...)
		return err
	}
	rows, err := s.rows(ctx, "DELETE FROM "+t.name+" WHERE "+where+" RETURNING seal", args...)
	for _, row := range rows {
		before, _ := row[0].([]byte)
		s.change(t, -1, nil, before)
	}
	return err
}

// rows reads all rows of an answer.
func (s *sealing) rows(ctx context.Context, text string, args ...any) ([][]any, error) {
	rows, err := s.tx.Query(ctx, postgres.Dollars(text), args...)
	if err != nil {
		return nil, unavailable(err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]any, error) { return row.Values() })
	return out, unavailable(err)
}

// text is a value that PostgreSQL takes: its text is UTF-8, and has no NUL.
func text(v any) any {
	if s, ok := v.(string); ok {
		return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\uFFFD"), "\uFFFD")
	}
	return v
}

// sealed is a value as seals are over it, the same as on SQLite.
func sealed(v any) (driver.Value, error) {
	v, err := driver.DefaultParameterConverter.ConvertValue(text(v))
	if b, ok := v.(bool); ok {
		if v = int64(0); b {
			v = int64(1)
		}
	}
	return v, err
}
