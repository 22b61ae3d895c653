// Package durable replaces files: after a crash there is the old content or the new. It trusts the owner of their folder.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Owner is to whom a file belongs, and its mode.
type Owner struct {
	UID, GID int
	Mode     fs.FileMode
}

// Own is the owner of a file of this process's user.
func Own(mode fs.FileMode) Owner { return Owner{UID: os.Geteuid(), GID: os.Getegid(), Mode: mode} }

// Replace replaces a file by one of this process's user (0600), on the disk when it returns.
func Replace(path string, content []byte) error { return ReplaceAs(Own(0o600), path, content, nil) }

// ReplaceAs is Replace by a file of that owner. may is asked last, before the new file takes the place; nil: it may.
func ReplaceAs(owner Owner, path string, content []byte, may func() error) error {
	folder := filepath.Dir(path)
	f, err := os.CreateTemp(folder, "."+strings.TrimPrefix(filepath.Base(path), ".")+".*") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	// By the descriptor: whoever may write to the folder could put another file under the name. The mode first, since a file that was
	// given away is not ours to change.
	if err == nil && owner.Mode != 0o600 {
		err = f.Chmod(owner.Mode)
	}
	if err == nil && (owner.UID != os.Geteuid() || owner.GID != os.Getegid()) {
		err = f.Chown(owner.UID, owner.GID)
	}
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil && may != nil {
		err = may()
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return Sync(folder)
}

// Sync flushes a folder, the names of its files, or a file to the disk.
func Sync(path string) error {
	f, err := os.Open(path) // #nosec G304 G703 -- in a folder that is trusted
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
