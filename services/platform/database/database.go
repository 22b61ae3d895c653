// Package database opens a service's embedded database: SQLite, migrated to the schema that the program knows. Vault,
// executor and audit link it, each with a file of its own. It trusts the file's owner; a file that a newer program wrote
// is refused, because acting on half-understood state is worse than not starting.
package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/reserve"
)

// ErrNewerSchema is wrapped by Open's error for a file that a newer program wrote.
var ErrNewerSchema = errors.New("the state was written by a newer version")

// readers bounds OpenReader's connections.
const readers = 4

// Config says which database.
type Config struct {
	// Path is the database file, absolute; it and its folder are made if need be.
	Path string
	// StateDir is the process's state folder; Path must resolve under it, $HOME or the temporary folder (SEC-V4).
	StateDir string
	// Migrations holds goose's SQL migrations, 00001_name.sql and so on, at its root.
	Migrations fs.FS
	// Service is named in errors.
	Service string
	// Proved says that the database's owner proves what is in it, and that it may be large: Open looks at its length alone, and does
	// not read all of it (2.5 s for each GB).
	Proved bool
	// Wiped has SQLite overwrite what is deleted, in pages that are freed too. What the write-ahead log holds of it stays there until that
	// begins anew.
	Wiped bool
	// Alone says that whoever opens it reads it on no second connection, and no other process reads it meanwhile: it is locked until it is
	// closed, and needs no memory shared between them, which is a file of 32 KiB that a full disk may have no room for.
	Alone bool
	// Damaged has OpenReader open a file that is shorter than it says, too.
	Damaged bool
}

// Embedded are the migrations in a folder of a program's own files. A test's first tables are embedded too: Go's cache takes those for an input of
// the test that is the same in each clone.
func Embedded(files embed.FS, folder string) fs.FS {
	sub, err := fs.Sub(files, folder)
	if err != nil {
		panic(err) // the folder's name is none
	}
	return sub
}

// Open opens the database for reading and writing, making and migrating it as needed, and checks it first: ErrDamaged. Every commit is on disk when it
// returns (WAL, synchronous=FULL). There is one connection, so writers queue in the program and never meet a lock; a
// transaction takes the write lock when it begins. The caller closes it.
func Open(ctx context.Context, cfg Config) (*sql.DB, error) {
	db, err := open(ctx, cfg, &sqlite.Driver{})
	if err != nil {
		return nil, err
	}
	if err := Migrate(ctx, goose.DialectSQLite3, db, cfg.Migrations, cfg.Service, Newest); err != nil {
		return nil, errors.Join(fmt.Errorf("%s database %s: %w", cfg.Service, cfg.Path, unopened(err)), db.Close())
	}
	return db, nil
}

// open opens and checks it.
func open(ctx context.Context, cfg Config, by *sqlite.Driver) (*sql.DB, error) {
	path, err := prepare(cfg)
	if err != nil {
		return nil, fmt.Errorf("%s database: %w", cfg.Service, err)
	}
	pragmas := []string{"busy_timeout(5000)", synchronous(), "foreign_keys(1)"}
	if cfg.Alone {
		pragmas = append(pragmas, "locking_mode(EXCLUSIVE)")
	}
	if cfg.Wiped {
		pragmas = append(pragmas, "secure_delete(1)")
	}
	// The driver sets the journal's mode after the pragmas: that of locking has to stand before.
	db := sql.OpenDB(connector{by, dsn(path, url.Values{"_txlock": {"immediate"}, "_pragma": pragmas, "_journal_mode": {"WAL"}})})
	db.SetMaxOpenConns(1)
	if !soundnessRequired() {
		return db, nil
	}
	if err := check(ctx, db, path, cfg.Proved); err != nil {
		return nil, errors.Join(fmt.Errorf("%s database %s: %w", cfg.Service, path, unopened(err)), db.Close())
	}
	return db, nil
}

// connector is a driver with what it opens.
type connector struct {
	driver *sqlite.Driver
	dsn    string
}

func (c connector) Connect(context.Context) (driver.Conn, error) { return c.driver.Open(c.dsn) }
func (c connector) Driver() driver.Driver                        { return c.driver }

// Probe writes to a database that Open opened, and changes nothing in it: an error says that it cannot be written now.
func Probe(ctx context.Context, db *sql.DB) error {
	if _, err := db.ExecContext(ctx, `PRAGMA user_version = 0`); err != nil { // nothing here reads that number
		return fmt.Errorf("write to the database: %w", err)
	}
	return nil
}

