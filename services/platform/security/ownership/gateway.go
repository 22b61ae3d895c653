package ownership

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Gateway finds the gateway's user by a configuration's gateway_user. It is nil where none is named, and in development, where one
// user runs everything: then nobody's rights are looked at. A process that runs as that user itself guards nothing from it.
func Gateway(name string, development bool) (*Foreign, error) {
	if development || name == "" {
		return nil, nil
	}
	f, err := Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("gateway_user: %w", err)
	}
	if int(f.UID) == os.Geteuid() {
		return nil, errors.New("gateway_user: this process runs as that user; give the gateway a user of its own, or say -development")
	}
	return f, nil
}

// Refuse returns an error for the first of the paths that the user owns or may write, by whatever links it leads, or a folder above
// it; of a folder each entry counts. What is not there is nobody's. A nil Foreign refuses nothing.
func (f *Foreign) Refuse(paths ...string) error {
	if f == nil {
		return nil
	}
	for _, path := range paths {
		if err := f.refuse(path); err != nil {
			return err
		}
		entries, err := os.ReadDir(path)
		if err != nil && !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, entry := range entries {
			if err := f.refuse(filepath.Join(path, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *Foreign) refuse(path string) error {
	var st syscall.Stat_t
	err := above(path, f)
	if err == nil {
		err = syscall.Stat(path, &st)
	}
	if err == nil && reachable(*f, &st, hasACLAt(path)) {
		err = ErrForeign
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
