// Package store is the executor's own durable memory: what every sink remembers, and in the same file the journal of switches, the
// host's mode and the measured memory of services. Every change is on disk when a method returns.
package store

import (
	"context"
	"embed"
	"fmt"

	"durward.internal/services/platform/database"
	"durward.internal/services/platform/sink/sinkstore"
)

// File is the database's name in the state folder.
const File = "executor.db"

//go:embed migrations/*.sql
var migrations embed.FS

// Store is a sink's store with the executor's tables.
type Store struct{ *sinkstore.Store }

// Open opens or makes the store in the state folder. The caller closes it.
func Open(ctx context.Context, stateDir string) (*Store, error) {
	s, err := sinkstore.Open(ctx, sinkstore.Config{
		Service: "executor", StateDir: stateDir, Migrations: database.Embedded(migrations, "migrations"), Tables: []string{"switch", "switch_step", "host_mode"},
	})
	if err != nil {
		return nil, err
	}
	return &Store{s}, nil
}

// failed is an error with the store's name, or nil.
func failed(err error) error {
	if err != nil {
		return fmt.Errorf("executor store: %w", err)
	}
	return nil
}
