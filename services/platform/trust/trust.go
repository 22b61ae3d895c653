// Package trust reads a process's trust/ folder: the roots that only a human (or the installer) writes and that no RPC
// changes. It is linked by every process, in every zone; it trusts the folder's owner and nothing inside a message.
//
//	ca.pem               the certificate authorities of the trust domain (PEM bundle)
//	grant_signers.yaml   the vault's grant-signing keys, each with its time: signers: [{kid, key, not_before, not_after}]
//	allowed_signers      operators' signing keys, in OpenSSH's ALLOWED_SIGNERS format
//	log_keys             audit's checkpoint keys, one sumdb/note verifier key a line
//	witnesses.yaml       optional: witnesses of the log, how many of them have to agree, and whether changes wait for them
//	revoked.yaml         identities that are no longer let in: revoked: [spiffe://TRUST_DOMAIN/ROLE/INSTANCE, …]
//
// The folder is read again whenever a file changes. A change that does not parse is not adopted: the last good snapshot
// stays in force, and Err says what is wrong.
package trust

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/mod/sumdb/note"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/filewatch"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/security/ownership"
)

// Names of the files in the folder.
const (
	FileCA             = "ca.pem"
	FileGrantSigners   = "grant_signers.yaml"
	FileAllowedSigners = "allowed_signers"
	FileLogKeys        = "log_keys"
	FileWitnesses      = "witnesses.yaml"
	FileRevoked        = "revoked.yaml"
)

// maxFile bounds each file: trust is a handful of keys.
const maxFile = 1 << 20

// GrantSigner is one of the vault's signing keys. The next key is everywhere before it signs.
type GrantSigner struct {
	KID       string
	Key       ed25519.PublicKey
	NotBefore time.Time
	NotAfter  time.Time
}

// Snapshot is one consistent reading of the folder. It is immutable and safe for concurrent use.
type Snapshot struct {
	Bundle         []*x509.Certificate
	GrantSigners   []GrantSigner
	AllowedSigners *AllowedSigners
	LogKeys        []note.Verifier
	// Witnesses are those of the log; none where the folder names none.
	Witnesses logproof.Witnesses
	revoked   map[string]struct{}
}

// ErrUnknownKey is returned for a kid that is not trusted, or not at that time.
var ErrUnknownKey = errors.New("the signing key is not trusted now")

// GrantKey returns the grant-signing key with that kid, if it is trusted at now.
func (s *Snapshot) GrantKey(kid string, now time.Time) (ed25519.PublicKey, error) {
	if g := s.GrantSigner(kid); !now.Before(g.NotBefore) && now.Before(g.NotAfter) {
		return g.Key, nil
	}
	return nil, ErrUnknownKey
}

// GrantSigner returns the grant-signing key with that kid, whenever it is trusted; zero for one that the folder does not name.
func (s *Snapshot) GrantSigner(kid string) (signer GrantSigner) {
	if i := slices.IndexFunc(s.GrantSigners, func(g GrantSigner) bool { return g.KID == kid }); i >= 0 {
		signer = s.GrantSigners[i]
	}
	return signer
}

// Revoked reports whether the identity (a SPIFFE ID) is no longer let in.
func (s *Snapshot) Revoked(identity string) bool {
	_, ok := s.revoked[identity]
	return ok
}

// Verifier returns the log keys as sumdb/note wants them.
func (s *Snapshot) Verifier() note.Verifiers { return note.VerifierList(s.LogKeys...) }

// Folder watches one trust folder.
type Folder struct {
	dir     string
	foreign *ownership.Foreign
	current atomic.Pointer[Snapshot]
	watch   *filewatch.Watcher
}

// ReadLogKeys reads the log_keys of a trust folder, and nothing else of it.
func ReadLogKeys(dir string) ([]note.Verifier, error) { return read(dir, FileLogKeys, parseLogKeys) }

// ReadGrantSigners reads the grant_signers.yaml of a trust folder, and nothing else of it. There is at least one.
func ReadGrantSigners(dir string) ([]GrantSigner, error) {
	return read(dir, FileGrantSigners, parseGrantSigners)
}

// ReadWitnesses reads the witnesses.yaml of a trust folder, and nothing else of it. Without the file there are no witnesses.
func ReadWitnesses(dir string) (logproof.Witnesses, error) {
	return optional(read(dir, FileWitnesses, parseWitnesses))
}

