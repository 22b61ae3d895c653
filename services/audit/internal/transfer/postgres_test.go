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
	must(t, err)
	defer to.Close()
	r := newRig(t, fresh(t), 30)
	must(t, r.run(t, to))
	r.check(t, to, 30)
	back := &rig{signer: r.signer, keys: r.keys, from: to}
	home := fresh(t)
	must(t, back.run(t, home))
	back.check(t, home, 31)
}
