// Package capability makes and takes permissions to disclose one value: for one reference of one session, to one sink, in one argument of one
// call, once, within five minutes. It runs in the vault. A capability is made within a delivery alone and held by the sink alone; whoever
// hands one in for anything else gets nothing, and is not told why.
package capability

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"maps"
	"sync"
	"time"

	"durward.internal/services/platform/reference"
)

// Life is how long a capability may be used.
const Life = 300 * time.Second

// Use is what a capability is for.
type Use struct {
	Session string
	// Kind and Sink are the role and the identity of the sink.
	Kind, Sink string
	// Pointer is where the value goes (RFC 6901).
	Pointer string
	// Call is a digest of the call.
	Call [sha256.Size]byte
}

// ErrInvalid is every reason why a capability is refused.
var ErrInvalid = errors.New("the capability is not this vault's for this use, or its time is over, or it was used")

const (
	version   = 1
	keyID     = 8
	nonceSize = 16
	// size is version, key id, expiry, nonce, reference and code.
	size = 1 + keyID + 8 + nonceSize + 16 + sha256.Size
)

// Issuer makes and takes capabilities, under a key of its own that ends with the process. It is safe for concurrent use.
type Issuer struct {
	now func() time.Time
	id  [keyID]byte
	key [32]byte

	mu sync.Mutex
	// spent are the nonces that were used, until the capability's end.
	spent map[[nonceSize]byte]time.Time
	swept time.Time
}

// New makes an Issuer.
func New(now func() time.Time) *Issuer {
	i := &Issuer{now: now, spent: map[[nonceSize]byte]time.Time{}, swept: now()}
	_, _ = rand.Read(i.id[:]) // never fails
	_, _ = rand.Read(i.key[:])
	return i
}

// Issue makes one.
func (i *Issuer) Issue(ref reference.ID, u Use) []byte {
	out := append([]byte{version}, i.id[:]...)
	out = binary.BigEndian.AppendUint64(out, uint64(i.now().Add(Life).Unix())) // #nosec G115 -- after 1970
	var nonce [nonceSize]byte
	_, _ = rand.Read(nonce[:]) // never fails
	out = append(append(out, nonce[:]...), ref[:]...)
	return append(out, i.code(out, u)...)
}

// Spend takes one, and returns the reference that it is for; ErrInvalid.
func (i *Issuer) Spend(raw []byte, u Use) (ref reference.ID, err error) {
	if len(raw) != size || raw[0] != version || string(raw[1:1+keyID]) != string(i.id[:]) {
		return ref, ErrInvalid
	}
	head := raw[:size-sha256.Size]
	if !hmac.Equal(raw[len(head):], i.code(head, u)) {
		return ref, ErrInvalid
	}
	now, ends := i.now(), time.Unix(int64(binary.BigEndian.Uint64(raw[1+keyID:])), 0) // #nosec G115 -- what Issue wrote
	if !now.Before(ends) {
		return ref, ErrInvalid
	}
	nonce := [nonceSize]byte(raw[1+keyID+8:])
	i.mu.Lock()
	defer i.mu.Unlock()
	if now.Sub(i.swept) > Life {
		maps.DeleteFunc(i.spent, func(_ [nonceSize]byte, end time.Time) bool { return !now.Before(end) })
		i.swept = now
	}
	if _, used := i.spent[nonce]; used {
		return ref, ErrInvalid
	}
	i.spent[nonce] = ends
	copy(ref[:], head[len(head)-len(ref):])
	return ref, nil
}

// code authenticates a capability's head and what it is for, each part with its length.
func (i *Issuer) code(head []byte, u Use) []byte {
	h := hmac.New(sha256.New, i.key[:])
	for _, part := range [][]byte{[]byte("durward.capability.v1"), head, []byte(u.Session), []byte(u.Kind), []byte(u.Sink), []byte(u.Pointer), u.Call[:]} {
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		_, _ = h.Write(part)
	}
	return h.Sum(nil)
}