func parseWitnesses(raw []byte) (w logproof.Witnesses, err error) {
	var doc struct {
		// Witnesses are public keys of the type cosignature/v1, NAME+HASH+KEY.
		Witnesses []string `yaml:"witnesses"`
		// Quorum is how many of them must have cosigned a checkpoint.
		Quorum int `yaml:"quorum"`
		// RequiredWithin refuses changes unless a quorum cosigned within that time, "10m". Empty: changes do not wait for witnesses.
		RequiredWithin string `yaml:"required_within"`
	}
	if err := parse(FileWitnesses, raw, &doc); err != nil {
		return logproof.Witnesses{}, err
	}
	w.Quorum = doc.Quorum
	for i, vkey := range doc.Witnesses {
		key, err := logproof.ParseWitness(vkey)
		if err != nil {
			return logproof.Witnesses{}, fmt.Errorf("witnesses[%d]: %w", i, err)
		}
		w.Keys = append(w.Keys, key)
	}
	if doc.RequiredWithin != "" {
		if w.Within, err = time.ParseDuration(doc.RequiredWithin); err != nil {
			return logproof.Witnesses{}, errors.New("required_within: is not a duration, like 10m")
		}
	}
	if len(w.Keys) == 0 {
		return logproof.Witnesses{}, errors.New("names no witness: remove the file, if there is to be none")
	}
	return w, w.Validate()
}

// Open reads the folder and watches it until Close. A folder that does not parse is an error: there is no way to start
// without roots of trust.
func Open(dir string) (*Folder, error) { return OpenGuarded(dir, nil) }

// OpenGuarded is Open of a folder that a Unix user, the gateway's, may neither own nor write, also later; nil: nobody is looked at.
func OpenGuarded(dir string, foreign *ownership.Foreign) (*Folder, error) {
	f := &Folder{dir: dir, foreign: foreign}
	var paths []string
	for _, name := range []string{FileCA, FileGrantSigners, FileAllowedSigners, FileLogKeys, FileWitnesses, FileRevoked} {
		paths = append(paths, filepath.Join(dir, name))
	}
	var err error
	if f.watch, err = filewatch.Open(filewatch.Paths(paths...), f.load); err != nil {
		return nil, err
	}
	return f, nil
}

// Current returns the newest good snapshot.
func (f *Folder) Current() *Snapshot { return f.current.Load() }

// Err returns what is wrong with the folder as it is now, or nil.
func (f *Folder) Err() error { return f.watch.Err() }

// GrantKey returns a grant-signing key of the newest good snapshot; it makes a Folder a grant.Keys.
func (f *Folder) GrantKey(kid string, now time.Time) (ed25519.PublicKey, error) {
	return f.Current().GrantKey(kid, now)
}

// Reload reads the folder now instead of within a second.
func (f *Folder) Reload() error { return f.watch.Reload() }

// Close stops watching. The last snapshot stays readable.
func (f *Folder) Close() { f.watch.Close() }

func (f *Folder) load() error {
	if err := f.foreign.Refuse(f.dir); err != nil {
		return fmt.Errorf("trust folder: %w", err)
	}
	snapshot, err := Read(f.dir)
	if err != nil {
		return err
	}
	f.current.Store(snapshot)
	return nil
}

// Read reads a trust folder once.
func Read(dir string) (*Snapshot, error) {
	s := &Snapshot{}
	var err error
	if s.Bundle, err = read(dir, FileCA, parseBundle); err != nil {
		return nil, err
	}
	if s.GrantSigners, err = ReadGrantSigners(dir); err != nil {
		return nil, err
	}
	if s.AllowedSigners, err = ReadAllowedSigners(dir); err != nil {
		return nil, err
	}
	if s.LogKeys, err = ReadLogKeys(dir); err != nil {
		return nil, err
	}
	if s.Witnesses, err = ReadWitnesses(dir); err != nil {
		return nil, err
	}
	if s.revoked, err = optional(read(dir, FileRevoked, parseRevoked)); err != nil {
		return nil, err
	}
	return s, nil
}

func parseRevoked(raw []byte) (map[string]struct{}, error) {
	var doc struct {
		Revoked []string `yaml:"revoked"`
	}
	if err := parse(FileRevoked, raw, &doc); err != nil {
		return nil, err
	}
	revoked := map[string]struct{}{}
	for i, id := range doc.Revoked {
		if !isIdentity(id) {
			return nil, fmt.Errorf("revoked[%d]: %q is not an identity of the form spiffe://TRUST_DOMAIN/ROLE/INSTANCE", i, id)
		}
		revoked[id] = struct{}{}
	}
	return revoked, nil
}

var instancePattern = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)

