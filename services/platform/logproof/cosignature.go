package logproof

import (
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/note"
)

// A witness is somebody else's program that saw each checkpoint of a log extend the one before, and says so with a cosignature: C2SP's
// cosignature/v1 (https://c2sp.org/tlog-cosignature), an Ed25519 signature with a time. Whoever stole the log's key cannot make one.
// The format is implemented here, and tested against another implementation, because the library for it would link an HTTP
// client into every process.

// algCosignature is the signature type of cosignature/v1 in a key (https://c2sp.org/signed-note).
const algCosignature = 4

// maxWitnesses bounds what a human configures, and with it a note.
const maxWitnesses = 32

// Witness is a witness's public key. It is a note.Verifier.
type Witness struct {
	name string
	hash uint32
	key  ed25519.PublicKey
}

// ParseWitness reads a key as signed notes write it, NAME+HASH+KEY, of the type cosignature/v1.
func ParseWitness(vkey string) (*Witness, error) {
	name, rest, _ := strings.Cut(vkey, "+")
	_, key64, _ := strings.Cut(rest, "+")
	key, err := base64.StdEncoding.Strict().DecodeString(key64)
	if err != nil || !validName(name) || len(key) == 0 {
		return nil, errors.New("is not a witness's public key (NAME+HASH+KEY)")
	}
	if key[0] != algCosignature || len(key) != 1+ed25519.PublicKeySize {
		return nil, errors.New("is not a key for cosignatures (cosignature/v1, Ed25519): a log's own key is none")
	}
	w := NewWitness(name, key[1:])
	if vkey != w.String() {
		return nil, errors.New("is a public key whose hash is another's, or in another spelling")
	}
	return w, nil
}

// NewWitness returns the witness of that name and key.
func NewWitness(name string, key ed25519.PublicKey) *Witness {
	sum := sha256.Sum256(slices.Concat([]byte(name+"\n"), []byte{algCosignature}, key))
	return &Witness{name: name, hash: binary.BigEndian.Uint32(sum[:]), key: key}
}

// validName reports whether a key may have that name (https://c2sp.org/signed-note).
func validName(name string) bool {
	return name != "" && utf8.ValidString(name) && strings.IndexFunc(name, unicode.IsSpace) < 0 && !strings.Contains(name, "+")
}

// Name and KeyHash implement note.Verifier.
func (w *Witness) Name() string    { return w.name }
func (w *Witness) KeyHash() uint32 { return w.hash }

// String is the key as signed notes write it.
func (w *Witness) String() string {
	return fmt.Sprintf("%s+%08x+%s", w.name, w.hash, base64.StdEncoding.EncodeToString(append([]byte{algCosignature}, w.key...)))
}

// Verify implements note.Verifier: sig is the time and the signature.
func (w *Witness) Verify(text, sig []byte) bool {
	at, ok := cosignedAt(sig)
	return ok && ed25519.Verify(w.key, cosigned(at, text), sig[8:])
}

func cosignedAt(sig []byte) (uint64, bool) {
	if len(sig) != 8+ed25519.SignatureSize {
		return 0, false
	}
	at := binary.BigEndian.Uint64(sig)
	return at, at <= math.MaxInt64
}

// cosigned is what a witness signs.
func cosigned(at uint64, text []byte) []byte {
	return append([]byte("cosignature/v1\ntime "+strconv.FormatUint(at, 10)+"\n"), text...)
}

// Cosigner cosigns. It is a note.Signer, and safe for concurrent use if its clock is.
type Cosigner struct {
	*Witness
	key ed25519.PrivateKey
	now func() time.Time
}

// NewCosigner returns the witness of that name with its key.
func NewCosigner(name string, key ed25519.PrivateKey, now func() time.Time) (*Cosigner, error) {
	if len(key) != ed25519.PrivateKeySize || !validName(name) {
		return nil, errors.New("a witness needs an Ed25519 key and a name without spaces and plus signs")
	}
	return &Cosigner{Witness: NewWitness(name, ed25519.PublicKey(key[ed25519.SeedSize:])), key: key, now: now}, nil
}

