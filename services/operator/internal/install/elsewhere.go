package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/goccy/go-yaml"

	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/pki"
	"durward.internal/services/platform/trust"
)

// elsewhere reports whether certificates come from an authority that is not on this host, a company's: its root is trusted, and the key of
// the built-in one is not there. What it issues is put where the built-in one puts it; nothing here issues then.
func elsewhere(root string) bool {
	_, key := os.Lstat(filepath.Join(root, pkiDir, pki.FileCAKey))
	_, roots := os.Lstat(filepath.Join(root, trustDir, trust.FileCA))
	return errors.Is(key, fs.ErrNotExist) && roots == nil
}

// delivered judges the certificate and key of a name as the process does that has them.
func delivered(root, name string, id identity.ID) (pki.Leaf, error) {
	dir := filepath.Join(root, tlsDir, name)
	leaf, err := pki.ReadPair(dir)
	if err != nil {
		return leaf, err
	}
	var members []uint32
	if gid, _, err := lookupGroup(root, User(name)); err == nil { // a process's; an operator's key and a tool's are their users'
		members = append(members, uint32(gid))
	}
	return leaf, installdir.Judge(filepath.Join(root, trustDir), identity.Files{Certificate: filepath.Join(dir, pki.FileCertificate), Key: filepath.Join(dir, pki.FileKey)}, id, members...)
}

// rootless reports whether no authority issued a certificate whose root is trusted here: however long it lasts, its process does not take it
// up, nor does anybody else.
func rootless(root, name string, id identity.ID) bool {
	_, err := delivered(root, name, id)
	return errors.Is(err, identity.ErrRoot)
}

// Certificates are those of an installation, each as the process that has it judges it now.
func Certificates(root string) ([]installdir.Certificate, error) {
	names, err := issued(root)
	if err != nil {
		return nil, err
	}
	var out []installdir.Certificate
	for _, name := range names {
		if api := installdir.WorkloadAPI(settingsFile(root, name)); api != "" {
			if address := healthAddress(root, name); address != "" { // the relay has none: it alone knows
				out = append(out, installdir.Supplied(name, api, address))
			}
			continue
		}
		c := installdir.Certificate{Role: name}
		id, err := identityOf(name)
		if err == nil {
			var leaf pki.Leaf
			leaf, err = delivered(root, name, id)
			c.Identity, c.NotBefore, c.NotAfter = id.String(), leaf.NotBefore.UTC(), leaf.NotAfter.UTC()
		}
		if err != nil {
			c.Problem = err.Error()
		}
		out = append(out, c)
	}
	return out, nil
}

func settingsFile(root, name string) string {
	if name == relay {
		name = "auditrelay"
	}
	return filepath.Join(root, etc, name+".yaml")
}

// healthAddress is where a process says how it is, for one who holds it to its user; "": its file does not say.
func healthAddress(root, name string) string {
	var cfg struct {
		Health string `yaml:"health_listen"`
	}
	if raw, err := os.ReadFile(settingsFile(root, name)); err != nil || yaml.Unmarshal(raw, &cfg) != nil {
		return ""
	}
	if u, err := config.ParseUnix(cfg.Health); err == nil {
		return config.Unix{Path: u.Path, Users: []string{User(name)}}.String()
	}
	return cfg.Health
}

// late returns why a certificate that nobody here renews needs another.
func late(leaf pki.Leaf, now time.Time) error {
	if !leaf.Due(now) {
		return nil
	}
	const form = "2006-01-02 15:04 MST"
	return fmt.Errorf("it lasts from %s to %s, and your authority has issued no other", leaf.NotBefore.UTC().Format(form), leaf.NotAfter.UTC().Format(form))
}
