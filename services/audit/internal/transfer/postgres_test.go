//go:build real

package transfer

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/store"
	server "durward.internal/services/platform/platformtest/postgres"
	"durward.internal/services/platform/postgres"
)

// settings are those of a client of a database of the server, whose role has the database's name.
func settings(s *server.Server, database string) postgres.Settings {
	return postgres.Settings{Engine: postgres.Postgres, Addresses: []string{s.Socket()}, Name: database, User: database, PasswordFile: s.PasswordFile}
}

func opened(t *testing.T, s *server.Server, database string) *store.Store {
	t.Helper()
	db, err := store.OpenPostgres(t.Context(), settings(s, database), slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// TestPostgresCopy moves a log from SQLite to PostgreSQL and back.
func TestPostgresCopy(t *testing.T) {
	to := opened(t, server.Start(t), "durward_audit")
	r := newRig(t, fresh(t), 30)
	must(t, r.run(t, to))
	r.check(t, to, 30)
	back := &rig{signer: r.signer, keys: r.keys, from: to}
	home := fresh(t)
	must(t, back.run(t, home))
	back.check(t, home, 31)
}

// TestPostgresDamagedTail: where the newest records cannot be read, those before them are copied, and it is said how many are not.
func TestPostgresDamagedTail(t *testing.T) {
	s := server.Start(t)
	r := newRig(t, opened(t, s, "durward_audit"), 30)
	must(t, r.from.Close())
	s.SQL(t, "durward_audit", `INSERT INTO tail VALUES (32, '\xff', 0, '', '')`)
	from, err := store.OpenDamagedPostgres(t.Context(), settings(s, "durward_audit"), slog.New(slog.DiscardHandler))
	must(t, err)
	defer from.Close()
	if err := opened(t, s, "durward_audit").Lead(t.Context()); !errors.Is(err, store.ErrFollows) {
		t.Errorf("an audit leads the log that is copied: %v", err)
	}
	r.unread(t, from)
}

// TestPostgresDamagedIsLed: a damaged log is not copied while a process writes it, which would make two of it.
func TestPostgresDamagedIsLed(t *testing.T) {
	s := server.Start(t)
	must(t, opened(t, s, "durward_audit").Lead(t.Context()))
	_, err := store.OpenDamagedPostgres(t.Context(), settings(s, "durward_audit"), slog.New(slog.DiscardHandler))
	if !errors.Is(err, store.ErrFollows) || !strings.Contains(err.Error(), "stop every audit process first") {
		t.Errorf("opened beside its leader: %v", err)
	}
}

// TestPostgresCopyIsHeld: while a copy goes on, however long, no other one begins, and no audit starts on the part of the log that is there or
// on the log that is copied.
func TestPostgresCopyIsHeld(t *testing.T) {
	s := server.Start(t)
	from, to := "durward_audit", "durward_vault"
	r := newRig(t, opened(t, s, from), 20)
	other := map[string]*store.Store{from: opened(t, s, from), to: opened(t, s, to)}
	cfg := r.config(opened(t, s, to))
	cfg.Place, cfg.part = to, 7
	parts := 0
	cfg.Progress = func(int64, int64) {
		if parts++; parts > 1 {
			return
		}
		for _, database := range []string{from, to} {
			// The lock is the session's that ends when it says nothing for 3 s.
			said := `SELECT COALESCE(MAX((query = 'SELECT epoch FROM sequencer')::int), -1) FROM pg_stat_activity JOIN pg_locks USING (pid) WHERE locktype = 'advisory' AND datname = '` + database + `'`
			for held := "0"; held != "1"; held = s.SQL(t, database, said) {
				if held == "-1" {
					t.Fatalf("the copy holds %s no more", database)
				}
				time.Sleep(20 * time.Millisecond) // psql is the only one to ask
			}
			_, err := log.Open(t.Context(), log.Config{Store: other[database], Signer: r.signer, Keys: func() []note.Verifier { return r.keys }})
			if !errors.Is(err, store.ErrClosed) {
				t.Errorf("an audit starts on %s: %v", database, err)
			}
		}
		second := cfg
		second.From, second.To, second.Progress = other[from], other[to], nil
		if err := Run(t.Context(), second); !errors.Is(err, store.ErrFollows) || !strings.Contains(err.Error(), "any other copy") {
			t.Errorf("a second copy: %v", err)
		}
	}
	must(t, Run(t.Context(), cfg))
	r.check(t, cfg.To, 20)
}
