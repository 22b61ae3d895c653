package installdir

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"durward.internal/services/operator/internal/edit"
	"durward.internal/services/platform/durable"
)

// SetAside moves the home to a folder beside it, whose name it returns, so that another installation can have its place. What its
// configuration says of the home's own files follows. ErrLocked: `durward up` runs for it.
//
// The configuration is rewritten first, and to the same name each time: what an interrupted call began the next one ends.
func (h Home) SetAside() (aside string, err error) {
	release, err := h.Lock("up")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, release()) }()
	aside = h.Dir + "-aside"
	for n := 2; ; n++ {
		if _, err := os.Lstat(aside); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return "", fmt.Errorf("set %s aside: %w", h.Dir, err)
		}
		aside = h.Dir + "-aside-" + strconv.Itoa(n)
	}
	if err := h.rewrite(aside); err != nil {
		return "", fmt.Errorf("set %s aside: %w", h.Dir, err)
	}
	if err := os.Rename(h.Dir, aside); err != nil {
		return "", fmt.Errorf("set %s aside: %w", h.Dir, err)
	}
	return aside, durable.Sync(filepath.Dir(aside))
}

// rewrite makes the configuration name files below another folder instead of this one.
func (h Home) rewrite(folder string) error {
	// A path goes on behind the folder's name, so that a quotation is not at its end here.
	from, to := strings.Trim(edit.Text(h.Dir+"/"), `"`), strings.Trim(edit.Text(folder+"/"), `"`)
	return filepath.WalkDir(h.path("config"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		before, err := os.ReadFile(path) //nolint:gosec // Lock has seen that nobody else may write on the way there
		if err != nil {
			return err
		}
		after := bytes.ReplaceAll(before, []byte(from), []byte(to))
		if bytes.Equal(before, after) {
			return nil
		}
		return WriteFile(path, after, 0o600)
	})
}
