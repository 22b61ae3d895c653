// Package grant signs and verifies the vault's two permissions: a grant for one call and a permit for a session's reads.
// The vault signs; sinks verify. What is verified is the payload as it was received: it is never re-serialised, and a
// payload of an unknown version or with any unknown field is refused.
package grant

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"

	"durward.internal/services/platform/keyfile"
)

// Version is the only version of both payloads that is understood.
const Version = 1

// Lifetimes that Sign and Verify hold payloads to.
const (
	MaxGrantLife  = 60 * time.Second
	MaxPermitLife = 60 * time.Second
)

// MaxEpoch is the highest epoch that a grant or a permit may name. A human's statement must be able to name the one above it, and
// its numbers are JSON's, which end at 2^53-1.
const MaxEpoch = 1<<53 - 2

// maxEpochStep bounds how far anybody but a human's statement may raise a process's epoch at once: whoever could raise it to the end
// would leave no epoch for a resume to name.
const maxEpochStep = 1_000_000

// EpochWithin is the highest epoch that a process at epoch now takes up without a human's statement.
func EpochWithin(now uint64) uint64 { return min(now+maxEpochStep, MaxEpoch) }

// maxRequestID bounds the request id that a grant carries, in bytes.
const maxRequestID = 64

const (
	grantDomain  = "durward.grant.v1\x00"
	permitDomain = "durward.permit.v1\x00"
)

// Reasons why Verify and VerifyPermit refuse; for records, not for callers.
var (
	ErrSignature  = errors.New("the signature does not verify")
	ErrVersion    = errors.New("the payload's version is unknown")
	ErrUnknown    = errors.New("the payload holds unknown fields")
	ErrIncomplete = errors.New("the payload is incomplete or out of bounds")
)

// Keys finds the vault's public keys; a trust.Folder is one.
type Keys interface {
	GrantKey(kid string, now time.Time) (ed25519.PublicKey, error)
}

// Key is the vault's own signing key.
type Key struct {
	KID     string
	Private ed25519.PrivateKey
}

// Sign serialises and signs a grant. It refuses one that Verify would refuse.
func Sign(key Key, g *callv1.Grant) (*callv1.SignedGrant, error) {
	payload, signature, err := sign(key, grantDomain, g, checkGrant)
	if err != nil {
		return nil, err
	}
	return &callv1.SignedGrant{Payload: payload, Kid: key.KID, Signature: signature}, nil
}

// Verify returns the grant if a trusted key signed it and it is complete. It judges neither expiry (the vault's clock
// alone does, at redemption) nor audience and epoch (the sink knows its own).
func Verify(signed *callv1.SignedGrant, keys Keys, now time.Time) (*callv1.Grant, error) {
	return verify(keys, signed.GetKid(), grantDomain, signed.GetPayload(), signed.GetSignature(), now, &callv1.Grant{}, checkGrant)
}

// SignPermit serialises and signs a permit. It refuses one that VerifyPermit would refuse.
func SignPermit(key Key, p *callv1.Permit) (*callv1.SignedPermit, error) {
	payload, signature, err := sign(key, permitDomain, p, checkPermit)
	if err != nil {
		return nil, err
	}
	return &callv1.SignedPermit{Payload: payload, Kid: key.KID, Signature: signature}, nil
}

// VerifyPermit returns the permit if a trusted key signed it and it is complete. Expiry, audience and epoch are the
// sink's to judge.
func VerifyPermit(signed *callv1.SignedPermit, keys Keys, now time.Time) (*callv1.Permit, error) {
	return verify(keys, signed.GetKid(), permitDomain, signed.GetPayload(), signed.GetSignature(), now, &callv1.Permit{}, checkPermit)
}

// SpendKey names one use of one operation: what can be spent once.
func SpendKey(g *callv1.Grant) string { return fmt.Sprintf("%s/%d", g.GetOperationId(), g.GetUse()) }

func sign[T proto.Message](key Key, domain string, m T, check func(T) error) (payload, signature []byte, err error) {
	if err := check(m); err != nil {
		return nil, nil, err
	}
	if key.KID == "" || len(key.Private) != ed25519.PrivateKeySize {
		return nil, nil, errors.New("the signing key is not usable")
	}
	payload, err = proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, nil, fmt.Errorf("serialise: %w", err)
	}
	return payload, ed25519.Sign(key.Private, append([]byte(domain), payload...)), nil
}

func verify[T proto.Message](
	keys Keys, kid, domain string, payload, signature []byte, now time.Time, into T, check func(T) error,
) (none T, err error) {
	public, err := keys.GrantKey(kid, now)
	if err != nil {
		return none, err
	}
	if len(signature) != ed25519.SignatureSize || !ed25519.Verify(public, append([]byte(domain), payload...), signature) {
		return none, ErrSignature
	}
	if err := proto.Unmarshal(payload, into); err != nil {
		return none, ErrIncomplete
	}
	if HasUnknown(into) {
		return none, ErrUnknown
	}
	if err := check(into); err != nil {
		return none, err
	}
	return into, nil
}

