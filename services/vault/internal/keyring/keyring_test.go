package keyring

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"durward.internal/services/platform/platformtest"
	"durward.internal/services/vault/internal/store"
)

// kept is a Store in memory.
type kept struct {
	ring   *store.Keyring
	values []store.CredentialVersion
	fail   error
	// down: nothing can be read.
	down error
}

func (k *kept) Keyring(context.Context) (*store.Keyring, error) {
	if k.down != nil {
		return nil, k.down
	}
	if k.ring == nil {
		return nil, store.ErrNotFound
	}
	return k.ring, nil
}

func (k *kept) SetKeyring(_ context.Context, ring store.Keyring, values []store.CredentialVersion) error {
	if k.fail == nil {
		k.ring, k.values = &ring, values
	}
	return k.fail
}

func open(t *testing.T, s *kept, source, file string) *Ring {
	t.Helper()
	r, err := Open(t.Context(), Config{
		Store: s, Source: source, File: file, Now: time.Now, Logger: platformtest.Logger(), Getenv: func(string) string { return filepath.Dir(file) },
	})
	must(t, err)
	return r
}

func encrypt(t *testing.T, r *Ring, name string, version uint32, value string) []byte {
	t.Helper()
	encrypted, err := r.Encrypt(t.Context(), name, version, []byte(value))
	must(t, err)
	return encrypted
}

func decrypts(t *testing.T, r *Ring, name string, version uint32, encrypted []byte, want string) {
	t.Helper()
	if plain, err := r.Decrypt(t.Context(), name, version, encrypted); err != nil || string(plain) != want {
		t.Errorf("%s %d: %q, %v", name, version, plain, err)
	}
}

func TestAValueOpensInItsPlaceAlone(t *testing.T) {
	t.Parallel()
	r := open(t, &kept{}, SourceFile, filepath.Join(t.TempDir(), File))
	encrypted := encrypt(t, r, "a", 1, "secret")
	for _, place := range []struct {
		name    string
		version uint32
	}{{"b", 1}, {"a", 2}, {"a\x001", 0}} {
		if _, err := r.Decrypt(t.Context(), place.name, place.version, encrypted); err == nil {
			t.Errorf("it opens as version %d of %q", place.version, place.name)
		}
	}
	for i := range encrypted {
		edited := bytes.Clone(encrypted)
		edited[i] ^= 1
		if _, err := r.Decrypt(t.Context(), "a", 1, edited); err == nil {
			t.Fatalf("it opens with byte %d changed", i)
		}
	}
	decrypts(t, r, "a", 1, encrypted, "secret")
}

