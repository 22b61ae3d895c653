package install

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/signingkey"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/pki"
)

// JoinOptions say how a person's own side is made.
type JoinOptions struct {
	// Home is the person's folder.
	Home installdir.Home
	// Operator is the name in approvals.
	Operator string
	// SigningKey is a key file that is there already, absolute; empty: keys/operator_ed25519 of the home, made if missing.
	SigningKey string
	// Without makes no key: for root, who approves nothing.
	Without bool
	// Passphrase is asked for when a key is made; it may return signingkey.ErrNeedsHuman.
	Passphrase func() ([]byte, error)
}

// Key is the key that an operator's side is to sign with.
type Key struct {
	// Public is the public half, in OpenSSH's form.
	Public []byte
	// File is where the key lies, and Since when its file was last written; both are its owner's word.
	File  string
	Since time.Time
	// Aside is where the installation lies now that was in the home before, such as one of `durward up`; empty: there was none.
	Aside string
}

// Join makes the own side of an operator of this host's installation: configuration, folders and, where there is none, a
// signing key with a passphrase. It runs as the operator. An installation of its own that lies in the home is set aside, also where
// Join then fails; else nothing that is there is changed. It returns the key, none where it was asked for none; and
// signingkey.ErrNeedsHuman, without a configuration, where nobody could be asked for a passphrase.
func Join(settings Settings, opts JoinOptions) (key Key, err error) {
	h := opts.Home
	there := h.Exists()
	if there {
		cfg, err := h.Load()
		if err != nil {
			return Key{}, err
		}
		switch {
		case cfg.TrustDir != trustDir:
			if key.Aside, err = setAside(opts); err != nil {
				return Key{}, err
			}
			there = false
		case opts.SigningKey != "" && opts.SigningKey != cfg.SigningKey:
			return Key{}, fmt.Errorf("%s names another signing key: edit it", h.Config("operator"))
		default:
			opts.SigningKey = cfg.SigningKey // for root it names a key that is not there, and is not asked for
		}
	}
	folders := []string{filepath.Dir(h.Config("x")), filepath.Dir(h.Key("x")), h.State("operator"), filepath.Dir(h.Client("x")), filepath.Join(h.Dir, "run")}
	for _, dir := range folders {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return key, fmt.Errorf("home folder: %w", err)
		}
	}
	file := cmp.Or(opts.SigningKey, h.Key("operator_ed25519"))
	if !opts.Without {
		if key.Public, err = signingKey(file, opts); err != nil {
			return key, err
		}
		info, err := os.Stat(file)
		if err != nil {
			return key, fmt.Errorf("signing key: %w", err)
		}
		key.File, key.Since = file, info.ModTime()
	}
	if !there {
		data, err := values{Settings: settings, Operator: opts.Operator, State: h.State("operator"), SigningKey: file}.render("operator")
		if err != nil {
			return key, err
		}
		if err := installdir.CreateFile(h.Config("operator"), data, 0o600); err != nil {
			return key, err
		}
	}
	return key, nil
}

// setAside moves what lies in the home out of the way, unless it is in use.
func setAside(opts JoinOptions) (string, error) {
	h := opts.Home
	if strings.HasPrefix(opts.SigningKey, h.Dir+"/") {
		return "", fmt.Errorf("the key %s lies in an installation of its own, %s, which is set aside: copy the key elsewhere first", opts.SigningKey, h.Dir)
	}
	aside, err := h.SetAside()
	if errors.Is(err, installdir.ErrLocked) {
		return "", fmt.Errorf("%s is an installation of its own, for which durward up still runs: end it with durward down, and go on", h.Dir)
	}
	return aside, err
}

// signingKey returns the public half of the key, which it makes if it is to lie in the home and does not.
func signingKey(file string, opts JoinOptions) ([]byte, error) {
	publicFile := file
	if filepath.Ext(file) != ".pub" {
		publicFile += ".pub"
	}
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		if file != opts.Home.Key("operator_ed25519") {
			return nil, fmt.Errorf("signing key: %w", err)
		}
		if err := makeKey(file, publicFile, opts); err != nil {
			return nil, err
		}
	}
	if filepath.Ext(file) != ".pub" {
		protected, err := signingkey.Protected(file)
		if err != nil {
			return nil, err
		}
		if !protected {
			return nil, fmt.Errorf("the signing key %[1]s has no passphrase: any program of yours could approve. Give it one: ssh-keygen -p -f %[1]s", file)
		}
	}
	public, err := os.ReadFile(publicFile)
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	if _, err := signingkey.ReadPublic(publicFile); err != nil {
		return nil, err
	}
	return public, nil
}