// OpenReader opens a database that Open has made for reading alone, on connections that do not wait for the writer. The
// caller closes it.
func OpenReader(ctx context.Context, cfg Config) (*sql.DB, error) {
	path, err := config.StatePath(cfg.Path, cfg.StateDir)
	if err != nil {
		return nil, fmt.Errorf("%s database: %w", cfg.Service, err)
	}
	pragmas := []string{"busy_timeout(5000)", "query_only(1)"}
	if cfg.Damaged {
		pragmas = append(pragmas, "writable_schema(1)") // SQLite refuses such a file otherwise
	}
	db, err := sql.Open("sqlite", dsn(path, url.Values{"mode": {"ro"}, "_pragma": pragmas}))
	if err != nil {
		return nil, fmt.Errorf("%s database: %w", cfg.Service, err)
	}
	db.SetMaxOpenConns(readers)
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%s database %s: %w", cfg.Service, path, err), db.Close())
	}
	return db, nil
}

// Copy writes a copy of a database as it is at one moment, whoever has it open and goes on writing to it. There is nothing in it of what
// was deleted. The file must not exist. Nothing is written where the disk has no room for all of it, since whoever goes on writing may share
// that disk.
func Copy(ctx context.Context, from, to string) (err error) {
	db, err := sql.Open("sqlite", dsn(from, url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(5000)"}}))
	if err != nil {
		return err
	}
	defer func() { err = damaged(errors.Join(err, db.Close())) }()
	if err := roomFor(ctx, db, filepath.Dir(to)); err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // #nosec G304 -- the caller's own
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, `VACUUM INTO ?`, to)
	return err
}

// roomFor returns an error unless the folder's disk has room for a database once more.
func roomFor(ctx context.Context, db *sql.DB, folder string) error {
	var bytes uint64
	err := db.QueryRowContext(ctx, `SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size`).Scan(&bytes)
	if err != nil {
		return err
	}
	left, err := reserve.Free(folder)
	if err == nil && left < bytes {
		err = fmt.Errorf("a copy of %d bytes, and the disk has %d left: %w", bytes, left, syscall.ENOSPC)
	}
	return err
}

// EmptyLog has the write-ahead log of a database that Open opened begin anew, unless somebody reads what it holds, as a backup does for minutes:
// the connection is the writer's, and waits for no reader.
func EmptyLog(ctx context.Context, db *sql.DB) (emptied bool, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	var patience, busy, frames, moved int
	if err := conn.QueryRowContext(ctx, `PRAGMA busy_timeout`).Scan(&patience); err != nil {
		return false, err
	}
	if _, err := conn.ExecContext(ctx, `PRAGMA busy_timeout = 0`); err != nil {
		return false, err
	}
	err = conn.QueryRowContext(ctx, `PRAGMA wal_checkpoint(TRUNCATE)`).Scan(&busy, &frames, &moved)
	_, again := conn.ExecContext(context.WithoutCancel(ctx), fmt.Sprintf("PRAGMA busy_timeout = %d", patience))
	return busy == 0, errors.Join(err, again)
}

// Number reads one number from a database that no process has open.
func Number(ctx context.Context, path, query string) (n int64, err error) {
	db, err := sql.Open("sqlite", dsn(path, url.Values{"mode": {"rw"}}))
	if err != nil {
		return 0, err
	}
	err = db.QueryRowContext(ctx, query).Scan(&n)
	return n, errors.Join(err, db.Close())
}

// Prepare prepares statements for as long as the database is open; its Close closes them. It is for what every call runs,
// which SQLite would otherwise parse anew each time.
func Prepare(ctx context.Context, db *sql.DB, texts map[**sql.Stmt]string) error {
	for stmt, text := range texts {
		prepared, err := db.PrepareContext(ctx, text)
		if err != nil {
			return fmt.Errorf("prepare a statement: %w", err)
		}
		*stmt = prepared
	}
	return nil
}

// prepare checks the path and makes the file 0600 before SQLite does (its -wal and -shm files take the file's mode).
func prepare(cfg Config) (string, error) {
	path, err := config.StatePath(cfg.Path, cfg.StateDir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", path)
	case info.Mode().Perm() != 0o600:
		err = f.Chmod(0o600)
	}
	return path, errors.Join(err, f.Close())
}

func dsn(path string, options url.Values) string {
	return (&url.URL{Scheme: "file", Path: path, RawQuery: options.Encode()}).String()
}

// Newest is the newest schema that there is, for Migrate.
const Newest = math.MaxInt64

// Migrate brings a database of any engine to the schema of that number; migrations hold goose's SQL at their root. One that has a newer
// schema stays as it is; newer than all of them: ErrNewerSchema.
func Migrate(ctx context.Context, dialect goose.Dialect, db *sql.DB, migrations fs.FS, service string, schema int64) error {
	provider, err := known(ctx, dialect, db, migrations, service)
	if err != nil {
		return err
	}
	if _, err := provider.UpTo(ctx, schema); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// Known returns ErrNewerSchema where the database's schema is newer than all of the migrations, and changes nothing.
func Known(ctx context.Context, dialect goose.Dialect, db *sql.DB, migrations fs.FS, service string) error {
	_, err := known(ctx, dialect, db, migrations, service)
	return err
}

func known(ctx context.Context, dialect goose.Dialect, db *sql.DB, migrations fs.FS, service string) (*goose.Provider, error) {
	options := []goose.ProviderOption{goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger())}
	if dialect == goose.DialectSQLite3 {
		whole, err := wholeFiles(migrations)
		if err != nil {
			return nil, fmt.Errorf("migrations: %w", err)
		}
		options, migrations = append(options, goose.WithGoMigrations(whole...)), nil
	}
	provider, err := goose.NewProvider(dialect, db, migrations, options...)
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	current, newest, err := provider.GetVersions(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the schema's version: %w", err)
	}
	if current > newest {
		return nil, fmt.Errorf("%w of %s: schema %d, and this program knows up to %d", ErrNewerSchema, service, current, newest)
	}
	return provider, nil
}

// wholeFiles are migrations of which SQLite is given all statements at once. To tell one from the next goose reads through buffers of
// 4 MiB, of which it takes a new one every few lines under the race detector: that was half of what tests took.
func wholeFiles(migrations fs.FS) (whole []*goose.Migration, err error) {
	names, err := fs.Glob(migrations, "*.sql")
	for _, name := range names {
		version, numbered := goose.NumericComponent(name)
		text, unread := fs.ReadFile(migrations, name)
		if err := errors.Join(numbered, unread); err != nil {
			return nil, err
		}
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		whole = append(whole, goose.NewGoMigration(version, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, up)
			return err
		}}, nil))
	}
	return whole, err
}

