package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"durward.internal/services/platform/database"
)

// Credential is what is kept of a stored credential beside its values.
type Credential struct {
	Name               string
	Delivery, Variable string
	ChangedAt          time.Time
	// Grants are to whom it is granted, by sink.
	Grants []CredentialGrant
	// Versions are its values, newest first; Uses the last that each service or origin got.
	Versions []CredentialVersion
	Uses     []CredentialUse
}

// CredentialGrant is what one sink may do with a credential, as a statement has it.
type CredentialGrant struct {
	Name, Sink        string
	Services, Origins []string
	Place, Scheme     string
	Agents            []string
	Unattended        bool
	// EndsAt is zero where it lasts until it is revoked.
	EndsAt time.Time
}

// CredentialVersion is one value, encrypted.
type CredentialVersion struct {
	Name    string
	Version uint32
	Value   []byte
	AddedBy string
	AddedAt time.Time
}

// CredentialUse is a value that a service got, or that was put into a request.
type CredentialUse struct {
	Name string
	// Service is the service's id, or the origin.
	Service     string
	Version     uint32
	OperationID string
	UsedAt      time.Time
}

// Keyring is the data keys, encrypted.
type Keyring struct {
	Wrapped, Salt []byte
	ChangedAt     time.Time
}

// Credentials returns all of them, by name. A row that does not bear its seal is an error: by it somebody could get a value.
func (s *Store) Credentials(ctx context.Context) ([]*Credential, error) {
	return s.credentials(ctx, "")
}

// Credential returns one, or ErrNotFound.
func (s *Store) Credential(ctx context.Context, name string) (*Credential, error) {
	found, err := s.credentials(ctx, "WHERE name = ? ", name)
	if err == nil && len(found) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return found[0], nil
}

