// Package database opens a service's embedded database: SQLite, migrated to the schema that the program knows. Vault,
// executor and audit link it, each with a file of its own. It trusts the file's owner; a file that a newer program wrote
// is refused, because acting on half-understood state is worse than not starting.
package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite" // registers the driver "sqlite"

	"durward.internal/services/platform/config"
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
}

// Open opens the database for reading and writing, making and migrating it as needed. Every commit is on disk when it
// returns (WAL, synchronous=FULL). There is one connection, so writers queue in the program and never meet a lock; a
// transaction takes the write lock when it begins. The caller closes it.
func Open(ctx context.Context, cfg Config) (*sql.DB, error) {
	path, err := prepare(cfg)
	if err != nil {
		return nil, fmt.Errorf("%s database: %w", cfg.Service, err)
	}
	db, err := sql.Open("sqlite", dsn(path, url.Values{
		"_txlock": {"immediate"},
		"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)"},
	}))
	if err != nil {
		return nil, fmt.Errorf("%s database: %w", cfg.Service, err)
	}
	db.SetMaxOpenConns(1)
	if err := migrate(ctx, db, cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("%s database %s: %w", cfg.Service, path, err), db.Close())
	}
	return db, nil
}

// OpenReader opens a database that Open has made for reading alone, on connections that do not wait for the writer. The
// caller closes it.
func OpenReader(ctx context.Context, cfg Config) (*sql.DB, error) {
	path, err := config.StatePath(cfg.Path, cfg.StateDir)
	if err != nil {
		return nil, fmt.Errorf("%s database: %w", cfg.Service, err)
	}
	db, err := sql.Open("sqlite", dsn(path, url.Values{
		"mode":    {"ro"},
		"_pragma": {"busy_timeout(5000)", "query_only(1)"},
	}))
	if err != nil {
		return nil, fmt.Errorf("%s database: %w", cfg.Service, err)
	}
	db.SetMaxOpenConns(readers)
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%s database %s: %w", cfg.Service, path, err), db.Close())
	}
	return db, nil
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

func migrate(ctx context.Context, db *sql.DB, cfg Config) error {
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, cfg.Migrations,
		goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	current, known, err := provider.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read the schema's version: %w", err)
	}
	if current > known {
		return fmt.Errorf("%w of %s: schema %d, and this program knows up to %d", ErrNewerSchema, cfg.Service, current, known)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}
