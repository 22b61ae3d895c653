package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"durward.internal/services/platform/backup"
	"durward.internal/services/platform/backup/statecopy"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/recorder/spool"
	"durward.internal/services/vault/internal/halt"
	"durward.internal/services/vault/internal/keyring"
	"durward.internal/services/vault/internal/settings"
	"durward.internal/services/vault/internal/store"
	"durward.internal/services/vault/internal/token"
)

// part is what a backup has of the vault's state: all but the keys of personal data, so that what was destroyed stays so. The key of
// stored credentials is in it where it lies in the state folder.
func part(s *settings.Settings) statecopy.Part {
	p := statecopy.Part{
		Service: "vault", Version: version, StateDir: s.StateDir, Databases: []string{store.File}, Anew: []string{spool.File}, Files: []string{database.KeyFile, keyring.File, keyring.NextFile},
		Ends: []string{token.Folder}, Control: store.File, Halt: haltRestored,
	}
	if s.Database.Shared() {
		p.Elsewhere = "the vault's state is in PostgreSQL, and its owner backs it up (pg_dump); a copy that was put back halts the vault until durward resume"
	}
	return p
}

// haltRestored halts the state in a folder at an epoch.
func haltRestored(ctx context.Context, folder string, epoch uint64) error {
	state, err := store.Open(ctx, folder, nil)
	if err != nil {
		return err
	}
	if damage := state.Damage(); len(damage) > 0 {
		return errors.Join(fmt.Errorf("the copy does not bear its seals: %s", damage[0]), state.Close())
	}
	control, err := halt.New(ctx, state)
	if err == nil {
		_, err = control.HaltAbove(ctx, epoch-1, "vault", backup.Reason, time.Now())
	}
	return errors.Join(err, state.Close())
}
