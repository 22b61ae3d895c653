package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/database"
)

const (
	// LeaseTime is how long the server waits for a word of the leading process before it ends its session, and with it its lead.
	LeaseTime = 3 * time.Second
	// AnswerTime bounds a statement; what became of one that took longer is unknown until the next Lead.
	AnswerTime = 1500 * time.Millisecond
	// The advisory locks, which are the database's: "durward" and a number.
	leadLock, schemaLock = 0x6475727761726401, 0x6475727761726402
)

// ErrFollows means that another process leads.
var ErrFollows = errors.New("another process leads")

// Lease is the lead over a database that several processes share: an advisory lock, in a session of its own, and an epoch. The session
// ends when it is silent for LeaseTime, so that a process that is stopped, or cut off, loses the lock. A process that wakes after it
// lost the lock does not know; therefore every transaction looks, under Fence and with the row locked, whether the row of the table
// sequencer still has the epoch that this process gave itself. The schema has that table: epoch bigint, closed text, one row.
//
// Lead, Hold and Leave are for one goroutine at a time; Epoch and Lasts are for any.
type Lease struct {
	db *Database

	mu   sync.Mutex // around what uses the session
	conn *pgx.Conn  // holds the lock, or waits for it; nil: not connected

	// epoch is the one that this process gave itself; 0: it does not lead.
	epoch atomic.Int64
	// heard is when the last word was sent that the server answered.
	heard atomic.Pointer[time.Time]
}

// Lease returns the lead over the database, which this process does not have yet.
func (d *Database) Lease() *Lease { return &Lease{db: d} }

// Lead takes the lead, and settles what any process wrote before: when it returns, nothing that was under way is committed any more.
// closed is why no process may write; "" for nothing. ErrFollows: another process leads.
func (l *Lease) Lead(ctx context.Context) (closed string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, AnswerTime)
	defer cancel()
	if closed, err = l.lead(ctx); err != nil && !errors.Is(err, ErrFollows) {
		l.leave()
	}
	return closed, err
}

func (l *Lease) lead(ctx context.Context) (closed string, err error) {
	held := l.epoch.Swap(0) != 0
	if l.conn == nil {
		cfg := l.db.session.Copy()
		cfg.RuntimeParams["idle_session_timeout"] = strconv.FormatInt(LeaseTime.Milliseconds(), 10)
		if l.conn, err = pgx.ConnectConfig(ctx, cfg); err != nil {
			return "", fmt.Errorf("PostgreSQL cannot be reached: %w", err)
		}
		held = false
	}
	if !held {
		var locked bool
		if err := l.conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, int64(leadLock)).Scan(&locked); err != nil {
			return "", err
		}
		if !locked {
			return "", ErrFollows
		}
	}
	// This waits for a transaction that is under way, of whichever process: each holds the row. After it none of an earlier epoch does
	// anything, and everything that was committed before it is where this commit is, on the synchronous standby too.
	var epoch int64
	now := time.Now()
	if err := l.conn.QueryRow(ctx, `UPDATE sequencer SET epoch = epoch + 1 RETURNING epoch, closed`).Scan(&epoch, &closed); err != nil {
		return "", err
	}
	l.heard.Store(&now)
	l.epoch.Store(epoch)
	return closed, nil
}

// Hold is a word to the server in the session that has the lock, which asks whether this process still leads. An error says that the
// lead is lost, or may be; nothing is then written before the next Lead.
func (l *Lease) Hold(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil || l.epoch.Load() == 0 {
		return ErrFollows
	}
	ctx, cancel := context.WithTimeout(ctx, AnswerTime)
	defer cancel()
	var epoch int64
	now := time.Now()
	if err := l.conn.QueryRow(ctx, `SELECT epoch FROM sequencer`).Scan(&epoch); err != nil {
		l.leave()
		return fmt.Errorf("the session that holds the lead ended: %w", err)
	}
	if epoch != l.epoch.Load() {
		return ErrFollows
	}
	l.heard.Store(&now)
	return nil
}