// isIdentity reports whether s is an identity in the one spelling that package identity (which imports this one) has for
// it. An entry in any other spelling would revoke nobody.
func isIdentity(s string) bool {
	id, err := spiffeid.FromString(s)
	if err != nil || id.String() != s || len(id.TrustDomain().Name()) > 255 {
		return false
	}
	role, instance, ok := strings.Cut(strings.TrimPrefix(id.Path(), "/"), "/")
	known := optionsv1.Role_value["ROLE_"+strings.ToUpper(role)] != int32(optionsv1.Role_ROLE_UNSPECIFIED)
	return ok && known && role == strings.ToLower(role) && instancePattern().MatchString(instance)
}

// read reads one file of the folder, and returns what parse makes of it.
func read[T any](dir, name string, parse func([]byte) (T, error)) (out T, err error) {
	raw, err := readFile(dir, name)
	if err != nil {
		return out, err
	}
	if out, err = parse(raw); err != nil {
		err = fmt.Errorf("trust file %s: %w", name, err)
	}
	return out, err
}

// optional is what read returned of a file that need not be there.
func optional[T any](out T, err error) (T, error) {
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return out, err
}

func readFile(dir, name string) (raw []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("trust file %s: %w", name, err)
		}
	}()
	path := filepath.Join(dir, name)
	if err := ownership.Own(path); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, errors.New("larger than 1 MB")
	}
	return io.ReadAll(f)
}

// parse reads a YAML file of the folder; one of comments alone says nothing.
func parse(name string, b []byte, into any) error {
	if config.Blank(b) {
		return nil
	}
	return config.Parse(name, b, into)
}

func parseBundle(b []byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("holds a %q block; only certificates belong here", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		if !cert.IsCA {
			return nil, errors.New("holds a certificate that is not an authority's")
		}
		out = append(out, cert)
	}
	if len(out) == 0 {
		return nil, errors.New("holds no certificate")
	}
	return out, nil
}

// grantSignersFile is grant_signers.yaml.
type grantSignersFile struct {
	Signers []struct {
		KID       string `yaml:"kid"`
		Key       string `yaml:"key"`
		NotBefore string `yaml:"not_before"`
		NotAfter  string `yaml:"not_after"`
	} `yaml:"signers"`
}

func parseGrantSigners(b []byte) ([]GrantSigner, error) {
	var doc grantSignersFile
	if err := parse(FileGrantSigners, b, &doc); err != nil {
		return nil, err
	}
	var out []GrantSigner
	for _, s := range doc.Signers {
		key, err := base64.StdEncoding.DecodeString(s.Key)
		if err != nil || len(key) != ed25519.PublicKeySize {
			return nil, fmt.Errorf("signer %q: key is not a base64 Ed25519 public key", s.KID)
		}
		from, err := time.Parse(time.RFC3339, s.NotBefore)
		if err != nil {
			return nil, fmt.Errorf("signer %q: not_before is not an RFC 3339 time", s.KID)
		}
		until, err := time.Parse(time.RFC3339, s.NotAfter)
		if err != nil {
			return nil, fmt.Errorf("signer %q: not_after is not an RFC 3339 time", s.KID)
		}
		if s.KID == "" || slices.ContainsFunc(out, func(g GrantSigner) bool { return g.KID == s.KID }) {
			return nil, fmt.Errorf("signer %q: kid is empty or used twice", s.KID)
		}
		out = append(out, GrantSigner{KID: s.KID, Key: key, NotBefore: from, NotAfter: until})
	}
	if len(out) == 0 {
		return nil, errors.New("names no signer")
	}
	return out, nil
}

// FormatGrantSigners writes grant_signers.yaml.
func FormatGrantSigners(signers []GrantSigner) []byte {
	var b bytes.Buffer
	b.WriteString("# The vault's grant-signing keys. A new key stands here, everywhere, before it signs.\nsigners:\n")
	for _, s := range signers {
		fmt.Fprintf(&b, "  - kid: %q\n    key: %s\n    not_before: %q\n    not_after: %q\n", s.KID,
			base64.StdEncoding.EncodeToString(s.Key), s.NotBefore.UTC().Format(time.RFC3339), s.NotAfter.UTC().Format(time.RFC3339))
	}
	return b.Bytes()
}

func parseLogKeys(b []byte) ([]note.Verifier, error) {
	var out []note.Verifier
	for line := range Lines(b) {
		v, err := note.NewVerifier(line)
		if err != nil {
			return nil, fmt.Errorf("not a verifier key: %w", err)
		}
		out = append(out, v)
	}
	if len(out) == 0 {
		return nil, errors.New("names no key")
	}
	return out, nil
}

// Lines are the lines of a trust file that are neither empty nor comments.
func Lines(b []byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.Lines(string(b)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") && !yield(line) {
				return
			}
		}
	}
}
