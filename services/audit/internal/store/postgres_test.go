//go:build real

package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/sumdb/tlog"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"

	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/database"
	server "durward.internal/services/platform/platformtest/postgres"
	"durward.internal/services/platform/postgres"
)

// settings are those of a client of the server.
func settings(s *server.Server) postgres.Settings {
	return postgres.Settings{Engine: postgres.Postgres, Addresses: []string{s.Socket()}, Name: "durward_audit", User: "durward_audit", PasswordFile: s.PasswordFile}
}

func openPostgres(t *testing.T, s postgres.Settings) *store.Store {
	t.Helper()
	db, err := store.OpenPostgres(t.Context(), s, slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// TestPostgres runs the suite through the socket and through TLS.
func TestPostgres(t *testing.T) {
	s := server.Start(t)
	remote := settings(s)
	remote.Addresses, remote.CA = []string{fmt.Sprintf("localhost:%d", s.Port)}, s.CA
	for name, how := range map[string]postgres.Settings{"socket": settings(s), "tls": remote} {
		t.Run(name, func(t *testing.T) {
			suite(t, func(t *testing.T) *store.Store {
				s.SQL(t, "durward_audit", "DROP SCHEMA public CASCADE")
				s.SQL(t, "durward_audit", "CREATE SCHEMA public AUTHORIZATION durward_audit")
				return openPostgres(t, how)
			})
		})
	}
}

// TestFirstPostgresState is TestFirstState with PostgreSQL's first schema.
func TestFirstPostgresState(t *testing.T) {
	s := server.Start(t)
	db, err := postgres.Open(t.Context(), settings(s), "audit", slog.New(slog.DiscardHandler))
	if err == nil {
		err = db.Migrate(t.Context(), os.DirFS("testdata/first/postgres"), database.Newest)
		db.Pool.Close()
	}
	must(t, err)
	still(t, lead(t, openPostgres(t, settings(s))))
}

// TestPostgresWipeBrokenOff: of a REINDEX that was broken off, as when audit ends or the disk is full, no index stays beside the one of words.
func TestPostgresWipeBrokenOff(t *testing.T) {
	s := server.Start(t)
	db := openPostgres(t, settings(s))
	other, err := postgres.Open(t.Context(), settings(s), "audit", slog.New(slog.DiscardHandler))
	must(t, err)
	defer other.Pool.Close()
	const beside = `SELECT indexrelid::regclass FROM pg_index WHERE indrelid = 'bodies'::regclass AND NOT indisvalid`
	until := func(database, query, want string) {
		t.Helper()
		for began := time.Now(); s.SQL(t, database, query) != want; time.Sleep(20 * time.Millisecond) { // psql is the only one to ask
			if time.Since(began) > time.Minute {
				t.Fatalf("%s is not %s", query, want)
			}
		}
	}
	writing, err := other.Pool.Begin(t.Context())
	if err == nil {
		_, err = writing.Exec(t.Context(), `SET LOCAL idle_in_transaction_session_timeout = 0; LOCK TABLE bodies IN ROW EXCLUSIVE MODE`) // as one that adds records
	}
	must(t, err)
	ctx, breakOff := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := db.Wipe(ctx); ended <- err }()
	until("durward_audit", beside, "bodies_words_ccnew")
	breakOff()
	if err := <-ended; err == nil {
		t.Error("it did not wait for one that writes")
	}
	until("postgres", "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'REINDEX%' AND state = 'active'", "0")
	must(t, writing.Rollback(t.Context()))
	if got := s.SQL(t, "durward_audit", beside); got != "bodies_words_ccnew" {
		t.Errorf("control: %q is left", got)
	}
	wipe(t, db)
	if got := s.SQL(t, "durward_audit", beside); got != "" {
		t.Errorf("what is left: %s", got)
	}
}

// takeOver leads when the server finds that the one before has ended, or is silent: within 5 s.
func takeOver(t *testing.T, db *store.Store) {
	t.Helper()
	for began := time.Now(); ; {
		err := db.Lead(t.Context())
		if err == nil {
			return
		}
		if !errors.Is(err, store.ErrFollows) || time.Since(began) > 5*time.Second {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		time.Sleep(50 * time.Millisecond) // the server's clock is what is waited for
	}
}

// TestPostgresLead: one process leads; one that lost its lock commits nothing, whatever it believes, and one that is silent loses it.
func TestPostgresLead(t *testing.T) {
	s := server.Start(t)
	ctx := t.Context()
	first, second := openPostgres(t, settings(s)), openPostgres(t, settings(s))
	tr := &tree{t: t, db: first}
	read := func() *auditv1.Record { return &auditv1.Record{Kind: auditv1.Kind_KIND_READ} }
	for _, r := range []*auditv1.Record{read(), intent(0)} {
		if err := first.Commit(ctx, (&tree{t: t}).batch(writer, r)); !errors.Is(err, store.ErrFollows) {
			t.Fatalf("a commit before any lead: %v", err)
		}
	}
	lead(t, first)
	tr.commit(writer, read())
	if err := second.Lead(ctx); !errors.Is(err, store.ErrFollows) {
		t.Fatalf("two lead: %v", err)
	}
	if err := second.Hold(ctx); !errors.Is(err, store.ErrFollows) {
		t.Errorf("one that follows holds: %v", err)
	}
	lead(t, first) // again: its own epoch is a new one
	tr.commit(writer, read())

	// The first says nothing for longer than its lease lasts.
	takeOver(t, second)
	before, err := first.Head(ctx)
	must(t, err)
	stale := &tree{t: t, db: first, entries: tr.entries, hashes: tr.hashes, last: map[string]uint64{writer: tr.last[writer]}}
	if err := first.Commit(ctx, stale.batch(writer, read(), read())); !errors.Is(err, store.ErrFollows) {
		t.Errorf("a commit of one that lost its lead: %v", err)
	}
	if after, err := second.Head(ctx); err != nil || !cmp.Equal(before, after) {
		t.Errorf("it left something (%v): %s", err, cmp.Diff(before, after))
	}
	if err := first.Hold(ctx); err == nil {
		t.Error("it still holds")
	}
	if err := first.Lead(ctx); !errors.Is(err, store.ErrFollows) {
		t.Errorf("it leads again: %v", err)
	}
	tr.db = second
	tr.commit(writer, read())
	must(t, second.Close())
	takeOver(t, first)
	tr.db = first
	tr.commit(writer, read())

	s.SQL(t, "durward_audit", "UPDATE sequencer SET closed = 'it was moved'")
	if err := first.Commit(ctx, tr.batch(writer, read())); !errors.Is(err, store.ErrFollows) {
		t.Errorf("a commit to a closed log: %v", err)
	}
	if err := first.Lead(ctx); !errors.Is(err, store.ErrClosed) || !strings.Contains(err.Error(), "it was moved") {
		t.Errorf("a closed log: %v", err)
	}
}

// TestPostgresLeaves: a process whose records PostgreSQL refuses for good, or whose database a newer program migrated, gives the lead up.
func TestPostgresLeaves(t *testing.T) {
	s := server.Start(t)
	ctx := t.Context()
	first, second := openPostgres(t, settings(s)), openPostgres(t, settings(s))
	tr := &tree{t: t, db: lead(t, first)}
	tr.commit(writer, intent(0))
	s.SQL(t, "durward_audit", "REVOKE INSERT ON tail FROM durward_audit")
	refused := &tree{t: t, db: first, entries: tr.entries, hashes: tr.hashes, last: map[string]uint64{writer: tr.last[writer]}}
	if err := first.Commit(ctx, refused.batch(writer, intent(1))); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Fatalf("a commit that the role may not make: %v", err)
	}
	if err := first.Hold(ctx); !errors.Is(err, store.ErrFollows) {
		t.Errorf("it leads still: %v", err)
	}
	s.SQL(t, "durward_audit", "GRANT INSERT ON tail TO durward_audit")
	takeOver(t, second)
	tr.db = second
	tr.commit(writer, intent(1))

	s.SQL(t, "durward_audit", "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, true)")
	if err := second.Lead(ctx); !errors.Is(err, database.ErrNewerSchema) {
		t.Errorf("it leads a log of a newer schema: %v", err)
	}
	if err := second.Hold(ctx); !errors.Is(err, store.ErrFollows) {
		t.Errorf("it holds the lead: %v", err)
	}
}

// TestPostgresTail: what waits in the tail is read by a process that follows as by the one that leads, also while that moves it, and whoever
// leads next goes on behind it. One that lost its lead adds nothing to it, nor does an earlier build, which would not look there.
func TestPostgresTail(t *testing.T) {
	s := server.Start(t)
	ctx := t.Context()
	first, second := openPostgres(t, settings(s)), openPostgres(t, settings(s))
	waits(t, lead(t, first), 0)
	tr := &tree{t: t, db: first}
	found := func(db *store.Store, word string, index uint64) {
		t.Helper()
		if list, err := db.Search(ctx, store.Query{Text: word}, 10, 1<<20); err != nil || len(list) != 1 || list[0].GetIndex() != index {
			t.Errorf("%s: %v, %v", word, list, err)
		}
	}
	for i := range 5 {
		tr.commit(writer, intent(i))
	}
	waits(t, first, 5)
	waits(t, second, 5)
	holds(t, second, tr)
	found(second, "word4", 4)
	waits(t, second, 5)
	found(first, "word4", 4) // and moves it
	waits(t, second, 0)
	holds(t, second, tr)
	tr.commit(writer, intent(5))
	holds(t, second, tr) // some here, some there
	found(second, "word0", 0)

	moving := make(chan error)
	go func() {
		var err error
		for i := 6; i < 90 && err == nil; i++ {
			if err = first.Commit(ctx, tr.batch(writer, intent(i))); err == nil && i%3 == 0 {
				_, err = first.Search(ctx, store.Query{Text: "word0"}, 1, 1<<20)
			}
		}
		moving <- err
	}()
	for last := int64(0); ; {
		head, err := second.Head(ctx)
		if err != nil || head.Entries < last || head.Hashes != tlog.StoredHashCount(head.Entries) {
			t.Fatalf("it ends at %+v, %v; it was at %d", head, err, last)
		}
		last = head.Entries
		select {
		case err := <-moving:
			must(t, err)
		default:
			continue
		}
		break
	}
	waits(t, first, 2)

	takeOver(t, second) // the first says nothing for longer than its lease lasts
	waits(t, second, 2)
	holds(t, second, tr)
	stale := &tree{t: t, db: first, entries: tr.entries, hashes: tr.hashes, last: map[string]uint64{writer: tr.last[writer]}}
	if err := first.Commit(ctx, stale.batch(writer, intent(90))); !errors.Is(err, store.ErrFollows) {
		t.Errorf("a commit of one that lost its lead: %v", err)
	}
	tr.db = second
	tr.commit(writer, intent(90))
	holds(t, second, tr)

	db, err := postgres.Open(ctx, settings(s), "audit", slog.New(slog.DiscardHandler))
	must(t, err)
	defer db.Pool.Close()
	if _, err := db.Pool.Exec(ctx, "INSERT INTO checkpoints (size, note) VALUES (1000, '')"); err == nil || !strings.Contains(err.Error(), "tail") {
		t.Errorf("an earlier build writes: %v", err)
	}

	tx, err := db.Pool.Begin(ctx)
	must(t, err)
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, "LOCK TABLE entries, tree, writers, checkpoints"); err != nil {
		t.Fatal(err)
	}
	if e, err := openPostgres(t, settings(s)).Entry(ctx, 90); err != nil || e.GetIndex() != 90 {
		t.Errorf("what waits is not read from the tail alone: %v, %v", e, err)
	}
}

