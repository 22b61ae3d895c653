//go:build real

package store_test

import (
	"fmt"
	"log/slog"
	"testing"

	"durward.internal/services/audit/internal/postgres"
	"durward.internal/services/audit/internal/store"
	server "durward.internal/services/platform/platformtest/postgres"
)

// settings are those of a client of the server.
func settings(s *server.Server) postgres.Settings {
	return postgres.Settings{Engine: postgres.Postgres, Addresses: []string{s.Socket()}, Name: "durward_audit", User: "durward_audit", PasswordFile: s.PasswordFile}
}

func openPostgres(t *testing.T, s postgres.Settings) *store.Store {
	t.Helper()
	db, err := store.OpenPostgres(t.Context(), s, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
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
				s.SQL(t, "postgres", "DROP DATABASE durward_audit WITH (FORCE)")
				s.SQL(t, "postgres", "CREATE DATABASE durward_audit OWNER durward_audit")
				return openPostgres(t, how)
			})
		})
	}
}