func TestKeyFromAFile(t *testing.T) {
	t.Parallel()
	file, s := filepath.Join(t.TempDir(), File), &kept{}
	first := open(t, s, SourceFile, file)
	if _, err := os.Lstat(file); err == nil || first.Sealed(t.Context()) {
		t.Error("a vault without credentials has a key, or is sealed")
	}
	encrypted := encrypt(t, first, "a", 1, "secret")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || info.Size() != keySize {
		t.Fatalf("%v, %v", info, err)
	}
	raw, err := os.ReadFile(file)
	if err != nil || bytes.Contains(s.ring.Wrapped, raw) {
		t.Errorf("the key is stored beside what is under it: %v", err)
	}
	decrypts(t, open(t, s, SourceFile, file), "a", 1, encrypted, "secret")

	// Without its key, with another, and with one that others may read, it is sealed and everything else goes on.
	for name, spoil := range map[string]func() error{
		"missing": func() error { return os.Remove(file) },
		"another": func() error { return os.WriteFile(file, bytes.Repeat([]byte{1}, keySize), 0o600) },
		"short":   func() error { return os.WriteFile(file, raw[:keySize-1], 0o600) },
		"open":    func() error { return errors.Join(os.WriteFile(file, raw, 0o600), os.Chmod(file, 0o644)) },
	} {
		must(t, spoil())
		r := open(t, s, SourceFile, file)
		if _, err := r.Decrypt(t.Context(), "a", 1, encrypted); !errors.Is(err, ErrSealed) || !r.Sealed(t.Context()) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := r.Encrypt(t.Context(), "a", 2, nil); !errors.Is(err, ErrSealed) {
			t.Errorf("%s: encrypts: %v", name, err)
		}
		if err := os.Chmod(file, 0o600); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

// TestTheUpperKeyIsLocked: while the upper key is in memory, that is neither paged out nor dumped, and afterwards it is gone.
func TestTheUpperKeyIsLocked(t *testing.T) {
	raw := bytes.Repeat([]byte{7}, keySize)
	if err := locked(raw, func(key []byte) error {
		at := fmt.Sprintf("%08x-", uintptr(unsafe.Pointer(&key[0])))
		maps, err := os.ReadFile("/proc/self/smaps")
		if err != nil {
			return err
		}
		_, mine, found := strings.Cut("\n"+string(maps), "\n"+at)
		_, flags, _ := strings.Cut(mine, "VmFlags:")
		flags, _, _ = strings.Cut(flags, "\n")
		if words := strings.Fields(flags); !found || !slices.Contains(words, "lo") || !slices.Contains(words, "dd") {
			t.Errorf("the key's memory has the flags %v, and neither is locked nor left out of dumps", words)
		}
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return err
		}
		_, held, _ := strings.Cut(string(status), "VmLck:")
		if kib := 0; !bytes.Equal(key, bytes.Repeat([]byte{7}, keySize)) {
			t.Error("it is another key")
		} else if _, err := fmt.Sscan(held, &kib); err != nil || kib == 0 {
			t.Errorf("%d KiB are locked, %v", kib, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(raw, make([]byte, keySize)) {
		t.Error("the copy that it was made of is not wiped")
	}
}

func TestKeyFromSystemd(t *testing.T) {
	t.Parallel()
	file, s := filepath.Join(t.TempDir(), Credential), &kept{}
	if _, err := open(t, s, SourceSystemd, file).Encrypt(t.Context(), "a", 1, nil); err == nil {
		t.Error("it encrypts without a key")
	}
	if s.ring != nil {
		t.Fatal("keys were stored under none")
	}
	must(t, os.WriteFile(file, bytes.Repeat([]byte{7}, keySize), 0o400))
	encrypted := encrypt(t, open(t, s, SourceSystemd, file), "a", 1, "secret")
	decrypts(t, open(t, s, SourceSystemd, file), "a", 1, encrypted, "secret")
}

func TestKeyOfAPassphrase(t *testing.T) {
	t.Parallel()
	s := &kept{}
	r := open(t, s, SourcePassphrase, "")
	if _, err := r.Encrypt(t.Context(), "a", 1, nil); !errors.Is(err, ErrSealed) || !r.Sealed(t.Context()) {
		t.Errorf("before the first: %v", err)
	}
	typed := []byte("correct horse")
	if err := r.Unseal(t.Context(), typed); err != nil || !bytes.Equal(typed, make([]byte, len(typed))) {
		t.Fatalf("%v, %q is not wiped", err, typed)
	}
	encrypted := encrypt(t, r, "a", 1, "secret")
	again := open(t, s, SourcePassphrase, "")
	if err := again.Unseal(t.Context(), []byte("wrong horse")); !errors.Is(err, ErrPassphrase) || !again.Sealed(t.Context()) {
		t.Errorf("a wrong one: %v", err)
	}
	must(t, again.Unseal(t.Context(), []byte("correct horse")))
	decrypts(t, again, "a", 1, encrypted, "secret")
	if err := again.Rotate(t.Context(), nil, Rotation{Passphrase: []byte("wrong horse")}); !errors.Is(err, ErrPassphrase) {
		t.Errorf("new keys by a wrong one: %v", err)
	}
	if err := open(t, &kept{}, SourceFile, "").Unseal(t.Context(), []byte("x")); !errors.Is(err, ErrNoPassphrase) {
		t.Errorf("where there is none: %v", err)
	}
}

func TestRotate(t *testing.T) {
	t.Parallel()
	file, s := filepath.Join(t.TempDir(), File), &kept{}
	r := open(t, s, SourceFile, file)
	values := []store.CredentialVersion{{Name: "a", Version: 1, Value: encrypt(t, r, "a", 1, "one")}, {Name: "b", Version: 2, Value: encrypt(t, r, "b", 2, "two")}}
	s.fail = errors.New("the disk is full")
	if err := r.Rotate(t.Context(), values, Rotation{}); !errors.Is(err, s.fail) {
		t.Errorf("what is not stored: %v", err)
	}
	decrypts(t, r, "a", 1, values[0].Value, "one")
	s.fail = nil
	must(t, r.Rotate(t.Context(), values, Rotation{}))
	for _, ring := range []*Ring{r, open(t, s, SourceFile, file)} {
		decrypts(t, ring, "a", 1, s.values[0].Value, "one")
		decrypts(t, ring, "b", 2, s.values[1].Value, "two")
		if _, err := ring.Decrypt(t.Context(), "a", 1, values[0].Value); err == nil {
			t.Error("what was under the old key still opens")
		}
	}
}

// TestTheUpperKeyIsReplaced, from wherever it comes; whoever has the old one opens nothing any more.
func TestTheUpperKeyIsReplaced(t *testing.T) {
	t.Parallel()
	typed := func() []byte { return []byte("correct horse") }
	for source, c := range map[string]struct {
		how     func(file string) Rotation
		prepare func(file string) error
		after   func(file string) error
	}{
		SourceFile: {how: func(string) Rotation { return Rotation{Upper: true} }},
		SourceSystemd: {
			how:     func(string) Rotation { return Rotation{Upper: true} },
			prepare: func(file string) error { return os.WriteFile(file+next, bytes.Repeat([]byte{8}, keySize), 0o400) },
			after:   func(file string) error { return os.Rename(file+next, file) },
		},
		SourcePassphrase: {how: func(string) Rotation {
			return Rotation{Upper: true, Passphrase: typed(), Next: []byte("battery staple")}
		}},
	} {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			file, s := filepath.Join(t.TempDir(), Credential), &kept{}
			if source == SourceSystemd {
				must(t, os.WriteFile(file, bytes.Repeat([]byte{7}, keySize), 0o400))
			}
			r := open(t, s, source, file)
			if source == SourcePassphrase {
				must(t, r.Unseal(t.Context(), typed()))
			}
			values := []store.CredentialVersion{{Name: "a", Version: 1, Value: encrypt(t, r, "a", 1, "secret")}}
			if source != SourceFile {
				if err := r.Rotate(t.Context(), values, Rotation{Upper: true, Passphrase: typed()}); !errors.Is(err, ErrNoNext) {
					t.Errorf("without the next one: %v", err)
				}
			}
			if c.prepare != nil {
				must(t, c.prepare(file))
			}
			old, err := os.ReadFile(file)
			if err != nil && source != SourcePassphrase {
				t.Fatal(err)
			}
			must(t, r.Rotate(t.Context(), values, c.how(file)))
			decrypts(t, r, "a", 1, s.values[0].Value, "secret") // without a restart
			opened := func(file string, passphrase string) *Ring {
				r := open(t, s, source, file)
				if source == SourcePassphrase {
					if err := r.Unseal(t.Context(), []byte(passphrase)); err != nil && passphrase == "battery staple" {
						t.Fatal(err)
					}
				}
				return r
			}
			decrypts(t, opened(file, "battery staple"), "a", 1, s.values[0].Value, "secret")
			if c.after != nil {
				must(t, c.after(file))
			}
			decrypts(t, opened(file, "battery staple"), "a", 1, s.values[0].Value, "secret")
			if source == SourceFile {
				if _, err := os.Lstat(file + next); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the next key's file is left: %v", err)
				}
			}
			stale := filepath.Join(t.TempDir(), Credential)
			must(t, os.WriteFile(stale, old, 0o600))
			if ring := opened(stale, "correct horse"); !ring.Sealed(t.Context()) {
				t.Error("the old key opens what is stored")
			}
		})
	}
}

// TestTheUpperKeyIsReplacedOrNot: wherever a change of its file is cut off, one of the two files opens what is stored.
func TestTheUpperKeyIsReplacedOrNot(t *testing.T) {
	t.Parallel()
	dir, s := t.TempDir(), &kept{}
	file := filepath.Join(dir, File)
	r := open(t, s, SourceFile, file)
	values := []store.CredentialVersion{{Name: "a", Version: 1, Value: encrypt(t, r, "a", 1, "secret")}}
	old, err := os.ReadFile(file)
	must(t, err)
	// The store fails after the new file is there.
	s.fail = errors.New("killed")
	if err := r.Rotate(t.Context(), values, Rotation{Upper: true}); !errors.Is(err, s.fail) {
		t.Fatal(err)
	}
	s.fail = nil
	decrypts(t, open(t, s, SourceFile, file), "a", 1, values[0].Value, "secret")
	// It is stored, and the file has not taken its place.
	must(t, r.Rotate(t.Context(), values, Rotation{Upper: true}))
	must(t, errors.Join(os.Rename(file, file+next), os.WriteFile(file, old, 0o600)))
	decrypts(t, open(t, s, SourceFile, file), "a", 1, s.values[0].Value, "secret")
	if _, err := os.Lstat(file + next); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the next key's file did not take its place: %v", err)
	}
	decrypts(t, open(t, s, SourceFile, file), "a", 1, s.values[0].Value, "secret")
}

// TestAStoreThatFailsIsNotEmpty: no keys are made over those that cannot be read.
func TestAStoreThatFailsIsNotEmpty(t *testing.T) {
	t.Parallel()
	s := &kept{}
	first := open(t, s, SourcePassphrase, "")
	must(t, first.Unseal(t.Context(), []byte("correct horse")))
	made := s.ring
	s.down = errors.New("the disk is gone")
	if _, err := Open(t.Context(), Config{Store: s, Source: SourceFile, File: filepath.Join(t.TempDir(), File), Now: time.Now, Logger: platformtest.Logger()}); !errors.Is(err, s.down) {
		t.Errorf("opened: %v", err)
	}
	if err := first.Unseal(t.Context(), []byte("another")); !errors.Is(err, s.down) || s.ring != made {
		t.Errorf("unsealed: %v, new keys %t", err, s.ring != made)
	}
}

// TestWithoutKeys, nothing is decrypted; a rotation makes them, where no person has to hand in the upper one.
func TestWithoutKeys(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]error{SourceFile: nil, SourcePassphrase: ErrSealed} {
		r := open(t, &kept{}, source, filepath.Join(t.TempDir(), File))
		if _, err := r.Decrypt(t.Context(), "a", 1, nil); !errors.Is(err, ErrSealed) {
			t.Errorf("%s: decrypted: %v", source, err)
		}
		if err := r.Rotate(t.Context(), nil, Rotation{}); !errors.Is(err, want) || r.Made(t.Context()) != (want == nil) {
			t.Errorf("%s: rotated: %v", source, err)
		}
	}
}