// A witness's key file holds one line, PRIVATE+KEY+NAME+SEED: the name of the witness and the seed of its Ed25519 key in base64.
const cosignerPrefix = "PRIVATE+KEY+"

// FormatCosigner is the content of a witness's key file.
func FormatCosigner(name string, key ed25519.PrivateKey) string {
	return cosignerPrefix + name + "+" + base64.StdEncoding.EncodeToString(key.Seed()) + "\n"
}

// ParseCosigner reads the content of a witness's key file. Its errors do not repeat the key.
func ParseCosigner(text string, now func() time.Time) (*Cosigner, error) {
	rest, found := strings.CutPrefix(strings.TrimSuffix(text, "\n"), cosignerPrefix)
	name, seed64, two := strings.Cut(rest, "+")
	seed, err := base64.StdEncoding.Strict().DecodeString(seed64)
	if !found || !two || err != nil || len(seed) != ed25519.SeedSize {
		return nil, errors.New("this is no witness's key: make one with auditwitness -new-key NAME")
	}
	return NewCosigner(name, ed25519.NewKeyFromSeed(seed), now)
}

// Sign implements note.Signer. text is a checkpoint's: whoever cosigns says that it extends each that was cosigned before.
func (c *Cosigner) Sign(text []byte) ([]byte, error) {
	if _, err := parseCheckpoint(string(text)); err != nil {
		return nil, err
	}
	at := uint64(max(c.now().Unix(), 0))
	return append(binary.BigEndian.AppendUint64(nil, at), ed25519.Sign(c.key, cosigned(at, text))...), nil
}

// Witnesses are those whose word a verifier takes, and how many of them it wants. Each verifier has its own, in its trust folder. The
// zero value wants nobody's.
type Witnesses struct {
	Keys []*Witness
	// Quorum is how many of them must have cosigned a checkpoint; 0: there are no witnesses.
	Quorum int
	// Within: a change is refused unless a quorum has cosigned a checkpoint within that time. 0: changes do not wait for witnesses.
	Within time.Duration
}

// Validate checks what a human wrote.
func (w Witnesses) Validate() error {
	switch {
	case len(w.Keys) == 0 && w.Quorum == 0 && w.Within == 0:
		return nil
	case len(w.Keys) > maxWitnesses:
		return fmt.Errorf("names more than %d witnesses", maxWitnesses)
	case w.Quorum < 1 || w.Quorum > len(w.Keys):
		return fmt.Errorf("quorum: must be 1 to %d, the number of witnesses", len(w.Keys))
	case w.Within != 0 && (w.Within < time.Minute || w.Within > 30*24*time.Hour):
		return errors.New("required_within: must be 1m to 720h; leave it out, and changes do not wait for witnesses")
	}
	for i, key := range w.Keys {
		for _, other := range w.Keys[:i] {
			// One witness under two names, or two keys under one name, would count twice.
			if other.name == key.name || other.key.Equal(key.key) {
				return fmt.Errorf("witness %s stands there twice", key.name)
			}
		}
	}
	return nil
}

// ErrQuorum means that fewer witnesses than a verifier wants have cosigned a checkpoint.
var ErrQuorum = errors.New("fewer witnesses than the quorum cosigned the checkpoint")

// ErrFuture means that a cosignature is dated later than now: the clock of its witness is ahead, or the one here is behind.
var ErrFuture = errors.New("a witness's clock is ahead, or the one here is behind")

// Skew is how far a witness's clock may be ahead. A cosignature from later would be fresh for as long as its date lies ahead.
const Skew = 5 * time.Minute

// Witnessed is a checkpoint with a quorum's cosignatures.
type Witnessed struct {
	Checkpoint
	// Signed is the note as it came, with every signature.
	Signed []byte
	// By are the witnesses whose cosignatures count, and At is since when there is a quorum of them: the oldest of the newest.
	By []string
	At time.Time
}