// Leave gives the lead up.
func (l *Lease) Leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave()
}

func (l *Lease) leave() {
	if l.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), AnswerTime)
		defer cancel()
		_ = l.conn.Close(ctx) // the server ends the session in any case
	}
	l.conn = nil
	l.epoch.Store(0)
}

// Epoch is the one that this process gave itself; 0: it does not lead.
func (l *Lease) Epoch() int64 { return l.epoch.Load() }

// Lasts reports whether the server cannot have ended the session that holds the lead, so that no other process leads: this one was heard
// less than LeaseTime ago, also where this machine stood still meanwhile.
func (l *Lease) Lasts() bool {
	heard := l.heard.Load()
	return l.epoch.Load() != 0 && heard != nil && clock.Passed(*heard, time.Now()) < LeaseTime
}

// Migrate brings the schema up to that number, as database.Migrate has it: one process at a time, for as long as it takes.
func (d *Database) Migrate(ctx context.Context, migrations fs.FS, schema int64) error {
	alone, err := d.Alone(ctx)
	if err != nil {
		return err
	}
	defer alone.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the lock goes with the session
	if _, err := alone.Exec(ctx, `SELECT pg_advisory_lock($1)`, int64(schemaLock)); err != nil {
		return err
	}
	db := stdlib.OpenDB(*alone.Config())
	return errors.Join(database.Migrate(ctx, goose.DialectPostgres, db, migrations, d.service, schema), db.Close())
}

// Known returns database.ErrNewerSchema where another program migrated the database beyond these migrations.
func (d *Database) Known(ctx context.Context, migrations fs.FS) error {
	ctx, cancel := context.WithTimeout(ctx, AnswerTime)
	defer cancel()
	db := stdlib.OpenDBFromPool(d.Pool)
	return errors.Join(database.Known(ctx, goose.DialectPostgres, db, migrations, d.service), db.Close())
}

// Alone connects for what may take long: nothing limits its time. The caller closes it.
func (d *Database) Alone(ctx context.Context) (*pgx.Conn, error) {
	cfg := d.session.Copy()
	for _, limit := range []string{"statement_timeout", "lock_timeout", "idle_session_timeout", "idle_in_transaction_session_timeout"} {
		cfg.RuntimeParams[limit] = "0"
	}
	return pgx.ConnectConfig(ctx, cfg)
}

// Sole is Alone in a session that keeps every process from the lead until the caller closes it, and leads not itself: the database stays as it
// is. ErrFollows: a process leads.
func (d *Database) Sole(ctx context.Context) (*pgx.Conn, error) {
	alone, err := d.Alone(ctx)
	if err != nil {
		return nil, err
	}
	var locked bool
	if err = alone.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, int64(leadLock)).Scan(&locked); err == nil && locked {
		return alone, nil
	}
	return nil, errors.Join(cmp.Or(err, ErrFollows), alone.Close(ctx))
}

// Probe looks whether the server takes writes: Hold and the heartbeat of the lead write nothing.
func (d *Database) Probe(ctx context.Context) error {
	var readOnly string
	if err := d.Pool.QueryRow(ctx, `SHOW transaction_read_only`).Scan(&readOnly); err != nil {
		return fmt.Errorf("ask the database: %w", err)
	}
	if readOnly != "off" {
		return errors.New("the database takes no writes: another server leads its cluster")
	}
	return nil
}

// Bytes is how large the database is; 0 where the server does not say.
func (d *Database) Bytes() uint64 {
	ctx, cancel := context.WithTimeout(context.Background(), AnswerTime)
	defer cancel()
	var size int64
	if d.Pool.QueryRow(ctx, `SELECT pg_database_size(current_database())`).Scan(&size) != nil {
		return 0
	}
	return uint64(max(size, 0))
}

// Dollars numbers a query's parameters. No text that is given to it may hold a question mark otherwise.
func Dollars(query string) string {
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
