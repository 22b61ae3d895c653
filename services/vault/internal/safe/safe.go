// Package safe keeps the credentials that services are given: who added them, to which services of which sink they are granted, and
// which service got which value. Values are encrypted by package keyring, and leave for a launcher alone.
//
// It runs in the vault. It trusts its caller to have verified statements and grants; to whom a value may go it judges itself.
package safe

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"slices"
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
	// mu orders changes and releases: what a revocation took away is released to nobody once it has returned.
	mu sync.Mutex
}

// New makes a Safe on a store and its keys.
func New(s *store.Store, ring *keyring.Ring, now func() time.Time) *Safe {
	return &Safe{store: s, ring: ring, now: now}
}

// Keys are the keys, for operators to unseal.
func (s *Safe) Keys() *keyring.Ring { return s.ring }

// List returns all that is known of the credentials beside their values.
func (s *Safe) List(ctx context.Context) ([]*store.Credential, error) {
	return s.store.Credentials(ctx)
}

// MayChange reports why Change would fail, before the change is recorded.
func (s *Safe) MayChange(ctx context.Context, c *statement.Credential, value, salt []byte) error {
	found, err := s.find(ctx, c.Name)
	switch {
	case err != nil && !errors.Is(err, ErrUnknown):
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
		return s.store.GrantCredential(ctx, c.Name, c.Sink, c.Services, used)
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

// Revoke takes a credential from a service, or from all, and returns it as it was before. Once it has returned nobody gets a value by
// what was revoked.
func (s *Safe) Revoke(ctx context.Context, name, service string) (*store.Credential, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.find(ctx, name)
	if err != nil {
		return nil, err
	}
	var left []string
	if service != "" {
		if !slices.Contains(c.Services, service) {
			return nil, ErrNotGranted
		}
		left = slices.DeleteFunc(slices.Clone(c.Services), func(other string) bool { return other == service })
	}
	return c, s.store.RevokeCredential(ctx, name, c.Sink, left, s.now())
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

// Rotate puts a new data key in the place of the old, and returns how many values it encrypted anew.
func (s *Safe) Rotate(ctx context.Context, passphrase []byte) (int, error) {
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
	return len(values), s.ring.Rotate(ctx, values, passphrase)
}

// Ask is a service that is about to start.
type Ask struct {
	Sink, Service, Operation string
	Names                    []string
}

// MayRelease reports why Release would fail, and which versions it would release. The error names the credential.
func (s *Safe) MayRelease(ctx context.Context, a Ask) ([]store.CredentialUse, error) {
	_, uses, err := s.granted(ctx, a)
	return uses, err
}

// Release hands the newest value of each credential that the service is granted to seal, which encrypts them; the values are wiped when
// it returns.
func (s *Safe) Release(ctx context.Context, a Ask, seal func([]handover.Value) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, uses, err := s.granted(ctx, a)
	if err != nil {
		return err
	}
	var values []handover.Value
	for _, c := range found {
		newest := c.Versions[0]
		plain, err := s.ring.Decrypt(ctx, c.Name, newest.Version, newest.Value)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		defer clear(plain)
		values = append(values, handover.Value{
			Name: c.Name, File: c.Delivery == statement.DeliveryFile, Variable: c.Variable, Value: plain[statement.CommitmentKey:],
		})
	}
	if err := s.store.UseCredentials(ctx, uses); err != nil {
		return err
	}
	return seal(values)
}

func (s *Safe) granted(ctx context.Context, a Ask) (found []*store.Credential, uses []store.CredentialUse, err error) {
	if s.ring.Sealed(ctx) {
		return nil, nil, keyring.ErrSealed
	}
	variables := map[string]bool{}
	for _, name := range a.Names {
		c, err := s.find(ctx, name)
		if err != nil && !errors.Is(err, ErrUnknown) {
			return nil, nil, err
		}
		if c == nil || c.Sink != a.Sink || !slices.Contains(c.Services, a.Service) {
			return nil, nil, fmt.Errorf("%s for %s: %w", name, a.Service, ErrNotGranted)
		}
		if variables[c.Variable] {
			return nil, nil, fmt.Errorf("%s for %s: %w: another one has its variable %s", name, a.Service, ErrNotGranted, c.Variable)
		}
		variables[c.Variable] = true
		found = append(found, c)
		uses = append(uses, store.CredentialUse{
			Name: name, Service: a.Service, Version: c.Versions[0].Version, OperationID: a.Operation, UsedAt: s.now(),
		})
	}
	return found, uses, nil
}

// find returns a credential, which has a value; ErrUnknown.
func (s *Safe) find(ctx context.Context, name string) (*store.Credential, error) {
	c, err := s.store.Credential(ctx, name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, ErrUnknown
	case err != nil:
		return nil, err
	case len(c.Versions) == 0:
		return nil, fmt.Errorf("%s has no value: %w", name, ErrUnknown)
	}
	return c, nil
}
