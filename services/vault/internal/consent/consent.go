// Package consent says whether a human's statement counts as a human's: signed by an operator, now, and by nobody who asks.
//
// It runs inside the vault, and everything that a person signs goes through it: approvals, commands, scopes, dangerous mode,
// resumptions and announced changes. It trusts the trust folder and clients.yaml, which humans own, and nothing in a
// statement before its signature. What the statement is about is its caller's to judge; a sink verifies it again by itself.
package consent

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
	"durward.internal/services/vault/internal/clients"
)

// Why a good signature is nobody's consent; for records, not for callers.
var (
	// ErrSelf: the key that signed is a client's own.
	ErrSelf = errors.New("the statement is signed with a client's own key")
	// ErrFourEyes: a second human has to agree.
	ErrFourEyes = errors.New("the statement is signed by the human whose client asks, and another has to agree")
	// ErrNobodys: a second human has to agree, and nobody can say who the first is.
	ErrNobodys = errors.New("another human than the client's own has to agree, and the client has no user")
)

// Sentence is what an operator's program is told of an error of Verify: why four eyes stand in the way, and otherwise the sentence
// that is given.
func Sentence(err error, otherwise string) string {
	switch {
	case errors.Is(err, ErrFourEyes):
		return "four eyes: another human than the one whose client asks has to agree"
	case errors.Is(err, ErrNobodys):
		return "four eyes: the client that asks has no user, so nobody can tell who has to agree; set user: for it in clients.yaml"
	default:
		return otherwise
	}
}

// Config is what a Judge needs; everything is required but for Clients.
type Config struct {
	// Operators are the keys that a statement may be signed with, as they are now.
	Operators func() *trust.AllowedSigners
	// Now is the vault's clock.
	Now func() time.Time
	// Clients is what clients.yaml says; nil knows of none.
	Clients Clients
}

// Clients is what a Judge asks about clients.
type Clients interface {
	// Keys returns every client's own keys as they are now, those of clients that are not let in any more included.
	Keys() []ed25519.PublicKey
	// FourEyes returns the human that a client belongs to, and whether another human has to agree to what it asks.
	FourEyes(client string) (user string, required bool)
}

// Judge judges statements. It is safe for concurrent use.
type Judge struct{ Config }

// New makes a judge.
func New(c Config) *Judge { return &Judge{c} }

// Verify returns a statement that an operator signed and that is in force now. client is who asks for what it allows: empty where
// a human acts for themself. Errors are for records.
func (j *Judge) Verify(h *callv1.HumanStatement, client string) (*statement.Verified, error) {
	v, err := statement.Verify(h, j.Operators(), j.Now())
	if err != nil {
		return nil, err
	}
	if err := selfApproval(j.self(v, client)); err != nil {
		return nil, err
	}
	return v, nil
}

func (j *Judge) self(v *statement.Verified, client string) error {
	if j.Clients == nil {
		return nil
	}
	// A client's key is ed25519: a key of another type is nobody's but an operator's.
	if wrapped, ok := v.Key.(ssh.CryptoPublicKey); ok {
		key, ok := wrapped.CryptoPublicKey().(ed25519.PublicKey)
		if ok && slices.ContainsFunc(j.Clients.Keys(), func(own ed25519.PublicKey) bool { return own.Equal(key) }) {
			return ErrSelf
		}
	}
	if client == "" {
		return nil
	}
	switch user, required := j.Clients.FourEyes(client); {
	case required && user == "":
		return ErrNobodys
	case required && j.is(user, v):
		return ErrFourEyes
	}
	return nil
}

// is reports whether the human who signed is that user: by name, however it is spelled, and by key, whatever other name it has too.
func (j *Judge) is(user string, v *statement.Verified) bool {
	return strings.EqualFold(user, v.Operator) || slices.ContainsFunc(j.Operators().All(), func(s trust.Signer) bool {
		return strings.EqualFold(user, s.Operator) && sameKey(bytes.Equal(s.Key.Marshal(), v.Key.Marshal()))
	})
}

// Of is clients.yaml, with the setting that says for which clients a second human has to agree.
func Of(registry *clients.Registry, fourEyes func(client, user string) bool) Clients {
	return known{registry, fourEyes}
}

type known struct {
	*clients.Registry
	fourEyes func(client, user string) bool
}

// FourEyes implements Clients. A client that is not let in any more belongs to nobody.
func (k known) FourEyes(client string) (string, bool) {
	c, ok := k.Lookup(client)
	if !ok {
		return "", false
	}
	return c.User, k.fourEyes(c.ID, c.User)
}