func (s *Store) credentials(ctx context.Context, which string, args ...any) ([]*Credential, error) {
	var out []*Credential
	byName := map[string]*Credential{}
	err := s.sound(ctx, credentials, which+"ORDER BY name", args, func(scan func(...any) error) error {
		c := &Credential{}
		var changed int64
		err := scan(&c.Name, &c.Delivery, &c.Variable, &changed)
		c.ChangedAt = at(changed)
		out, byName[c.Name] = append(out, c), c
		return err
	})
	if err != nil {
		return nil, err
	}
	err = s.sound(ctx, credentialGrants, which+"ORDER BY name, sink", args, func(scan func(...any) error) error {
		var g CredentialGrant
		var services, origins, agents string
		var unattended, ends int64
		err := scan(&g.Name, &g.Sink, &services, &origins, &g.Place, &g.Scheme, &agents, &unattended, &ends)
		g.Services, g.Origins, g.Agents = strings.Fields(services), strings.Fields(origins), strings.Fields(agents)
		if g.Unattended = unattended != 0; ends != 0 {
			g.EndsAt = at(ends)
		}
		if c := byName[g.Name]; c != nil {
			c.Grants = append(c.Grants, g)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	err = s.sound(ctx, credentialVersions, which+"ORDER BY name, version DESC", args, func(scan func(...any) error) error {
		var v CredentialVersion
		var added int64
		err := scan(&v.Name, &v.Version, &v.Value, &v.AddedBy, &added)
		v.AddedAt = at(added)
		if c := byName[v.Name]; c != nil {
			c.Versions = append(c.Versions, v)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, s.sound(ctx, credentialUses, which+"ORDER BY name, service", args, func(scan func(...any) error) error {
		var u CredentialUse
		var used int64
		err := scan(&u.Name, &u.Service, &u.Version, &u.OperationID, &used)
		u.UsedAt = at(used)
		if c := byName[u.Name]; c != nil {
			c.Uses = append(c.Uses, u)
		}
		return err
	})
}

// sound reads rows each of which must bear its seal.
func (s *Store) sound(ctx context.Context, t *table, rest string, args []any, row func(scan func(...any) error) error) error {
	err := s.engine.find(ctx, t, rest, args, func(scan scanner) (bool, error) {
		err := row(func(into ...any) error {
			sound, err := scan(into...)
			if err == nil && !sound {
				err = fmt.Errorf("a row of %s does not bear its seal: %w", t.name, database.ErrDamaged)
			}
			return err
		})
		return true, err
	})
	if err != nil {
		return fmt.Errorf("read %s: %w", t.name, err)
	}
	return nil
}

// PutCredential adds a value, and with the first one its credential, by a statement; ErrState where there is that version, or, with a
// later one, no such credential.
func (s *Store) PutCredential(ctx context.Context, c *Credential, v CredentialVersion, used UsedStatement) error {
	return s.credential(ctx, used, func(w writer) error {
		if v.Version == 1 {
			if added, err := w.insert(ctx, credentials, c.Name, c.Delivery, c.Variable, nanos(v.AddedAt)); err != nil || !added {
				return orState(err)
			}
		} else if n, err := w.update(ctx, credentials, []column{{"changed_at", nanos(v.AddedAt)}}, "name = ?", v.Name); err != nil || n == 0 {
			return orState(err)
		}
		added, err := w.insert(ctx, credentialVersions, v.Name, v.Version, v.Value, v.AddedBy, nanos(v.AddedAt))
		if err != nil || !added {
			return orState(err)
		}
		return nil
	})
}

// GrantCredential puts a grant in the place of the one that its sink had, by a statement; ErrState where there is no such credential.
func (s *Store) GrantCredential(ctx context.Context, g CredentialGrant, used UsedStatement) error {
	return s.credential(ctx, used, func(w writer) error { return s.setGrants(ctx, w, g.Name, []CredentialGrant{g}, used.UsedAt) })
}

// RevokeCredential puts what is left of grants in their place, each for its sink, and takes away those that are left with nothing. It may
// use the reserve.
func (s *Store) RevokeCredential(ctx context.Context, name string, left []CredentialGrant, when time.Time) error {
	return s.write(ctx, always, func(w writer) error { return s.setGrants(ctx, w, name, left, when) })
}

func (s *Store) setGrants(ctx context.Context, w writer, name string, grants []CredentialGrant, when time.Time) error {
	if n, err := w.update(ctx, credentials, []column{{"changed_at", nanos(when)}}, "name = ?", name); err != nil || n == 0 {
		return orState(err)
	}
	for _, g := range grants {
		if err := w.remove(ctx, credentialGrants, "name = ? AND sink = ?", name, g.Sink); err != nil {
			return err
		}
		if len(g.Services) == 0 && len(g.Origins) == 0 {
			continue
		}
		unattended, ends := int64(0), int64(0)
		if g.Unattended {
			unattended = 1
		}
		if !g.EndsAt.IsZero() {
			ends = nanos(g.EndsAt)
		}
		if _, err := w.insert(ctx, credentialGrants, name, g.Sink, strings.Join(g.Services, " "), strings.Join(g.Origins, " "), g.Place,
			g.Scheme, strings.Join(g.Agents, " "), unattended, ends); err != nil {
			return err
		}
	}
	return nil
}

// RemoveCredential forgets one version, or with 0 all of it.
func (s *Store) RemoveCredential(ctx context.Context, name string, version uint32) error {
	return s.write(ctx, always, func(w writer) error {
		if version != 0 {
			return w.remove(ctx, credentialVersions, "name = ? AND version = ?", name, version)
		}
		return errors.Join(w.remove(ctx, credentialGrants, "name = ?", name), w.remove(ctx, credentialVersions, "name = ?", name), w.remove(ctx, credentialUses, "name = ?", name),
			w.remove(ctx, credentials, "name = ?", name))
	})
}

// UseCredentials writes down that a service gets values.
func (s *Store) UseCredentials(ctx context.Context, uses []CredentialUse) error {
	return s.engine.transact(ctx, func(w writer) error {
		for _, u := range uses {
			if err := w.remove(ctx, credentialUses, "name = ? AND service = ?", u.Name, u.Service); err != nil {
				return err
			}
			if _, err := w.insert(ctx, credentialUses, u.Name, u.Service, u.Version, u.OperationID, nanos(u.UsedAt)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Keyring returns the data keys, or ErrNotFound.
func (s *Store) Keyring(ctx context.Context) (*Keyring, error) {
	var k *Keyring
	err := s.sound(ctx, keyring, "", nil, func(scan func(...any) error) error {
		k = &Keyring{}
		var id, changed int64
		err := scan(&id, &k.Wrapped, &k.Salt, &changed)
		k.ChangedAt = at(changed)
		return err
	})
	if err == nil && k == nil {
		err = ErrNotFound
	}
	return k, err
}

// SetKeyring puts data keys in the place of others, with every value as it is under the new ones.
func (s *Store) SetKeyring(ctx context.Context, k Keyring, values []CredentialVersion) error {
	return s.engine.transact(ctx, func(w writer) error {
		if err := w.remove(ctx, keyring, "id = ?", 1); err != nil {
			return err
		}
		if _, err := w.insert(ctx, keyring, 1, blob(k.Wrapped), blob(k.Salt), nanos(k.ChangedAt)); err != nil {
			return err
		}
		for _, v := range values {
			if n, err := w.update(ctx, credentialVersions, []column{{"value", v.Value}}, "name = ? AND version = ?", v.Name, v.Version); err != nil || n == 0 {
				return orState(err)
			}
		}
		return nil
	})
}

func (s *Store) credential(ctx context.Context, used UsedStatement, f func(writer) error) error {
	return s.engine.transact(ctx, func(w writer) error {
		if err := use(ctx, w, used); err != nil {
			return err
		}
		return f(w)
	})
}

// orState is err, or ErrState where a row was not as it had to be.
func orState(err error) error {
	if err == nil {
		return ErrState
	}
	return err
}
