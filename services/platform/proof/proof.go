// Package proof is how a key-bound client shows that a request is its own, though it passes through a gateway that nobody
// trusts: an Ed25519 signature over what it asks for, a counter and the time. The stdio bridge signs; the vault verifies.
package proof

import (
	"crypto/ed25519"
	"errors"
	"strconv"
	"strings"
	"sync"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/canonical"
)

const domain = "durward.proof.v1\x00"

// ErrInvalid is returned for a proof that does not prove its claim.
var ErrInvalid = errors.New("the proof does not verify")

// Claim is what a proof is about. Session is empty for PURPOSE_OPEN; Tool and ArgumentsDigest are set for PURPOSE_CALL
// alone.
type Claim struct {
	Purpose callv1.Proof_Purpose
	Client  string
	Session string
	Tool    string
	// ArgumentsDigest is SHA-256 of the arguments' RFC 8785 form.
	ArgumentsDigest []byte
	Counter         uint64
	// Time is when the proof was made, in Unix seconds.
	Time int64
	// Agent and the sender are for whom a session is opened: set for PURPOSE_OPEN alone, empty where the opening names none. Who
	// carries the proof can then neither take the name away nor put another there. A sender has a user and a room, or neither.
	Agent, SenderUser, SenderRoom string
}

// signed is the canonical JSON under the signature. 64-bit numbers are strings, since RFC 8785 numbers are doubles.
// What is empty is left out.
type signed struct {
	Agent           string `json:"agent,omitempty"`
	ArgumentsDigest string `json:"arguments_digest,omitempty"`
	Client          string `json:"client"`
	Counter         string `json:"counter"`
	Purpose         string `json:"purpose"`
	SenderRoom      string `json:"sender_room,omitempty"`
	SenderUser      string `json:"sender_user,omitempty"`
	Session         string `json:"session,omitempty"`
	Time            string `json:"time"`
	Tool            string `json:"tool,omitempty"`
}

// message returns the bytes under the signature.
func (c Claim) message() ([]byte, error) {
	s := signed{
		Agent:      c.Agent,
		Client:     c.Client,
		Counter:    strconv.FormatUint(c.Counter, 10),
		Purpose:    strings.ToLower(strings.TrimPrefix(c.Purpose.String(), "PURPOSE_")),
		SenderRoom: c.SenderRoom,
		SenderUser: c.SenderUser,
		Session:    c.Session,
		Time:       strconv.FormatInt(c.Time, 10),
		Tool:       c.Tool,
	}
	open, call := c.Purpose == callv1.Proof_PURPOSE_OPEN, c.Purpose == callv1.Proof_PURPOSE_CALL
	if c.Purpose == callv1.Proof_PURPOSE_UNSPECIFIED || c.Client == "" || open != (c.Session == "") ||
		call != (c.Tool != "") || call != (len(c.ArgumentsDigest) == 32) || c.Time <= 0 {
		return nil, ErrInvalid
	}
	if (c.SenderUser == "") != (c.SenderRoom == "") || !open && (c.Agent != "" || c.SenderUser != "") {
		return nil, ErrInvalid
	}
	if call {
		s.ArgumentsDigest = canonical.FormatDigest(c.ArgumentsDigest)
	}
	raw, err := canonical.Marshal(s)
	if err != nil {
		return nil, err
	}
	return append([]byte(domain), raw...), nil
}

// Sign proves a claim.
func Sign(key ed25519.PrivateKey, c Claim) (*callv1.Proof, error) {
	m, err := c.message()
	if err != nil {
		return nil, err
	}
	return &callv1.Proof{Purpose: c.Purpose, Counter: c.Counter, Time: c.Time, Signature: ed25519.Sign(key, m)}, nil
}

// Verify checks a proof of a claim. The claim's purpose is what the verifier expects; its counter and time are taken from
// the proof. Freshness (Window, the time) is the caller's to judge.
func Verify(key ed25519.PublicKey, c Claim, p *callv1.Proof) error {
	if p == nil || p.GetPurpose() != c.Purpose || len(key) != ed25519.PublicKeySize {
		return ErrInvalid
	}
	c.Counter, c.Time = p.GetCounter(), p.GetTime()
	m, err := c.message()
	if err != nil || len(p.GetSignature()) != ed25519.SignatureSize || !ed25519.Verify(key, m, p.GetSignature()) {
		return ErrInvalid
	}
	return nil
}

// windowSize is how far behind the newest counter an unseen one is still taken: parallel calls arrive out of order.
const windowSize = 1024

// Window accepts each counter once. Its zero value is ready; it is safe for concurrent use.
type Window struct {
	mu     sync.Mutex
	newest uint64
	seen   [windowSize / 64]uint64
}

// Accept reports whether the counter is new: above every one before, or within the window behind and not seen yet.
func (w *Window) Accept(counter uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if counter == 0 {
		return false
	}
	if counter > w.newest {
		if counter-w.newest >= windowSize {
			w.seen = [windowSize / 64]uint64{}
		} else {
			for c := w.newest + 1; c < counter; c++ {
				w.clear(c)
			}
		}
		w.newest = counter
		w.set(counter)
		return true
	}
	if w.newest-counter >= windowSize || w.has(counter) {
		return false
	}
	w.set(counter)
	return true
}

func (w *Window) set(c uint64)      { w.seen[c%windowSize/64] |= 1 << (c % 64) }
func (w *Window) clear(c uint64)    { w.seen[c%windowSize/64] &^= 1 << (c % 64) }
func (w *Window) has(c uint64) bool { return w.seen[c%windowSize/64]&(1<<(c%64)) != 0 }
