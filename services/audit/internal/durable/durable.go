// Package durable replaces small files of a state folder. It trusts the folder's owner.
package durable

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// Replace replaces a file (0600), on the disk when it returns: after a crash there is the old content or the new.
func Replace(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+strings.TrimPrefix(filepath.Base(path), ".")+".*")
	if err != nil {
		return err
	}
	temporary := f.Name()
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
