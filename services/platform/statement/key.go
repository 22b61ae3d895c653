package statement

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/canonical"
)

// SigningKey returns the public key that a statement's signature names, whether or not the signature is good: ErrSignature
// when there is none.
func SigningKey(h *callv1.HumanStatement) (ssh.PublicKey, error) {
	signature, err := unarmor(h.GetSignature())
	if err != nil {
		return nil, err
	}
	return signature.PublicKey, nil
}

// Signature formats that count. RSA's says which hash it is of, whatever the key's type says.
var formats = []string{
	ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
	ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256,
}

// skRest is what a security key's signature has behind it: its flags and its counter.
const skRest = 5

// Widths of a line of armour: that of PEM, which sshsig.Armor writes, and that of ssh-keygen.
var widths = []int{64, 70}

// unarmor reads a signature in the one spelling that ssh-keygen would take too: nothing before or behind the armour, no headers
// in it, no bytes behind the signature or within it. Whoever could send another spelling could show a human's approval to
// Durward that nobody else accepts as one.
func unarmor(armoured []byte) (*sshsig.Signature, error) {
	s, err := sshsig.Unarmor(armoured)
	if err != nil || !slices.Contains(formats, s.Signature.Format) {
		return nil, ErrSignature
	}
	rest := 0
	if strings.HasPrefix(s.Signature.Format, "sk-") {
		rest = skRest
	}
	blob := s.Marshal()
	if !spelled(len(s.Signature.Rest) == rest &&
		slices.ContainsFunc(widths, func(width int) bool { return bytes.Equal(armoured, armor(blob, width)) })) {
		return nil, ErrSignature
	}
	return s, nil
}

// armor writes a signature with lines of a width.
func armor(blob []byte, width int) []byte {
	out := []byte("-----BEGIN " + sshsig.PEMType + "-----\n")
	for line := range slices.Chunk([]byte(base64.StdEncoding.EncodeToString(blob)), width) {
		out = append(append(out, line...), '\n')
	}
	return append(out, "-----END "+sshsig.PEMType+"-----\n"...)
}

// ConfirmAfter is how much later than a statement of kind dangerous its confirmation is made, by the operator's clock: time to read
// again what it means.
const ConfirmAfter = 5 * time.Second

// ErrHistorical: it was good when one signature was enough for dangerous mode. It stays evidence, and allows nothing.
var ErrHistorical = errors.New("the statement is of a version that allows nothing any more")

// ErrUnconfirmed: dangerous mode without its second statement.
var ErrUnconfirmed = errors.New("dangerous mode takes a second statement, by the same key, that confirms the first")

func versionOf(k Kind) int {
	if k == KindDangerous || k == KindConfirm {
		return VersionConfirmed
	}
	return Version
}

// historical reports whether it is of a version that is for verifying history alone.
func (s *Statement) historical() bool { return s.Kind == KindDangerous && s.Version == Version }

// Confirmation makes the second statement of dangerous mode: of the same party and end as the first, which is the signed bytes.
func Confirmation(first *Statement, signed []byte, id string, now time.Time) *Statement {
	digest := canonical.Digest(signed)
	return &Statement{
		Type: Type, Version: VersionConfirmed, Kind: KindConfirm, ID: id, Operator: first.Operator,
		IssuedAt: FormatTime(now), NotBefore: FormatTime(now), ExpiresAt: first.ExpiresAt,
		Epoch: first.Epoch, Audience: first.Audience, Principal: first.Principal, Session: first.Session, Channel: first.Channel,
		Confirms: canonical.FormatDigest(digest[:]),
	}
}

// ConfirmedBy reports whether second is the confirmation of v: nil, or ErrUnconfirmed with what differs.
func (v *Verified) ConfirmedBy(second *Verified) error {
	differs := func(what string) error { return fmt.Errorf("%w: %s", ErrUnconfirmed, what) }
	// check() parsed both before.
	first, _ := parseTime(v.IssuedAt)
	again, _ := parseTime(second.IssuedAt)
	switch {
	case v.Kind != KindDangerous || second.Kind != KindConfirm:
		return differs("kind")
	case second.Confirms != canonical.FormatDigest(v.Digest[:]):
		return differs("statement")
	case second.Operator != v.Operator || !bytes.Equal(second.Key, v.Key):
		return differs("key")
	case second.Epoch != v.Epoch || second.Audience != v.Audience || second.ExpiresAt != v.ExpiresAt:
		return differs("epoch, audience or end")
	case second.Principal != v.Principal || second.Session != v.Session || second.Channel != v.Channel:
		return differs("party")
	case again.Sub(first) < ConfirmAfter:
		return differs("time")
	}
	return nil
}