// ErrDamaged is wrapped by Open's error for a file that is cut short or does not agree with itself.
var ErrDamaged = errors.New("the file is damaged. Put back a backup, or move it away to begin without it; then run durward panic and durward resume")

// check reads the database and holds its tables, indexes and length against each other. SQLite itself notices damage only where
// it happens to read, and takes a page that is cut short for one that ends in zeros.
func check(ctx context.Context, db *sql.DB, path string, proved bool) error {
	if !proved {
		var said string
		if err := db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&said); err != nil {
			return err
		}
		if said != "ok" {
			return fmt.Errorf("%w (%s)", ErrDamaged, said)
		}
	}
	// The file's length says something once it holds what the write-ahead log holds. That it cannot be written now, on a full disk,
	// is no damage.
	var busy, waiting, written int
	if db.QueryRowContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)").Scan(&busy, &waiting, &written) != nil || busy != 0 || waiting != written {
		return ctx.Err()
	}
	var pages, size int64
	if err := errors.Join(db.QueryRowContext(ctx, "PRAGMA page_count").Scan(&pages), db.QueryRowContext(ctx, "PRAGMA page_size").Scan(&size)); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err == nil && info.Size() < pages*size {
		return fmt.Errorf("%w (it has %d bytes of %d)", ErrDamaged, info.Size(), pages*size)
	}
	return err
}

// unopened is why a database does not open: what to do where that is known.
func unopened(err error) error {
	if reserve.Full(err) {
		return fmt.Errorf("the disk is full. Make room and start it again; the state is whole, and no step of an upgrade is half done (%w)", err)
	}
	return damaged(err)
}

// damaged is err, as ErrDamaged where SQLite says that the file is no sound database.
func damaged(err error) error {
	if coded(err, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) && !errors.Is(err, ErrDamaged) {
		return fmt.Errorf("%w (%w)", ErrDamaged, err)
	}
	return err
}

// Unsound reports whether an error says that the file is no sound database, or that a page of it cannot be read. A statement of ours that is
// wrong is so because the schema is not what it was.
func Unsound(err error) bool {
	return errors.Is(err, ErrDamaged) || coded(err, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_ERROR)
}

// coded reports whether an error is SQLite's with one of these codes.
func coded(err error, codes ...int) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && slices.Contains(codes, e.Code()&0xff)
}

// Place is where an open database is on the disk. A database whose files are removed or replaced goes on being read and written
// through what is open of it, and all of that is gone when its process ends.
type Place map[string]fs.FileInfo

// Locate returns where the database at path is, which Open has opened.
func Locate(path string) (Place, error) {
	p := Place{}
	for _, name := range []string{path, path + "-wal"} {
		info, err := os.Lstat(name)
		if err != nil {
			return nil, err
		}
		p[name] = info
	}
	return p, nil
}

// Check returns an error once a file of the database is no longer in its place.
func (p Place) Check() error {
	for name, opened := range p {
		if info, err := os.Lstat(name); err != nil || !os.SameFile(info, opened) {
			return fmt.Errorf("%s was removed or replaced while it was in use: put it back if it still is somewhere, and start again", name)
		}
	}
	return nil
}

// queryer is a database or a transaction.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Each calls row for each row that a query finds; scan reads the row's columns. It ends with row's first error.
func Each(ctx context.Context, on queryer, row func(scan func(into ...any) error) error, query string, args ...any) error {
	rows, err := on.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Within runs f in one transaction. What f did counts only if it returns nil and Within does.
func Within(ctx context.Context, db *sql.DB, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}
