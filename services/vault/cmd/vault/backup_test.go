package main

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"filippo.io/age"

	"durward.internal/services/platform/backup"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/vault/internal/keyring"
	"durward.internal/services/vault/internal/settings"
	"durward.internal/services/vault/internal/store"
)

// TestBackupOfAKeyThatIsReplaced: where a change of the key above the stored credentials was cut off, a backup has both files, and what was put
// back opens what is stored.
func TestBackupOfAKeyThatIsReplaced(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	use := func(dir string, f func(ring *keyring.Ring) error) {
		t.Helper()
		state, err := store.Open(t.Context(), dir, nil)
		must(t, err)
		ring, err := keyring.Open(t.Context(), keyring.Config{
			Store: state, Source: keyring.SourceFile, File: filepath.Join(dir, keyring.File), Getenv: os.Getenv, Now: time.Now, Logger: platformtest.Logger(),
		})
		must(t, err)
		must(t, errors.Join(f(ring), state.Close()))
	}
	file := filepath.Join(dir, keyring.File)
	use(dir, func(ring *keyring.Ring) error {
		_, err := ring.Encrypt(t.Context(), "a", 1, []byte("secret"))
		old := testfile.Read(t, file)
		return errors.Join(err, ring.Rotate(t.Context(), nil, keyring.Rotation{Upper: true}),
			os.Rename(file, filepath.Join(dir, keyring.NextFile)), os.WriteFile(file, old, 0o600))
	})
	key, err := age.GenerateX25519Identity()
	must(t, err)
	var copied bytes.Buffer
	at := func(dir string) *settings.Settings {
		s := &settings.Settings{}
		s.StateDir = dir
		return s
	}
	must(t, part(at(dir)).Write(t.Context(), &copied, []age.Recipient{key.Recipient()}))
	must(t, part(at(other)).Restore(t.Context(), bufio.NewReader(&copied), backup.Given{Identities: []age.Identity{key}}, time.Now()))
	use(other, func(ring *keyring.Ring) error {
		if ring.Sealed(t.Context()) {
			t.Error("what was put back does not open what is stored")
		}
		return nil
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
