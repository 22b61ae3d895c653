package history

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"durward.internal/services/platform/logproof"
)

const asideInfix = ".before-restore-"

// BeforeRestore is what is held; or, where nothing is since SetAside, the newest that it put aside: a restore that is run again loses what
// the first one lost.
func (l *Log) BeforeRestore() logproof.Checkpoint {
	held := l.Held()
	files, err := os.ReadDir(l.cfg.StateDir) // sorted, and so by time
	files = slices.DeleteFunc(files, func(f fs.DirEntry) bool { return !strings.HasPrefix(f.Name(), checkpointFile+asideInfix) })
	if held.Size > 0 || err != nil || len(files) == 0 {
		return held
	}
	raw, err := os.ReadFile(filepath.Join(l.cfg.StateDir, files[len(files)-1].Name()))
	if err != nil {
		return held
	}
	before, err := logproof.OpenCheckpoint(raw, l.cfg.Trust.Current().LogKeys)
	if err != nil || before.Origin != logproof.Origin(l.cfg.Audit) { // its key may be trusted no more
		return held
	}
	return before
}

// SetAside renames the kept checkpoints, so that the next log is taken as it is: a human decided that another history goes on. The log is to be
// closed then.
func (l *Log) SetAside(now time.Time) error {
	suffix := asideInfix + now.UTC().Format("20060102T150405Z")
	for _, name := range []string{checkpointFile, witnessedFile} {
		path := filepath.Join(l.cfg.StateDir, name)
		if err := os.Rename(path, path+suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
