package history

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// SetAside renames the kept checkpoints, so that the next log is taken as it is: a human decided that another history goes on. The log is to be
// closed then.
func (l *Log) SetAside(now time.Time) error {
	suffix := ".before-restore-" + now.UTC().Format("20060102T150405Z")
	for _, name := range []string{checkpointFile, witnessedFile} {
		path := filepath.Join(l.cfg.StateDir, name)
		if err := os.Rename(path, path+suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
