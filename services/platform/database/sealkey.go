package database

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"math"
	"math/bits"
	"os"
	"path/filepath"

	"durward.internal/services/platform/clean"
)

// pendingKey is appended to the name of a key by which nothing is sealed yet.
const pendingKey = ".new"

// maxNamed bounds how many damaged rows are named.
const maxNamed = 5

// keySize is HMAC-SHA256's.
const keySize = 32

// SealKey makes the seals of one installation.
type SealKey []byte

// Row is the seal of a table's row with these values: int64, float64, string, []byte or nil.
func (k SealKey) Row(table string, values ...driver.Value) []byte {
	over := k.begin("row")
	writeValues(over, []driver.Value{table})
	writeValues(over, values)
	return over.Sum(nil)
}

// Digest is a keyed digest of values, 128 bits in hex, for what is told apart and not told: the same for as long as the state folder keeps
// its key, and of no use to anybody without it. No two purposes, and no two lists of values, are alike. A row's seal is none of them.
func (k SealKey) Digest(purpose string, values ...string) string {
	over := k.begin("digest")
	writeValues(over, []driver.Value{purpose, int64(len(values))})
	for _, v := range values {
		writeValues(over, []driver.Value{v})
	}
	return hex.EncodeToString(over.Sum(nil)[:16])
}

// State is what tables are that have these totals, which are in the order of their names.
func (k SealKey) State(totals []Totals) State {
	out, over := State{Rows: map[string]uint64{}}, k.begin("state")
	for _, t := range totals {
		writeValues(over, []driver.Value{t.Table, t.Rows, t.Revision, t.Sum[:]})
		out.Revision += uint64(max(t.Revision, 0))
		out.Rows[t.Table] = uint64(max(t.Rows, 0))
	}
	out.Digest = hex.EncodeToString(over.Sum(nil))
	return out
}

// Totals are what a table's rows amount to: how many there are, how often they changed, and the sum of their seals.
type Totals struct {
	Table          string
	Rows, Revision int64
	Sum            Sum
}

// Damage says how a table is not what was sealed: its rows, of which some that are named do not bear their seals, amount to has, and
// said is what they should amount to, which is sound where it bears its own seal.
func Damage(has, said Totals, sound bool, unsound []string) (found []string) {
	for _, row := range unsound {
		found = append(found, has.Table+": the row "+clean.Line(row, 100)+" was changed")
	}
	switch {
	case !sound:
		found = append(found, "seals: the row "+has.Table+" was changed or is missing")
	case has.Rows != said.Rows:
		found = append(found, fmt.Sprintf("%s: it has %d rows of %d", has.Table, has.Rows, said.Rows))
	case len(unsound) == 0 && has.Sum != said.Sum:
		found = append(found, has.Table+": a row of it is an older copy")
	}
	return found
}

// Named bounds a list of damage.
func Named(found []string) []string {
	if more := len(found) - maxNamed; more > 0 {
		found = append(found[:maxNamed], fmt.Sprintf("and %d more", more))
	}
	return found
}

// begin begins a keyed digest of that purpose.
func (k SealKey) begin(purpose string) hash.Hash {
	h := hmac.New(sha256.New, k)
	writeValues(h, []driver.Value{purpose})
	return h
}

// writeValues writes values so that no two lists are written alike.
func writeValues(h hash.Hash, values []driver.Value) {
	var head [9]byte
	put := func(kind byte, n uint64) {
		head[0] = kind
		binary.BigEndian.PutUint64(head[1:], n)
		h.Write(head[:])
	}
	for _, v := range values {
		switch v := v.(type) {
		case nil:
			put('n', 0)
		case int64:
			put('i', uint64(v))
		case float64:
			put('f', math.Float64bits(v))
		case string:
			put('t', uint64(len(v)))
			h.Write([]byte(v))
		case []byte:
			put('b', uint64(len(v)))
			h.Write(v)
		default:
			put('?', 0)
		}
	}
}

// Sum is a sum of digests modulo 2^256, the same in every order.
type Sum [sha256.Size]byte

// Add adds a digest, or takes it away; what is none counts as zero.
func (t *Sum) Add(v driver.Value, away bool) {
	digest, _ := v.([]byte)
	if len(digest) != len(t) {
		return
	}
	var carry uint64
	for at := len(t) - 8; at >= 0; at -= 8 {
		word, other := binary.BigEndian.Uint64(t[at:]), binary.BigEndian.Uint64(digest[at:])
		if away {
			word, carry = bits.Sub64(word, other, carry)
		} else {
			word, carry = bits.Add64(word, other, carry)
		}
		binary.BigEndian.PutUint64(t[at:], word)
	}
}

// ReadSealKey reads the key of a state folder, which only its owner may read; fs.ErrNotExist where there is none. Where rows are sealed
// the process may have ended between the first seals and their key's last name: it gets that now.
func ReadSealKey(dir string, sealed bool) (SealKey, error) {
	path := filepath.Join(dir, KeyFile)
	key, err := readSealKey(path)
	if sealed && errors.Is(err, fs.ErrNotExist) {
		if key, err = readSealKey(path + pendingKey); err == nil {
			err = os.Rename(path+pendingKey, path)
		}
	}
	return key, err
}

func readSealKey(path string) (SealKey, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s: it is not a file that its owner alone may read: chmod 600", path)
	}
	key, err := os.ReadFile(path) // #nosec G304 -- in the state folder
	if err == nil && len(key) != keySize {
		// As good as none; its name stays for whoever finds out why.
		return nil, fmt.Errorf("%s: it has %d bytes of %d. Put back a backup, or move it away to begin without it; then run durward resume", path, len(key), keySize)
	}
	return key, err
}

// MakeSealKey makes a state folder's key, durably. It has its last name once what it seals is durable too: KeepSealKey.
func MakeSealKey(dir string) (SealKey, error) {
	key := make([]byte, keySize)
	rand.Read(key)
	f, err := os.OpenFile(filepath.Join(dir, KeyFile+pendingKey), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600) // #nosec G304 -- in the state folder
	if err != nil {
		return nil, err
	}
	_, err = f.Write(key)
	return key, errors.Join(err, f.Sync(), f.Close())
}

// KeepSealKey gives a key that MakeSealKey made its last name; one that has it keeps it.
func KeepSealKey(dir string) error {
	path := filepath.Join(dir, KeyFile)
	if err := os.Rename(path+pendingKey, path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