// HasUnknown reports whether the message, or any message in it, holds fields that the contract does not name.
func HasUnknown(m proto.Message) bool { return hasUnknown(m.ProtoReflect()) }

func hasUnknown(m protoreflect.Message) bool {
	if len(m.GetUnknown()) > 0 {
		return true
	}
	found := false
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			if fd.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, item protoreflect.Value) bool {
					found = hasUnknown(item.Message())
					return !found
				})
			}
		case fd.Message() != nil && fd.IsList():
			for i := 0; i < v.List().Len() && !found; i++ {
				found = hasUnknown(v.List().Get(i).Message())
			}
		case fd.Message() != nil:
			found = hasUnknown(v.Message())
		}
		return !found
	})
	return found
}

func checkGrant(g *callv1.Grant) error {
	if g.GetVersion() != Version {
		return ErrVersion
	}
	digests := [][]byte{g.GetArgumentsDigest(), g.GetPolicyDigest(), g.GetTool().GetDefinitionDigest()}
	if len(g.GetSubjectDigest()) > 0 {
		digests = append(digests, g.GetSubjectDigest())
	}
	for _, d := range digests {
		if len(d) != 32 {
			return ErrIncomplete
		}
	}
	if !isHex128(g.GetId()) || !isHex128(g.GetOperationId()) || g.GetUse() == 0 || g.GetPrincipal() == "" ||
		g.GetSession() == "" || g.GetChannel() == callv1.Channel_CHANNEL_UNSPECIFIED || g.GetTool().GetName() == "" ||
		g.GetTool().GetSource() == "" || g.GetAudience() == "" || !epochOK(g.GetEpoch()) {
		return ErrIncomplete
	}
	if len(g.GetRequestId()) > maxRequestID {
		return ErrIncomplete
	}
	for _, s := range g.GetStatements() {
		if len(s.GetStatement()) == 0 || len(s.GetSignature()) == 0 {
			return ErrIncomplete
		}
	}
	return checkTimes(g, MaxGrantLife)
}

func checkPermit(p *callv1.Permit) error {
	if p.GetVersion() != Version {
		return ErrVersion
	}
	if !isHex128(p.GetId()) || p.GetPrincipal() == "" || p.GetSession() == "" || p.GetAudience() == "" || !epochOK(p.GetEpoch()) ||
		p.GetChannel() == callv1.Channel_CHANNEL_UNSPECIFIED {
		return ErrIncomplete
	}
	for i, tool := range p.GetTools() {
		if tool == "" || i > 0 && p.GetTools()[i-1] >= tool {
			return ErrIncomplete
		}
	}
	return checkTimes(p, MaxPermitLife)
}

func epochOK(epoch uint64) bool { return epoch > 0 && epoch <= MaxEpoch }

// timestamps is what a grant and a permit have in common.
type timestamps interface {
	GetIssuedAt() *timestamppb.Timestamp
	GetNotBefore() *timestamppb.Timestamp
	GetExpiresAt() *timestamppb.Timestamp
}

func checkTimes(t timestamps, life time.Duration) error {
	if t.GetIssuedAt().CheckValid() != nil || t.GetNotBefore().CheckValid() != nil || t.GetExpiresAt().CheckValid() != nil {
		return ErrIncomplete
	}
	issued, from, until := t.GetIssuedAt().AsTime(), t.GetNotBefore().AsTime(), t.GetExpiresAt().AsTime()
	if !from.Before(until) || until.Before(issued) || until.Sub(issued) > life {
		return ErrIncomplete
	}
	return nil
}

// NewID returns 128 random bits in hex: the id of a grant, a permit, an operation, a statement or a session.
func NewID() string {
	b := random128()
	return hex.EncodeToString(b[:])
}

func isHex128(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 16 && strings.ToLower(s) == s
}

// keyHeader begins a key file, so that no other file is mistaken for one.
const keyHeader = "durward-grant-key-v1 "

// GenerateKey makes a signing key.
func GenerateKey(kid string) (Key, error) {
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return Key{}, fmt.Errorf("generate key: %w", err)
	}
	return Key{KID: kid, Private: private}, nil
}

// Format writes a key as a key file holds it: "durward-grant-key-v1 KID BASE64-SEED\n".
func (k Key) Format() []byte {
	return []byte(keyHeader + k.KID + " " + base64.StdEncoding.EncodeToString(k.Private.Seed()) + "\n")
}

// LoadKey reads a key file.
func LoadKey(path string) (Key, error) {
	b, err := keyfile.Read(path)
	if err != nil {
		return Key{}, fmt.Errorf("grant key: %w", err)
	}
	rest, ok := strings.CutPrefix(string(b), keyHeader)
	kid, encoded, ok2 := strings.Cut(strings.TrimSpace(rest), " ")
	seed, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || !ok2 || err != nil || len(seed) != ed25519.SeedSize || kid == "" {
		return Key{}, errors.New("grant key: the file does not hold a grant-signing key")
	}
	return Key{KID: kid, Private: ed25519.NewKeyFromSeed(seed)}, nil
}
