package pki_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"durward.internal/services/platform/durable"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/pki"
)

func TestWriteLeafFor(t *testing.T) {
	ca, err := pki.NewCA("durward.local")
	must(t, err)
	id, err := identity.Parse("spiffe://durward.local/vault/main")
	must(t, err)
	certificate, key, err := ca.Issue(id, time.Hour)
	must(t, err)
	dir := t.TempDir()
	owner := durable.Owner{UID: os.Getuid(), GID: os.Getgid(), Mode: 0o640}
	if os.Getuid() == 0 {
		owner.UID, owner.GID = 64001, 64002
	}
	for _, bad := range []durable.Owner{{Mode: 0o644}, {Mode: 0o641}, {Mode: 0o642}} {
		if err := pki.WriteLeafFor(dir, certificate, key, bad); err == nil {
			t.Errorf("a key of mode %o is written", bad.Mode)
		}
	}
	if err := pki.WriteLeafFor(filepath.Join(dir, "missing"), certificate, key, owner); err == nil {
		t.Error("the folder is made, and is nobody's")
	}
	for range 2 { // the second time in the place of the first
		must(t, pki.WriteLeafFor(dir, certificate, key, owner))
		for _, file := range []string{pki.FileKey, pki.FileCertificate} {
			if got, err := pki.OwnerOf(filepath.Join(dir, file)); err != nil || got != owner {
				t.Errorf("%s belongs to %+v, %v", file, got, err)
			}
		}
	}
	if leaf, err := pki.ReadLeaf(filepath.Join(dir, pki.FileCertificate)); err != nil || leaf.ID != id {
		t.Errorf("%+v, %v", leaf, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("files left behind: %v, %v", entries, err)
	}
	link := filepath.Join(dir, "link")
	must(t, os.Symlink(pki.FileKey, link))
	if _, err := pki.OwnerOf(link); err == nil {
		t.Error("a link's owner is believed")
	}
}