func makeKey(file, publicFile string, opts JoinOptions) error {
	if opts.Passphrase == nil {
		return signingkey.ErrNeedsHuman
	}
	passphrase, err := opts.Passphrase()
	if err != nil {
		return err
	}
	defer clear(passphrase)
	if len(passphrase) == 0 {
		return errors.New("a signing key needs a passphrase here")
	}
	private, public, err := signingkey.Generate(opts.Operator+"@durward", passphrase)
	if err != nil {
		return err
	}
	if err := installdir.WriteFile(publicFile, public, 0o600); err != nil {
		return err
	}
	return installdir.CreateFile(file, private, 0o600)
}

// Renewal is what became of one certificate.
type Renewal struct {
	// Name is a process's, "operators/NAME" or "notifiers/NAME".
	Name     string    `json:"name"`
	Identity string    `json:"identity"`
	NotAfter time.Time `json:"not_after"`
	Renewed  bool      `json:"renewed"`
}

// Renew issues a new certificate and key for each of an installation that is due, or for all. The new files belong to whom
// the old ones belonged; processes take them up by themselves. A certificate that cannot be renewed keeps no other from it. Where an
// authority elsewhere issues them, it judges what there is.
func Renew(root string, now time.Time, all bool) ([]Renewal, error) {
	if err := checkTree(root); err != nil {
		return nil, err
	}
	names, err := issued(root)
	if err != nil {
		return nil, err
	}
	var ca *pki.CA // nil: it is elsewhere
	if !elsewhere(root) {
		if ca, err = pki.Load(filepath.Join(root, pkiDir)); err != nil {
			return nil, err
		}
	}
	var out []Renewal
	var problems []error
	for _, name := range names {
		if installdir.WorkloadAPI(settingsFile(root, name)) != "" {
			continue
		}
		r, err := renew(root, ca, name, now, all)
		if err != nil {
			problems = append(problems, fmt.Errorf("certificate of %s: %w", name, err))
			continue
		}
		out = append(out, r)
	}
	return out, errors.Join(problems...)
}

// issued names the folders below tls/ that have certificates, but for those of revoked operators.
func issued(root string) ([]string, error) {
	record, err := ReadRecord(root)
	if err != nil {
		return nil, err
	}
	names := append(installdir.Roles(), installdir.Added(filepath.Join(root, tlsDir))...)
	for _, kind := range []string{"operators", "notifiers"} {
		of, err := os.ReadDir(filepath.Join(root, tlsDir, kind))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, entry := range of {
			if !record.revokes(entry.Name()) {
				names = append(names, kind+"/"+entry.Name())
			}
		}
	}
	return names, nil
}

func renew(root string, ca *pki.CA, name string, now time.Time, all bool) (Renewal, error) {
	dir := filepath.Join(root, tlsDir, name)
	id, err := identityOf(name)
	if err != nil {
		return Renewal{}, err
	}
	if ca == nil {
		leaf, err := delivered(root, name, id)
		return Renewal{Name: name, Identity: id.String(), NotAfter: leaf.NotAfter.UTC()}, cmp.Or(err, late(leaf, now))
	}
	owner, err := pki.OwnerOf(filepath.Join(dir, pki.FileKey))
	if err != nil {
		return Renewal{}, errors.New("there is none to renew: durward install --apply makes it")
	}
	leaf, err := pki.ReadPair(dir)
	if err == nil && leaf.ID == id && !all && !leaf.Due(now) && !rootless(root, name, id) {
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
	switch filepath.Dir(name) {
	case "operators":
		return installdir.ProcessIdentity("operator", filepath.Base(name))
	case "notifiers":
		return installdir.ProcessIdentity("notifier", filepath.Base(name))
	}
	return installdir.ProcessIdentity(name, "")
}
