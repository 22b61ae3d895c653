//go:build real

package transfer

import (
	"log/slog"
	"testing"

	"durward.internal/services/audit/internal/store"
	server "durward.internal/services/platform/platformtest/postgres"
	"durward.internal/services/platform/postgres"
)

// TestPostgresCopy moves a log from SQLite to PostgreSQL and back.
func TestPostgresCopy(t *testing.T) {
	s := server.Start(t)
	to, err := store.OpenPostgres(t.Context(), postgres.Settings{
		Engine: postgres.Postgres, Addresses: []string{s.Socket()}, Name: "durward_audit", User: "durward_audit", PasswordFile: s.PasswordFile,
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	r := newRig(t, fresh(t), 30)
	if err := r.run(t, to); err != nil {
		t.Fatal(err)
	}
	r.check(t, to, 30)
	back := &rig{signer: r.signer, keys: r.keys, from: to}
	home := fresh(t)
	if err := back.run(t, home); err != nil {
		t.Fatal(err)
	}
	back.check(t, home, 31)
}
