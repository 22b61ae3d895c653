package sinkstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"durward.internal/services/platform/backup"
	"durward.internal/services/platform/backup/statecopy"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/recorder/spool"
	"durward.internal/services/platform/sink"
)

// Part is what a backup has of a sink's state; open opens its store in a folder.
func Part(service, version, stateDir string, open func(ctx context.Context, folder string) (*Store, error)) statecopy.Part {
	file := service + ".db"
	return statecopy.Part{
		Service: service, Version: version, StateDir: stateDir, Databases: []string{file}, Anew: []string{spool.File}, Files: []string{database.KeyFile}, Control: file,
		Halt: func(ctx context.Context, folder string, epoch uint64) error {
			s, err := open(ctx, folder)
			if err != nil {
				return err
			}
			if damage := s.Damage(); len(damage) > 0 {
				return errors.Join(fmt.Errorf("the copy does not bear its seals: %s", damage[0]), s.Close())
			}
			return errors.Join(s.SetControl(ctx, sink.Control{Epoch: epoch, Halted: true, Reason: backup.Reason, By: service, At: time.Now()}), s.Close())
		},
	}
}
