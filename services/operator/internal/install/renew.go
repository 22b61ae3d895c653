package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/pki"
)

// Renewal is what became of one certificate.
type Renewal struct {
	// Name is a process's, or "operators/NAME".
	Name     string    `json:"name"`
	Identity string    `json:"identity"`
	NotAfter time.Time `json:"not_after"`
	Renewed  bool      `json:"renewed"`
}

// Renew issues a new certificate and key for each of an installation that is due, or for all. The new files belong to whom
// the old ones belonged; processes take them up by themselves. A certificate that cannot be renewed keeps no other from it.
func Renew(root string, now time.Time, all bool) ([]Renewal, error) {
	if err := checkTree(root); err != nil {
		return nil, err
	}
	record, err := ReadRecord(root)
	if err != nil {
		return nil, err
	}
	ca, err := pki.Load(filepath.Join(root, pkiDir))
	if err != nil {
		return nil, err
	}
	names := installdir.Roles()
	operators, err := os.ReadDir(filepath.Join(root, tlsDir, "operators"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, entry := range operators {
		if !record.revokes(entry.Name()) {
			names = append(names, "operators/"+entry.Name())
		}
	}
	var out []Renewal
	var problems []error
	for _, name := range names {
		r, err := renew(ca, filepath.Join(root, tlsDir, name), name, now, all)
		if err != nil {
			problems = append(problems, fmt.Errorf("certificate of %s: %w", name, err))
			continue
		}
		out = append(out, r)
	}
	return out, errors.Join(problems...)
}

func renew(ca *pki.CA, dir, name string, now time.Time, all bool) (Renewal, error) {
	id, err := identityOf(name)
	if err != nil {
		return Renewal{}, err
	}
	owner, err := pki.OwnerOf(filepath.Join(dir, pki.FileKey))
	if err != nil {
		return Renewal{}, errors.New("there is none to renew: durward install --apply makes it")
	}
	leaf, err := pki.ReadPair(dir)
	if err == nil && leaf.ID == id && !all && !leaf.Due(now) {
		return Renewal{Name: name, Identity: id.String(), NotAfter: leaf.NotAfter.UTC()}, nil
	}
	certificate, key, err := ca.Issue(id, 0)
	if err != nil {
		return Renewal{}, err
	}
	if err := pki.WriteLeafFor(dir, certificate, key, owner); err != nil {
		return Renewal{}, err
	}
	return Renewal{Name: name, Identity: id.String(), NotAfter: now.Add(pki.LeafLife).UTC(), Renewed: true}, nil
}

// identityOf is who a folder below tls/ is for. It is told from the folder's name alone, which is root's to give.
func identityOf(name string) (identity.ID, error) {
	if filepath.Dir(name) == "operators" {
		return operatorIdentity(filepath.Base(name))
	}
	return roleIdentity(name)
}
