// Package keyring encrypts stored credentials: each under a data key (Tink, AES-256-GCM, bound to its name and version), and the data
// keys under a key that comes from a file, from systemd, or from a passphrase that an operator types. Until that key was there once, the
// ring is sealed: nothing is encrypted or decrypted, what needs neither goes on.
//
// It runs in the vault. The upper key is in locked memory that no dump holds, and only while the data keys are opened; the data keys
// stay in the heap, where Go may copy them.
package keyring

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/aead/subtle"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/tink"
	"golang.org/x/crypto/argon2"
	"golang.org/x/sys/unix"

	"durward.internal/services/platform/durable"
	"durward.internal/services/platform/keyfile"
	"durward.internal/services/vault/internal/store"
)

// Where the upper key comes from.
const (
	SourceFile       = "file"
	SourceSystemd    = "systemd"
	SourcePassphrase = "passphrase"
)

// Credential is the name of the systemd credential (LoadCredentialEncrypted=) with SourceSystemd.
const Credential = "durward-credentials" // #nosec G101 -- a name

// next is at the end of the name of the upper key that takes the place of the present one.
const next = "-next"

// File is the upper key's file in the state folder, with SourceFile, and NextFile that of the one that takes its place, while it does: either
// may be the one that opens what is stored.
const (
	File     = "credentials.key"
	NextFile = File + next
)

const (
	keySize, saltSize = 32, 16
	// Argon2id as RFC 9106's second choice, with two lanes: a third of a second and 64 MiB.
	argonTime, argonMemory, argonLanes = 3, 64 << 10, 2
)

// associated binds the data keys to their purpose.
var associated = []byte("durward.keyring.v1")

// What a caller can do something about.
var (
	ErrSealed     = errors.New("the stored credentials are sealed")
	ErrPassphrase = errors.New("the passphrase is not the one that the credentials' keys are kept under")
	// ErrNoPassphrase: the upper key is made of none.
	ErrNoPassphrase = errors.New("the key above the credentials' keys is not made of a passphrase")
	// ErrNoNext: the key that is to be the upper one is not there.
	ErrNoNext = errors.New("the next key above the credentials' keys is missing")
)

// Store keeps the wrapped data keys; store.Store is one.
type Store interface {
	Keyring(ctx context.Context) (*store.Keyring, error)
	SetKeyring(ctx context.Context, k store.Keyring, values []store.CredentialVersion) error
}

// Config is what a Ring needs.
type Config struct {
	Store Store
	// Source is one of the Source words, File the key's file with SourceFile.
	Source, File string
	// Getenv finds systemd's folder.
	Getenv func(string) string
	Now    func() time.Time
	Logger *slog.Logger
}

// Ring holds the data keys. It is safe for concurrent use.
type Ring struct {
	cfg    Config
	mu     sync.Mutex
	handle *keyset.Handle // nil: sealed
	aead   tink.AEAD
	// salt and wrapped are as they are stored: another vault on the same database may have made new keys.
	salt, wrapped []byte
}

// Open opens the ring, where the upper key is there. It fails where the store does; without its key the ring stays sealed, and the log
// says why.
func Open(ctx context.Context, cfg Config) (*Ring, error) {
	r := &Ring{cfg: cfg}
	if cfg.Source == SourcePassphrase {
		return r, nil
	}
	if err := r.current(ctx); err != nil && !errors.Is(err, ErrSealed) {
		return nil, err
	} else if err != nil {
		cfg.Logger.Error("the stored credentials are sealed: their key cannot be had", "source", cfg.Source, "error", err)
	}
	return r, nil
}

// current opens the data keys that are stored now, where those in memory are others and no person has to hand in the key above them.
// Errors: the store's, ErrSealed.
func (r *Ring) current(ctx context.Context) error {
	kept, err := r.cfg.Store.Keyring(ctx)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil // there is nothing to open: the first value makes the keys
	case err != nil:
		return err
	case r.aead != nil && bytes.Equal(kept.Wrapped, r.wrapped):
		return nil
	}
	r.handle, r.aead = nil, nil
	if r.cfg.Source == SourcePassphrase {
		return ErrSealed
	}
	if err := r.withKept(kept, func([]byte) error { return nil }); err != nil {
		return fmt.Errorf("%w: %w", ErrSealed, err)
	}
	return nil
}

// Source is where the upper key comes from.
func (r *Ring) Source() string { return r.cfg.Source }

// Sealed reports whether nothing can be encrypted or decrypted now.
func (r *Ring) Sealed(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.current(ctx)
	return err != nil || r.aead == nil && r.cfg.Source == SourcePassphrase
}

// Made reports whether there are data keys, whether or not they are in memory.
func (r *Ring) Made(ctx context.Context) bool {
	_, err := r.cfg.Store.Keyring(ctx)
	return err == nil
}

