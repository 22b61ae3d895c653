package client

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/keyfile"
)

// Names of the files in a client's folder.
const (
	FileToken = "token"
	FileKey   = "key"
)

// Credentials are what a client shows and signs with.
type Credentials struct {
	Token string
	// Key is nil for a bearer client.
	Key ed25519.PrivateKey
}

// Create makes a client: a token, and unless bearer a key, in 0600 files in folder, and its entry for clients.yaml, which
// holds only the token's digest and the public key. An existing folder is refused.
func Create(folder, name, channel, tier string, bearer bool) (Client, error) {
	if err := CheckName(name); err != nil {
		return Client{}, err
	}
	if _, err := os.Lstat(filepath.Join(folder, FileToken)); err == nil {
		return Client{}, fmt.Errorf("%s holds a client's token already", folder)
	}
	made, err := create(folder, name, bearer)
	made.Channel, made.TierCeiling = channel, tier
	return made, err
}

// discardMade is Discard for a folder that may not be there.
func discardMade(folder string) error {
	if err := Discard(folder); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// create makes the files of a credential.
func create(folder, name string, bearer bool) (Client, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return Client{}, fmt.Errorf("client folder: %w", err)
	}
	token, digest := NewToken()
	c := Client{ID: name, TokenSHA256: digest}
	if !bearer {
		private, public, err := signingkey.Generate(name, nil)
		if err != nil {
			return Client{}, err
		}
		if err := installdir.WriteFile(filepath.Join(folder, FileKey), private, 0o600); err != nil {
			return Client{}, err
		}
		c.Key = strings.TrimSpace(string(public))
	}
	return c, installdir.WriteFile(filepath.Join(folder, FileToken), []byte(token+"\n"), 0o600)
}

// Fresh is a client's new credential beside its old one. One of Use and Drop ends it.
type Fresh struct {
	TokenSHA256, Key string

	folder, beside string
	// placed: the new one is in folder, and the old one beside it.
	placed bool
}

// Renew makes a new credential of the same kind for a client whose files are in folder, and leaves those as they are.
func Renew(folder, name string) (*Fresh, error) {
	old, err := LoadCredentials(folder)
	if err != nil {
		return nil, err
	}
	beside, err := os.MkdirTemp(filepath.Dir(folder), "."+filepath.Base(folder)+".")
	if err != nil {
		return nil, fmt.Errorf("client folder: %w", err)
	}
	f := &Fresh{folder: folder, beside: beside}
	c, err := create(beside, name, old.Key == nil)
	if err == nil {
		err = handOver(beside, folder)
	}
	if err != nil {
		return nil, errors.Join(err, f.Drop())
	}
	f.TokenSHA256, f.Key = c.TokenSHA256, c.Key
	return f, nil
}

// handOver gives a new folder, which nobody else can reach yet, to whom the old one belongs: root renews what another's programs
// read.
func handOver(fresh, old string) error {
	for _, name := range []string{FileToken, FileKey, "."} { // the folder last: then they are its owner's
		was, err := os.Lstat(filepath.Join(old, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // a bearer client has no key
		}
		if err != nil {
			return fmt.Errorf("client folder: %w", err)
		}
		owner, ok := was.Sys().(*syscall.Stat_t)
		if !ok || int(owner.Uid) == os.Geteuid() {
			continue
		}
		if err := os.Lchown(filepath.Join(fresh, name), int(owner.Uid), int(owner.Gid)); err != nil {
			return fmt.Errorf("client folder: %w", err)
		}
	}
	return nil
}

// Place puts the new credential in the old one's place, in one step: whoever reads the folder finds the one or the other. The old
// one is kept beside it until Use or Drop.
func (f *Fresh) Place() error {
	if f.placed {
		return nil
	}
	if err := exchange(f.beside, f.folder); err != nil {
		return fmt.Errorf("client folder: %w", err)
	}
	f.placed = true
	return nil
}

// Use makes the new credential the client's, and removes the old one.
func (f *Fresh) Use() error {
	if err := f.Place(); err != nil {
		return err
	}
	return discardMade(f.beside)
}

// Drop leaves the old credential, or puts it back, and removes the new one.
func (f *Fresh) Drop() error {
	if f.placed {
		if err := exchange(f.beside, f.folder); err != nil {
			return fmt.Errorf("client folder: %w", err)
		}
		f.placed = false
	}
	return discardMade(f.beside)
}

// Discard removes the files of a client that could not be entered.
func Discard(folder string) error {
	var problems []error
	for _, name := range []string{FileToken, FileKey} {
		if err := os.Remove(filepath.Join(folder, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			problems = append(problems, err)
		}
	}
	return errors.Join(append(problems, os.Remove(folder))...)
}

// LoadCredentials reads a client's files. Files that others can read are refused.
func LoadCredentials(folder string) (Credentials, error) {
	token, err := keyfile.Read(filepath.Join(folder, FileToken))
	if err != nil {
		return Credentials{}, fmt.Errorf("client credentials: %w", err)
	}
	c := Credentials{Token: strings.TrimSpace(string(token))}
	c.Key, err = signingkey.LoadEd25519(filepath.Join(folder, FileKey))
	if errors.Is(err, os.ErrNotExist) {
		return c, nil
	}
	return c, err
}

// swap makes each of two folders take the other's place, in three steps.
func swap(a, b string) error {
	aside := a + ".old"
	if err := os.Rename(b, aside); err != nil {
		return err
	}
	if err := os.Rename(a, b); err != nil {
		_ = os.Rename(aside, b) // as it was; the first error is the one to tell
		return err
	}
	return os.Rename(aside, a)
}
