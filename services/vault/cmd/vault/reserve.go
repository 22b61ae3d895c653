package main

import (
	"context"
	"database/sql"
	"path/filepath"

	"durward.internal/services/platform/database"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/vault/internal/store"
)

// openState opens the vault's database beside a reserve, which a full disk takes: a vault that could not start could not
// halt, refuse or take back either. The caller closes the database.
func openState(ctx context.Context, stateDir string) (db *sql.DB, kept *reserve.Reserve, err error) {
	if kept, err = reserve.Open(stateDir, reserve.Default); err != nil {
		return nil, nil, err
	}
	err = kept.Write(true, func() (err error) {
		db, err = database.Open(ctx, database.Config{
			Path: filepath.Join(stateDir, "vault.db"), StateDir: stateDir, Migrations: store.Migrations(), Service: "the vault",
		})
		return err
	})
	return db, kept, err
}