// TestPostgresFill: a copy has its last records wait in the tail, which moves by itself, and says meanwhile that it is whole.
func TestPostgresFill(t *testing.T) {
	s := server.Start(t)
	db := lead(t, openPostgres(t, settings(s)))
	(&tree{t: t, db: db}).commit(writer, intent(0))
	for db.Fill(""); s.SQL(t, "durward_audit", "SELECT count(*) FROM tail") != "0"; {
		db.Fill("") // the detector of races is what would see it
	}
}

// TestOpenPostgresRefuses: servers that forget, servers that are not who they should be, and a newer schema.
func TestOpenPostgresRefuses(t *testing.T) {
	s := server.Start(t)
	for name, tc := range map[string]struct {
		prepare, undo string
		spoil         func(p *postgres.Settings)
		want          string
		is            error
	}{
		"synchronous_commit off": {"ALTER ROLE durward_audit SET synchronous_commit = off", "ALTER ROLE durward_audit RESET ALL", nil, "synchronous_commit is off", postgres.ErrUnsafe},
		"fsync off":              {"ALTER SYSTEM SET fsync = off", "ALTER SYSTEM RESET fsync", nil, "fsync is off", postgres.ErrUnsafe},
		"a replica":              {"ALTER ROLE durward_audit SET default_transaction_read_only = on", "ALTER ROLE durward_audit RESET ALL", nil, "read only", nil},
		"another password":       {"ALTER ROLE durward_audit PASSWORD 'another'", "ALTER ROLE durward_audit PASSWORD '" + server.Password + "'", nil, "password authentication failed", nil},
		"another name":           {"", "", func(p *postgres.Settings) { p.Addresses, p.CA = []string{fmt.Sprintf("127.0.0.1:%d", s.Port)}, s.CA }, "certificate", nil},
		"another user's socket":  {"", "", func(p *postgres.Settings) { p.Addresses[0] = strings.Split(p.Addresses[0], ",")[0] + ",user=65534" }, "listens on", nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := settings(s)
			if tc.spoil != nil {
				tc.spoil(&p)
			}
			if tc.prepare != "" {
				s.SQL(t, "postgres", tc.prepare)
				s.SQL(t, "postgres", "SELECT pg_reload_conf()")
				defer func() {
					s.SQL(t, "postgres", tc.undo)
					s.SQL(t, "postgres", "SELECT pg_reload_conf()")
				}()
			}
			db, err := store.OpenPostgres(t.Context(), p, slog.New(slog.DiscardHandler))
			if err == nil {
				_ = db.Close() // it ought not to be open
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || tc.is != nil && !errors.Is(err, tc.is) || strings.Contains(err.Error(), server.Password) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
	var said bytes.Buffer
	db, err := store.OpenPostgres(t.Context(), settings(s), slog.New(slog.NewTextHandler(&said, nil)))
	must(t, err)
	if !strings.Contains(said.String(), "no synchronous standby") {
		t.Errorf("it says nothing of what a fail-over may lose: %s", &said)
	}
	must(t, db.Close())
	s.SQL(t, "durward_audit", "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, true)")
	if _, err := store.OpenPostgres(t.Context(), settings(s), slog.New(slog.DiscardHandler)); !errors.Is(err, database.ErrNewerSchema) {
		t.Errorf("a newer schema: %v", err)
	}
}
