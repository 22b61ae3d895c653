// Package safe keeps the credentials that services are given: who added them, to which services of which sink they are granted, and
// which service got which value. Values are encrypted by package keyring, and leave for a launcher alone.
//
// It runs in the vault. It trusts its caller to have verified statements and grants; to whom a value may go it judges itself.
package safe

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"durward.internal/services/platform/handover"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/keyring"
	"durward.internal/services/vault/internal/store"
)

// What a caller can do something about, beside keyring.ErrSealed and store.ErrStatementUsed.
var (
	ErrUnknown = errors.New("there is no credential of that name")
	ErrExists  = errors.New("there is a credential of that name")
	// ErrVersion: the statement's version is not the next one.
	ErrVersion = errors.New("there is another version by now")
	// ErrCommitment: the value is not the one that was signed for.
	ErrCommitment = errors.New("the value is not the one that the statement is about")
	// ErrNotGranted: there is no such credential, or not for that service of that sink.
	ErrNotGranted = errors.New("it is not there, or not granted to the service")
	// ErrNewest: the newest version goes with the credential alone.
	ErrNewest = errors.New("the newest version cannot be removed alone")
)

// Safe is safe for concurrent use.
type Safe struct {
	store *store.Store
	ring  *keyring.Ring
	now   func() time.Time
	// known is told each value that is released, before it is.
	known func(value []byte)
	// mu orders changes and releases: what a revocation took away is released to nobody once it has returned.
	mu sync.Mutex
	// recalled: known was told all that earlier processes released. recalling guards it.
	recalled  bool
	recalling sync.Mutex
}

// New makes a Safe on a store and its keys. known is told each value that leaves, before it does; it keeps none of the bytes.
func New(s *store.Store, ring *keyring.Ring, known func(value []byte), now func() time.Time) *Safe {
	return &Safe{store: s, ring: ring, known: known, now: now}
}

// Recall tells known the values, every version, of each credential that was ever released, once: what an earlier process gave away is in
// use still. keyring.ErrSealed: some are not known yet.
func (s *Safe) Recall(ctx context.Context) error {
	s.recalling.Lock()
	defer s.recalling.Unlock()
	if s.recalled {
		return nil
	}
	all, err := s.store.Credentials(ctx)
	if err != nil {
		return err
	}
	for _, c := range all {
		if len(c.Uses) == 0 {
			continue
		}
		for _, v := range c.Versions {
			plain, err := s.ring.Decrypt(ctx, c.Name, v.Version, v.Value)
			if err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
			s.known(plain[min(statement.CommitmentKey, len(plain)):])
			clear(plain)
		}
	}
	s.recalled = true
	return nil
}

// Unseal opens the keys with a passphrase, which it wipes.
func (s *Safe) Unseal(ctx context.Context, passphrase []byte) error {
	if err := s.ring.Unseal(ctx, passphrase); err != nil {
		return err
	}
	return s.Recall(ctx)
}

// Keys are the keys, for operators to unseal.
func (s *Safe) Keys() *keyring.Ring { return s.ring }

// List returns all that is known of the credentials beside their values.
func (s *Safe) List(ctx context.Context) ([]*store.Credential, error) {
	return s.store.Credentials(ctx)
}

// MayChange reports why Change would fail, before the change is recorded.
func (s *Safe) MayChange(ctx context.Context, c *statement.Credential, value, salt []byte) error {
	found, err := s.lookup(ctx, c.Name)
	switch {
	case err != nil:
		return err
	case c.Action == statement.CredentialAdd && found != nil:
		return ErrExists
	case c.Action != statement.CredentialAdd && found == nil:
		return ErrUnknown
	case c.Action == statement.CredentialRotate && c.Version != int(found.Versions[0].Version)+1:
		return ErrVersion
	case c.Action == statement.CredentialGrant:
		return nil
	case s.ring.Sealed(ctx):
		return keyring.ErrSealed
	}
	if len(salt) != statement.CommitmentKey || len(value) == 0 ||
		!hmac.Equal([]byte(statement.Commitment(salt, c.Name, c.Version, value)), []byte(c.Commitment)) {
		return ErrCommitment
	}
	return nil
}

