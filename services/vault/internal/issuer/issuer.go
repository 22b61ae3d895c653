// Package issuer signs the vault's grants and permits and reads them back. It holds the grant-signing key, the one thing
// that makes this process the vault. Sinks check a human's statement before they check this signature, so that the key
// alone starts nothing that a human must agree to.
package issuer

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/grant"
	"durward.internal/services/vault/internal/store"
)

// Config is what an Issuer needs.
type Config struct {
	Key grant.Key
	// Keys are the signers that sinks trust: the key's public half must be among them.
	Keys grant.Keys
	// Now is the vault's clock, the only one that judges a grant's expiry.
	Now func() time.Time
	// User is whose a client is; nil: nobody's.
	User func(client string) string
}

// Issuer signs. It is safe for concurrent use.
type Issuer struct{ cfg Config }

// New refuses a key that the trust folder does not know: no sink would accept what it signs.
func New(c Config) (*Issuer, error) {
	public, err := c.Keys.GrantKey(c.Key.KID, c.Now())
	if err != nil {
		return nil, fmt.Errorf("grant key %q is not in force in grant_signers.yaml: %w", c.Key.KID, err)
	}
	if !public.Equal(c.Key.Private.Public()) {
		return nil, fmt.Errorf("grant key %q in grant_signers.yaml is another key", c.Key.KID)
	}
	if c.User == nil {
		c.User = func(string) string { return "" }
	}
	return &Issuer{c}, nil
}

// Grant signs permission for one use of an operation, for 60 seconds from now: a live call asks. Every issue has an id of
// its own and the same spend key. statements are what humans signed for it.
func (i *Issuer) Grant(o *store.Operation, use uint32, statements []*callv1.HumanStatement) (*callv1.SignedGrant, *callv1.Grant, error) {
	now := i.cfg.Now()
	g := &callv1.Grant{
		Version:         grant.Version,
		Id:              grant.NewID(),
		OperationId:     o.ID,
		Use:             use,
		Principal:       o.Principal,
		Session:         o.Session,
		Channel:         o.Channel,
		Tool:            o.ToolRef(),
		ArgumentsDigest: o.ArgumentsDigest,
		SubjectDigest:   o.SubjectDigest,
		Audience:        o.Audience,
		PolicyDigest:    o.PolicyDigest,
		RequestId:       o.RequestID,
		Agent:           o.Agent,
		User:            i.cfg.User(o.Principal),
		Epoch:           o.Epoch,
		Dangerous:       o.Dangerous,
		IssuedAt:        timestamppb.New(now),
		NotBefore:       timestamppb.New(now),
		ExpiresAt:       timestamppb.New(now.Add(grant.MaxGrantLife)),
		Statements:      statements,
	}
	signed, err := grant.Sign(i.cfg.Key, g)
	if err != nil {
		return nil, nil, fmt.Errorf("sign grant: %w", err)
	}
	return signed, g, nil
}

// Scope is what a permit is for.
type Scope struct {
	Principal string
	Session   string
	Channel   callv1.Channel
	// Tools are names of READ tools, sorted.
	Tools    []string
	Audience string
	Epoch    uint64
	// DangerousUntil is the end of the session's dangerous mode; zero: it is not in it.
	DangerousUntil time.Time
}

// Permit signs permission for a session's reads at one sink, for 60 seconds.
func (i *Issuer) Permit(s Scope) (*callv1.SignedPermit, time.Time, error) {
	now := i.cfg.Now()
	until := now.Add(grant.MaxPermitLife)
	permit := &callv1.Permit{
		Version:   grant.Version,
		Id:        grant.NewID(),
		Principal: s.Principal,
		Session:   s.Session,
		Channel:   s.Channel,
		Tools:     s.Tools,
		Audience:  s.Audience,
		Epoch:     s.Epoch,
		IssuedAt:  timestamppb.New(now),
		NotBefore: timestamppb.New(now),
		ExpiresAt: timestamppb.New(until),
	}
	if !s.DangerousUntil.IsZero() {
		permit.DangerousUntil = timestamppb.New(s.DangerousUntil)
	}
	signed, err := grant.SignPermit(i.cfg.Key, permit)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("sign permit: %w", err)
	}
	return signed, until, nil
}

// ErrExpired is returned for what is past its end, or before its beginning, by the vault's clock.
var ErrExpired = errors.New("it is not in force now")

// OpenGrant verifies a grant that this vault signed, with its present or a previous key, and judges its time.
func (i *Issuer) OpenGrant(signed *callv1.SignedGrant) (*callv1.Grant, error) {
	g, err := i.KnownGrant(signed)
	if err != nil {
		return nil, err
	}
	if !i.inForce(g.GetNotBefore(), g.GetExpiresAt()) {
		return nil, ErrExpired
	}
	return g, nil
}

// KnownGrant verifies a grant that this vault signed, with its present or a previous key, whatever its time.
func (i *Issuer) KnownGrant(signed *callv1.SignedGrant) (*callv1.Grant, error) {
	return grant.Verify(signed, i.cfg.Keys, i.cfg.Now())
}

// OpenPermit verifies a permit that this vault signed, and judges its time.
func (i *Issuer) OpenPermit(signed *callv1.SignedPermit) (*callv1.Permit, error) {
	p, err := grant.VerifyPermit(signed, i.cfg.Keys, i.cfg.Now())
	if err != nil {
		return nil, err
	}
	if !i.inForce(p.GetNotBefore(), p.GetExpiresAt()) {
		return nil, ErrExpired
	}
	return p, nil
}

func (i *Issuer) inForce(from, until *timestamppb.Timestamp) bool {
	now := i.cfg.Now()
	return !now.Before(from.AsTime()) && now.Before(until.AsTime())
}
