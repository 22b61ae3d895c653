// Package catalogfile reads and replaces the files of a catalog for the operator's commands. It runs as the operator and trusts the
// catalog's owner; a file that is not any more what was read is not written.
package catalogfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/goccy/go-yaml"

	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/durable"
)

// MaxFile is the most that is read of a file, one byte more than the catalog's own bound.
const MaxFile = 1<<20 + 1

// ReadFile reads a file, MaxFile bytes at most.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, MaxFile))
}

// AsList is v as a list; nil where it is none.
func AsList(v any) []any {
	items, _ := v.([]any)
	return items
}

// Read reads a catalog's files as the executor lists them; none of a folder that has none yet.
func Read(path string) ([]catalog.File, error) {
	files, err := catalog.Read(path)
	if errors.Is(err, catalog.ErrEmpty) {
		return nil, nil
	}
	return files, err
}

// NameError is why a file that was named cannot get the entry.
type NameError string

func (e NameError) Error() string { return string(e) }

// Target chooses the file that gets the entry, and adds it to the files, without data, where it is a new one.
func Target(path string, files []catalog.File, to, section string) (int, []catalog.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, nil, err
	}
	if !info.IsDir() {
		if to != "" {
			return 0, nil, NameError("--to is for a catalogue that is a folder; this one is the file " + path)
		}
		return 0, files, nil
	}
	if to != "" {
		if to != filepath.Base(to) || filepath.Ext(to) != ".yaml" || strings.HasPrefix(to, ".") {
			return 0, nil, NameError("--to is the name of a .yaml file in the folder")
		}
		name := filepath.Join(path, to)
		if i := slices.IndexFunc(files, func(f catalog.File) bool { return f.Name == name }); i >= 0 {
			return i, files, nil
		}
		files = append(files, catalog.File{Name: name})
		slices.SortFunc(files, func(a, b catalog.File) int { return strings.Compare(a.Name, b.Name) })
		return slices.IndexFunc(files, func(f catalog.File) bool { return f.Name == name }), files, nil
	}
	at := 0
	for i, f := range files {
		var sections map[string]any
		if yaml.Unmarshal(f.Data, &sections) == nil && len(AsList(sections[section])) > 0 {
			at = i
		}
	}
	return at, files, nil
}

var (
	// ErrChanged means that a file is not what it was when it was read.
	ErrChanged = errors.New("the file was changed meanwhile; nothing was written")
	// ErrOwner means that a file would not have stayed its owner's, whose group may be the executor's.
	ErrOwner = errors.New("the file would have become yours; nothing was written")
)

// Replace writes a catalog's file, if it still is what was read; nil means that it must not be there.
func Replace(path string, before, after []byte) error {
	now, err := ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && before == nil:
		return installdir.CreateFile(path, after, 0o644)
	case err != nil:
		return fmt.Errorf("write: %w", err)
	case before == nil || !bytes.Equal(now, before):
		return ErrChanged
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	// A symbolic link stays one.
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	owner := durable.Own(info.Mode().Perm())
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		owner.UID, owner.GID = int(st.Uid), int(st.Gid)
	}
	switch err := durable.ReplaceAs(owner, path, after, nil); {
	case errors.Is(err, syscall.EPERM):
		return ErrOwner
	case err != nil:
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