// Change does what a verified statement says, and uses it up.
func (s *Safe) Change(ctx context.Context, c *statement.Credential, value, salt []byte, used store.UsedStatement) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.MayChange(ctx, c, value, salt); err != nil {
		return err
	}
	if c.Action == statement.CredentialGrant {
		return s.store.GrantCredential(ctx, store.CredentialGrant{
			Name: c.Name, Sink: c.Sink, Services: c.Services, Origins: c.Origins, Place: c.Place, Scheme: c.Scheme, Agents: c.Agents,
			Unattended: c.Unattended, EndsAt: c.Ends(),
		}, used)
	}
	// The commitment's key is kept with the value, so that it can be told later which value a statement was about.
	plain := slices.Concat(salt, value)
	defer clear(plain)
	encrypted, err := s.ring.Encrypt(ctx, c.Name, uint32(c.Version), plain)
	if err != nil {
		return err
	}
	return s.store.PutCredential(ctx, &store.Credential{Name: c.Name, Delivery: c.Delivery, Variable: c.Variable}, store.CredentialVersion{
		Name: c.Name, Version: uint32(c.Version), Value: encrypted, AddedBy: used.Operator, AddedAt: s.now(),
	}, used)
}

// Revoke takes a credential from a service or an origin, or with "" from all, and returns it as it was before. Once it has returned nobody
// gets a value by what was revoked.
func (s *Safe) Revoke(ctx context.Context, name, from string) (*store.Credential, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.find(ctx, name)
	if err != nil {
		return nil, err
	}
	taken := func(item string) bool { return from == "" || item == from }
	var left []store.CredentialGrant
	for _, g := range c.Grants {
		if from != "" && !slices.Contains(g.Services, from) && !slices.Contains(g.Origins, from) {
			continue
		}
		g.Services, g.Origins = slices.DeleteFunc(slices.Clone(g.Services), taken), slices.DeleteFunc(slices.Clone(g.Origins), taken)
		left = append(left, g)
	}
	if from != "" && left == nil {
		return nil, ErrNotGranted
	}
	return c, s.store.RevokeCredential(ctx, name, left, s.now())
}

// Remove forgets a version that is not the newest, or with 0 the credential, and returns it as it was before.
func (s *Safe) Remove(ctx context.Context, name string, version uint32) (*store.Credential, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.find(ctx, name)
	switch {
	case err != nil:
		return nil, err
	case version == c.Versions[0].Version:
		return nil, ErrNewest
	case version != 0 && !slices.ContainsFunc(c.Versions, func(v store.CredentialVersion) bool { return v.Version == version }):
		return nil, ErrVersion
	}
	return c, s.store.RemoveCredential(ctx, name, version)
}

// Rotate puts a new data key in the place of the old, and as asked a new key above it, and returns how many values it encrypted anew.
func (s *Safe) Rotate(ctx context.Context, how keyring.Rotation) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, err := s.store.Credentials(ctx)
	if err != nil {
		return 0, err
	}
	var values []store.CredentialVersion
	for _, c := range all {
		values = append(values, c.Versions...)
	}
	return len(values), s.ring.Rotate(ctx, values, how)
}

// Holding returns the name of a credential whose newest value stands in a text, or "". It is asked only about a text that was found to hold
// some credential, so that nobody finds out by it what is stored.
func (s *Safe) Holding(ctx context.Context, text string) (string, error) {
	all, err := s.store.Credentials(ctx)
	if err != nil || s.ring.Sealed(ctx) {
		return "", err
	}
	for _, c := range all {
		if len(c.Versions) == 0 {
			continue
		}
		plain, err := s.ring.Decrypt(ctx, c.Name, c.Versions[0].Version, c.Versions[0].Value)
		if err != nil {
			return "", err
		}
		held := len(plain) > statement.CommitmentKey && bytes.Contains([]byte(text), plain[statement.CommitmentKey:])
		if clear(plain); held {
			return c.Name, nil
		}
	}
	return "", nil
}

// Ask is a service that is about to start, or a request that is about to leave.
type Ask struct {
	Sink, Operation string
	// Principal and Agent are whose call it is; both empty: it is a start without a call.
	Principal, Agent string
	// Service, or Origin and Place, is where the values go.
	Service, Origin, Place string
	Names                  []string
}

// to is what the values are for, as uses have it.
func (a *Ask) to() string { return cmp.Or(a.Service, a.Origin) }

// MayRelease reports why Release would fail, and which versions it would release. The error names the credential.
func (s *Safe) MayRelease(ctx context.Context, a Ask) ([]store.CredentialUse, error) {
	_, uses, err := s.granted(ctx, a)
	return uses, err
}

