package token

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"durward.internal/services/platform/durable"
	"durward.internal/services/platform/keyfile"
	"durward.internal/services/platform/pattern"
)

// Folder is the keys' folder in the vault's state.
const Folder = "privacy"

// A file is the key, the second in which it was made, and a digest of whose session it is.
const keySize, ownerAt, fileSize = 32, 40, 72

// sessionKey is what a file holds.
type sessionKey struct {
	key   [keySize]byte
	born  time.Time
	owner [sha256.Size]byte
}

// keys are the sessions' keys: a folder with one file each, named by the session's public reference. A key is never in the database, so
// that no page, journal or backup of a database opens what it holds once the file is gone.
type keys struct{ dir string }

func (v *Values) keys() keys { return keys{v.cfg.Dir} }

var sessionName = pattern.New(`^s-[a-z2-7]{26}$`)

func (k keys) path(session string) (string, error) {
	if !sessionName().MatchString(session) {
		return "", fmt.Errorf("%q is no session's name: %w", session, fs.ErrNotExist)
	}
	return filepath.Join(k.dir, session+".key"), nil
}

func (k keys) read(session string) (out sessionKey, err error) {
	path, err := k.path(session)
	if err != nil {
		return out, err
	}
	raw, err := keyfile.Read(path)
	if err != nil {
		return out, err
	}
	defer clear(raw)
	if len(raw) != fileSize {
		return out, fmt.Errorf("%s is no key of a session", path)
	}
	copy(out.key[:], raw)
	copy(out.owner[:], raw[ownerAt:])
	out.born = time.Unix(int64(binary.BigEndian.Uint64(raw[keySize:])), 0) // #nosec G115 -- what write wrote
	return out, nil
}

// write makes the file; it is on the disk when write returns.
func (k keys) write(session string, of sessionKey) error {
	path, err := k.path(session)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	raw := binary.BigEndian.AppendUint64(slices.Clone(of.key[:]), uint64(of.born.Unix())) // #nosec G115 -- after 1970
	raw = append(raw, of.owner[:]...)
	defer clear(raw)
	_, err = f.Write(raw)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path)) // a part of it would bar the way of the next try, once the disk has room
	}
	return durable.Sync(k.dir)
}

func (k keys) rename(from, to string) error {
	old, err := k.path(from)
	if err != nil {
		return err
	}
	path, err := k.path(to)
	if err != nil {
		return err
	}
	return errors.Join(os.Rename(old, path), durable.Sync(k.dir))
}

// destroy overwrites the key where it lies, and removes the file; that there is none is no error. Where the file system or the disk
// writes elsewhere than it is told to, the old bytes stay until they are used for something else.
func (k keys) destroy(session string) error {
	path, err := k.path(session)
	if err != nil {
		return nil //nolint:nilerr // no key has that name
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		_, err = f.Write(make([]byte, fileSize))
		err = errors.Join(err, f.Sync(), f.Close())
	}
	return errors.Join(err, os.Remove(path), durable.Sync(k.dir))
}

// list returns the sessions that have a key.
func (k keys) list() ([]string, error) {
	files, err := os.ReadDir(k.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, f := range files {
		if name := f.Name(); len(name) > 4 && sessionName().MatchString(name[:len(name)-4]) {
			out = append(out, name[:len(name)-4])
		}
	}
	return out, err
}