// OpenWitnessed opens a checkpoint that one of the log's keys signed and a quorum of the witnesses cosigned. Errors: ErrQuorum, which
// says nothing against the log, and those of OpenCheckpoint. A cosignature from within Skew ahead counts as one of now, and one from later
// counts for nothing: where a quorum lacks it, the error is also ErrFuture.
func (w Witnesses) OpenWitnessed(b []byte, keys []note.Verifier, now time.Time) (Witnessed, error) {
	c, err := OpenCheckpoint(b, keys)
	if err != nil {
		return Witnessed{}, err
	}
	by, err := w.cosignatures(b)
	if err != nil {
		return Witnessed{}, err
	}
	all := len(by)
	by = slices.DeleteFunc(by, func(sig cosignature) bool { return sig.ahead(now) })
	switch {
	case w.Quorum > 0 && len(by) < w.Quorum && all >= w.Quorum:
		return Witnessed{}, fmt.Errorf("%w: %w", ErrQuorum, ErrFuture)
	case w.Quorum < 1 || len(by) < w.Quorum:
		return Witnessed{}, fmt.Errorf("%w: %d of %d, and %d are wanted", ErrQuorum, len(by), len(w.Keys), w.Quorum)
	}
	out := Witnessed{Checkpoint: c, Signed: slices.Clone(b)}
	slices.SortStableFunc(by, func(a, b cosignature) int { return cmp.Compare(b.at, a.at) })
	for _, sig := range by {
		out.By = append(out.By, sig.by)
	}
	out.At = by[w.Quorum-1].time()
	if out.At.After(now) {
		out.At = now
	}
	return out, nil
}

// By returns the name of the witness among w that made a signature line ("— NAME BASE64") for the checkpoint, and "" for nobody's. Error:
// ErrFuture, for one that does not count at now.
func (w Witnesses) By(c Checkpoint, line string, now time.Time) (string, error) {
	if strings.Contains(line, "\n") {
		return "", nil
	}
	by, _ := w.cosignatures([]byte(c.Text() + "\n" + line + "\n")) // what is no signature of theirs is nobody's
	switch {
	case len(by) != 1:
		return "", nil
	case by[0].ahead(now):
		return "", fmt.Errorf("%w: %s dates its cosignature %s, and it is %s here", ErrFuture, by[0].by, by[0].time().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return by[0].by, nil
}

type cosignature struct {
	by string
	at uint64
}

func (c cosignature) time() time.Time { return time.Unix(int64(c.at), 0).UTC() }

// ahead reports whether it is dated later than a clock may be wrong.
func (c cosignature) ahead(now time.Time) bool { return c.time().After(now.Add(Skew)) }

// cosignatures returns the signatures of the witnesses on a note. One that a witness did not make is an error.
func (w Witnesses) cosignatures(b []byte) ([]cosignature, error) {
	list := make([]note.Verifier, len(w.Keys))
	for i, key := range w.Keys {
		list[i] = key
	}
	n, err := note.Open(b, note.VerifierList(list...))
	var unverified *note.UnverifiedNoteError
	switch {
	case errors.As(err, &unverified):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%w: a witness's cosignature: %w", ErrSignature, err)
	}
	var out []cosignature
	for _, sig := range n.Sigs { // note.Open counts each key once
		raw, err := base64.StdEncoding.DecodeString(sig.Base64)
		if err != nil {
			return nil, ErrFormat
		}
		at, _ := cosignedAt(raw[4:]) // after the key's hash; Verify has read it
		out = append(out, cosignature{by: sig.Name, at: at})
	}
	return out, nil
}

// Fresh returns an error, with what it means, where changes wait for witnesses and the newest quorum is older than that.
func (w Witnesses) Fresh(newest Witnessed, now time.Time) error {
	switch {
	case w.Within == 0:
		return nil
	case newest.IsZero():
		return fmt.Errorf("no quorum of witnesses has cosigned the log, and changes wait for one within %s", w.Within)
	case now.Sub(newest.At) > w.Within:
		return fmt.Errorf("a quorum of witnesses cosigned the log last %s ago, and changes wait for one within %s", now.Sub(newest.At).Round(time.Second), w.Within)
	}
	return nil
}