// Unseal opens the ring with a passphrase, or makes its keys under the first. It wipes the passphrase.
func (r *Ring) Unseal(ctx context.Context, passphrase []byte) error {
	defer clear(passphrase)
	if r.cfg.Source != SourcePassphrase {
		return ErrNoPassphrase
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	kept, err := r.cfg.Store.Keyring(ctx)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	salt := make([]byte, saltSize)
	if kept != nil {
		salt = kept.Salt
	} else if _, err := rand.Read(salt); err != nil {
		return err
	}
	return locked(derive(passphrase, salt), func(key []byte) error {
		if kept == nil {
			return r.make(ctx, key, salt)
		}
		if err := r.unwrap(kept, key); err != nil {
			return ErrPassphrase
		}
		return nil
	})
}

// Encrypt encrypts one value of a credential. The first makes the keys, where no person has to hand in the upper one.
func (r *Ring) Encrypt(ctx context.Context, name string, version uint32, value []byte) ([]byte, error) {
	if err := r.begin(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.aead == nil {
		return nil, ErrSealed
	}
	return r.aead.Encrypt(value, about(name, version))
}

// Decrypt decrypts it. The caller clears what it returns.
func (r *Ring) Decrypt(ctx context.Context, name string, version uint32, value []byte) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.current(ctx); err != nil {
		return nil, err
	}
	if r.aead == nil {
		return nil, ErrSealed
	}
	return r.aead.Decrypt(value, about(name, version))
}

// Rotation is how keys are replaced.
type Rotation struct {
	// Passphrase is the present one, where the upper key is made of one. It is wiped.
	Passphrase []byte
	// Upper: the upper key is replaced too, by a file that is made here, by the credential durward-credentials-next of systemd's, or by
	// what is made of Next, which is wiped.
	Upper bool
	Next  []byte
}

// Rotate makes a new data key and encrypts every value anew. Nothing is under the old one when it returns. What is decrypted meanwhile
// is decrypted before or after. Where there are no keys yet, it makes them.
func (r *Ring) Rotate(ctx context.Context, values []store.CredentialVersion, how Rotation) error {
	defer clear(how.Passphrase)
	defer clear(how.Next)
	if err := r.begin(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.aead == nil {
		return ErrSealed
	}
	return r.above(ctx, how, func(key, salt []byte) error {
		handle, err := keyset.NewHandle(aead.AES256GCMKeyTemplate())
		if err != nil {
			return err
		}
		fresh, err := aead.New(handle)
		if err != nil {
			return err
		}
		again := make([]store.CredentialVersion, len(values))
		for i, v := range values {
			plain, err := r.aead.Decrypt(v.Value, about(v.Name, v.Version))
			if err != nil {
				return fmt.Errorf("%s, version %d: %w", v.Name, v.Version, err)
			}
			again[i] = v
			again[i].Value, err = fresh.Encrypt(plain, about(v.Name, v.Version))
			clear(plain)
			if err != nil {
				return err
			}
		}
		return r.keep(ctx, handle, fresh, key, salt, again)
	})
}

// begin makes the keys, where there are none yet.
func (r *Ring) begin(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.current(ctx); err != nil || r.aead != nil || r.cfg.Source == SourcePassphrase {
		return err
	}
	if r.cfg.Source == SourceFile {
		if err := makeFile(r.cfg.File); err != nil {
			return err
		}
	}
	return r.withKey(func(key []byte) error { return r.make(ctx, key, nil) })
}

func (r *Ring) make(ctx context.Context, key, salt []byte) error {
	handle, err := keyset.NewHandle(aead.AES256GCMKeyTemplate())
	if err != nil {
		return err
	}
	one, err := aead.New(handle)
	if err != nil {
		return err
	}
	return r.keep(ctx, handle, one, key, salt, nil)
}

// keep wraps data keys, stores them and takes them into use.
func (r *Ring) keep(ctx context.Context, handle *keyset.Handle, one tink.AEAD, key, salt []byte, values []store.CredentialVersion) error {
	above, err := subtle.NewAESGCM(key)
	if err != nil {
		return err
	}
	var wrapped bytes.Buffer
	if err := handle.WriteWithAssociatedData(keyset.NewBinaryWriter(&wrapped), above, associated); err != nil {
		return err
	}
	if err := r.cfg.Store.SetKeyring(ctx, store.Keyring{Wrapped: wrapped.Bytes(), Salt: salt, ChangedAt: r.cfg.Now()}, values); err != nil {
		return err
	}
	r.handle, r.aead, r.salt, r.wrapped = handle, one, salt, wrapped.Bytes()
	return nil
}

func (r *Ring) unwrap(kept *store.Keyring, key []byte) error {
	above, err := subtle.NewAESGCM(key)
	if err != nil {
		return err
	}
	handle, err := keyset.ReadWithAssociatedData(keyset.NewBinaryReader(bytes.NewReader(kept.Wrapped)), above, associated)
	if err != nil {
		return err
	}
	one, err := aead.New(handle)
	if err != nil {
		return err
	}
	r.handle, r.aead, r.salt, r.wrapped = handle, one, kept.Salt, kept.Wrapped
	return nil
}

// above runs f with the key above the data keys that are to be, and its salt: the present one, read again or made of the passphrase again,
// or the one that takes its place.
func (r *Ring) above(ctx context.Context, how Rotation, f func(key, salt []byte) error) error {
	kept, err := r.cfg.Store.Keyring(ctx)
	if err != nil {
		return err
	}
	present := func(f func(key []byte) error) error { return r.withKept(kept, f) }
	if r.cfg.Source == SourcePassphrase {
		present = func(f func(key []byte) error) error {
			return locked(derive(how.Passphrase, kept.Salt), func(key []byte) error {
				if err := r.unwrap(kept, key); err != nil {
					return ErrPassphrase
				}
				return f(key)
			})
		}
	}
	if !how.Upper {
		return present(func(key []byte) error { return f(key, kept.Salt) })
	}
	if err := present(func([]byte) error { return nil }); err != nil {
		return err
	}
	switch r.cfg.Source {
	case SourcePassphrase:
		if len(how.Next) == 0 {
			return ErrNoNext
		}
		salt := make([]byte, saltSize)
		if _, err := rand.Read(salt); err != nil {
			return err
		}
		return locked(derive(how.Next, salt), func(key []byte) error { return f(key, salt) })
	case SourceSystemd:
		if _, err := os.Lstat(r.file() + next); err != nil {
			return fmt.Errorf("%w: LoadCredentialEncrypted=%s%s", ErrNoNext, Credential, next)
		}
		return withFile(r.file()+next, func(key []byte) error { return f(key, nil) })
	}
	// The new file is there before anything is under it, and takes the old one's place after: whenever this ends, one of the two opens.
	if err := os.Remove(r.file() + next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeFile(r.file() + next); err != nil {
		return err
	}
	if err := withFile(r.file()+next, func(key []byte) error { return f(key, nil) }); err != nil {
		return err
	}
	return replaceFile(r.file()+next, r.file())
}

// derive makes a key of a passphrase.
func derive(passphrase, salt []byte) []byte {
	return argon2.IDKey(passphrase, salt, argonTime, argonMemory, argonLanes, keySize)
}

// file is where the upper key lies, where no person has to be asked.
func (r *Ring) file() string {
	if r.cfg.Source == SourceSystemd {
		return filepath.Join(r.cfg.Getenv("CREDENTIALS_DIRECTORY"), Credential)
	}
	return r.cfg.File
}

// withKept opens the data keys that are stored and runs f with the key above them. Where the present key does not open them the next one
// may: it took its place, and this process, or the host, ended before its file did.
func (r *Ring) withKept(kept *store.Keyring, f func(key []byte) error) error {
	opens := func(key []byte) error {
		if err := r.unwrap(kept, key); err != nil {
			return err
		}
		return f(key)
	}
	err := r.withKey(opens)
	if err == nil {
		return nil
	}
	if _, missing := os.Lstat(r.file() + next); missing != nil || withFile(r.file()+next, opens) != nil {
		return err
	}
	if r.cfg.Source == SourceFile {
		return replaceFile(r.file()+next, r.file())
	}
	return nil
}

// withKey runs f with the upper key, in locked memory.
func (r *Ring) withKey(f func(key []byte) error) error {
	if r.cfg.Source == SourceSystemd && r.cfg.Getenv("CREDENTIALS_DIRECTORY") == "" {
		return errors.New("systemd handed over no credentials: LoadCredentialEncrypted=" + Credential + " is missing from the unit")
	}
	return withFile(r.file(), f)
}

func withFile(path string, f func(key []byte) error) error {
	raw, err := keyfile.Read(path)
	if err != nil {
		return err
	}
	if len(raw) != keySize {
		clear(raw)
		return fmt.Errorf("%s holds %d bytes, and the key has %d", path, len(raw), keySize)
	}
	return locked(raw, f)
}

// locked runs f with a copy of a key in memory that is neither paged out nor dumped, and wipes both.
func locked(raw []byte, f func(key []byte) error) error {
	defer clear(raw)
	key, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer func() { clear(key); _ = unix.Munmap(key) }()
	if err := errors.Join(unix.Mlock(key), unix.Madvise(key, unix.MADV_DONTDUMP)); err != nil {
		return fmt.Errorf("lock the key's memory: %w", err)
	}
	return f(key[:copy(key, raw)])
}

// makeFile makes the upper key, unless it is there.
func makeFile(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	key := make([]byte, keySize)
	defer clear(key)
	if _, err = rand.Read(key); err == nil {
		_, err = f.Write(key)
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return replaceFile(path+".new", path)
}

// replaceFile puts a file in another's place, durably.
func replaceFile(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return durable.Sync(filepath.Dir(to))
}

// about binds a value to its place: one that is moved to another row does not open.
func about(name string, version uint32) []byte {
	return []byte("durward.credential.v1\x00" + name + "\x00" + strconv.FormatUint(uint64(version), 10))
}
