//go:build real

package store

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/logproof"
	installed "durward.internal/services/platform/platformtest/postgres"
	"durward.internal/services/platform/postgres"
)

// TestWithoutTheFence: what TestPostgresLead shows of a process that lost its lead is not so without the epoch: it commits.
func TestWithoutTheFence(t *testing.T) {
	s := installed.Start(t)
	settings := postgres.Settings{Engine: postgres.Postgres, Addresses: []string{s.Socket()}, Name: "durward_audit", User: "durward_audit", PasswordFile: s.PasswordFile}
	var stores []*Store
	for range 2 {
		db, err := OpenPostgres(t.Context(), settings, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		stores = append(stores, db)
	}
	stale, leader := stores[0], stores[1]
	if err := stale.Lead(t.Context()); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); ; {
		err := leader.Lead(t.Context())
		if err == nil {
			break
		}
		if !errors.Is(err, ErrFollows) || time.Since(began) > 5*time.Second {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // the server's clock is what is waited for
	}
	e := &auditv1.Entry{
		Writer: "spiffe://durward.local/executor/local", LoggedAt: timestamppb.Now(), Salt: make([]byte, logproof.SaltSize),
		Record: &auditv1.Record{Sequence: 1, Kind: auditv1.Kind_KIND_READ, Time: timestamppb.Now()},
	}
	if err := logproof.Seal(e); err != nil {
		t.Fatal(err)
	}
	batch := Batch{Entries: []*auditv1.Entry{e}, Hashes: []tlog.Hash{tlog.Hash(e.GetLeafHash())}, Checkpoint: []byte("a checkpoint")}
	if err := stale.Commit(t.Context(), batch); !errors.Is(err, ErrFollows) {
		t.Fatalf("with the fence: %v", err)
	}
	postgres.WeakenFence()
	if err := stale.Commit(t.Context(), batch); err != nil {
		t.Fatalf("without the fence it is refused all the same: %v", err)
	}
}