// TestAFileIsNoPassphrase: a key that lies there opens nothing where a person is to be asked.
func TestAFileIsNoPassphrase(t *testing.T) {
	t.Parallel()
	file, s := filepath.Join(t.TempDir(), File), &kept{}
	encrypted := encrypt(t, open(t, s, SourceFile, file), "a", 1, "secret")
	r := open(t, s, SourcePassphrase, file)
	if plain, err := r.Decrypt(t.Context(), "a", 1, encrypted); !errors.Is(err, ErrSealed) || !r.Sealed(t.Context()) {
		t.Errorf("%q, %v", plain, err)
	}
}

// TestAKeyThatIsThereIsKept, and one of another length, or that nobody handed over, is none.
func TestAKeyThatIsThereIsKept(t *testing.T) {
	dir := t.TempDir()
	key := bytes.Repeat([]byte{7}, keySize)
	file, s := filepath.Join(dir, File), &kept{}
	must(t, os.WriteFile(file, key, 0o600))
	encrypt(t, open(t, s, SourceFile, file), "a", 1, "secret")
	if raw, err := os.ReadFile(file); err != nil || !bytes.Equal(raw, key) {
		t.Errorf("it was replaced: %v", err)
	}
	short := filepath.Join(dir, Credential)
	if err := os.WriteFile(short, key[:16], 0o600); err != nil { // AES would take it
		t.Fatal(err)
	}
	if _, err := open(t, &kept{}, SourceSystemd, short).Encrypt(t.Context(), "a", 1, nil); err == nil {
		t.Error("16 bytes are a key")
	}
	must(t, os.WriteFile(short, key, 0o600))
	t.Chdir(dir)
	r, err := Open(t.Context(), Config{Store: &kept{}, Source: SourceSystemd, Now: time.Now, Logger: platformtest.Logger(), Getenv: func(string) string { return "" }})
	must(t, err)
	if _, err := r.Encrypt(t.Context(), "a", 1, nil); err == nil {
		t.Error("a file of the working folder is systemd's credential")
	}
}

// TestTheNextKeysPlaceIsTaken: where what lies there cannot be removed, the upper key stays.
func TestTheNextKeysPlaceIsTaken(t *testing.T) {
	t.Parallel()
	file, s := filepath.Join(t.TempDir(), File), &kept{}
	r := open(t, s, SourceFile, file)
	encrypted := encrypt(t, r, "a", 1, "secret")
	must(t, os.MkdirAll(filepath.Join(file+next, "full"), 0o700))
	if err := r.Rotate(t.Context(), nil, Rotation{Upper: true}); !errors.Is(err, unix.ENOTEMPTY) {
		t.Errorf("rotated: %v", err)
	}
	decrypts(t, open(t, s, SourceFile, file), "a", 1, encrypted, "secret")
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