// Release hands the newest value of each credential that is granted to what asks to seal, which encrypts them; the values are wiped when
// it returns.
func (s *Safe) Release(ctx context.Context, a Ask, seal func([]handover.Value) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, uses, err := s.granted(ctx, a)
	if err != nil {
		return err
	}
	var values []handover.Value
	for i, c := range found {
		newest := c.credential.Versions[0]
		plain, err := s.ring.Decrypt(ctx, a.Names[i], newest.Version, newest.Value)
		if err != nil {
			return fmt.Errorf("%s: %w", a.Names[i], err)
		}
		defer clear(plain)
		v := handover.Value{
			Name: a.Names[i], File: c.credential.Delivery == statement.DeliveryFile, Variable: c.credential.Variable, Value: plain[statement.CommitmentKey:],
		}
		s.known(v.Value)
		if a.Origin != "" {
			v.File, v.Variable = false, c.grant.Place
			if c.grant.Scheme != "" {
				v.Value = slices.Concat([]byte(c.grant.Scheme+" "), encoded(c.grant.Scheme, v.Value))
				defer clear(v.Value)
			}
		}
		values = append(values, v)
	}
	if err := s.store.UseCredentials(ctx, uses); err != nil {
		return err
	}
	return seal(values)
}

// encoded is a value as its scheme sends it: of Basic, NAME:PASSWORD in base64 (RFC 7617), which has no colon, so that one that is stored
// encoded is known.
func encoded(scheme string, value []byte) []byte {
	if !strings.EqualFold(scheme, "Basic") || !bytes.Contains(value, []byte(":")) {
		return value
	}
	return base64.StdEncoding.AppendEncode(nil, value)
}

// released is a credential with the grant that lets it go.
type released struct {
	credential *store.Credential
	grant      store.CredentialGrant
}

func (s *Safe) granted(ctx context.Context, a Ask) (found []released, uses []store.CredentialUse, err error) {
	if s.ring.Sealed(ctx) {
		return nil, nil, keyring.ErrSealed
	}
	variables := map[string]bool{}
	for _, name := range a.Names {
		c, err := s.lookup(ctx, name)
		if err != nil {
			return nil, nil, err
		}
		at := -1
		if c != nil {
			at = slices.IndexFunc(c.Grants, func(g store.CredentialGrant) bool { return s.covers(&g, &a) })
		}
		if at < 0 {
			return nil, nil, fmt.Errorf("%s for %s: %w", name, a.to(), ErrNotGranted)
		}
		if variables[c.Variable] {
			return nil, nil, fmt.Errorf("%s for %s: %w: another one has its variable %s", name, a.to(), ErrNotGranted, c.Variable)
		}
		variables[c.Variable] = true
		found = append(found, released{c, c.Grants[at]})
		uses = append(uses, store.CredentialUse{
			Name: name, Service: a.to(), Version: c.Versions[0].Version, OperationID: a.Operation, UsedAt: s.now(),
		})
	}
	return found, uses, nil
}

// covers reports whether a grant lets a credential go where it is asked for.
func (s *Safe) covers(g *store.CredentialGrant, a *Ask) bool {
	switch {
	case g.Sink != a.Sink, !g.EndsAt.IsZero() && !s.now().Before(g.EndsAt):
		return false
	case a.Service != "" && !slices.Contains(g.Services, a.Service):
		return false
	case a.Service == "" && (!slices.Contains(g.Origins, a.Origin) || g.Place != a.Place):
		return false
	case a.Principal == "":
		return g.Unattended
	case len(g.Agents) == 0:
		return true
	}
	return statement.IsCommand(a.Principal) || slices.Contains(g.Agents, a.Principal) ||
		a.Agent != "" && slices.Contains(g.Agents, a.Principal+"/"+a.Agent)
}

// lookup returns a credential, which has a value; nil where there is none.
func (s *Safe) lookup(ctx context.Context, name string) (*store.Credential, error) {
	c, err := s.store.Credential(ctx, name)
	if errors.Is(err, store.ErrNotFound) || err == nil && len(c.Versions) == 0 {
		return nil, nil
	}
	return c, err
}

// find returns a credential, which has a value; ErrUnknown.
func (s *Safe) find(ctx context.Context, name string) (*store.Credential, error) {
	c, err := s.lookup(ctx, name)
	if err == nil && c == nil {
		return nil, ErrUnknown
	}
	return c, err
}
