package main

import (
	"path/filepath"
	"testing"
	"time"

	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/security"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/settings"
)

// TestClientsAreJudgedByWhoReadsThem: a clients file that the registry does not take up is refused, not in force.
func TestClientsAreJudgedByWhoReadsThem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "clients.yaml")
	write := func(text string) {
		t.Helper()
		testfile.Write(t, path, text)
	}
	write("clients: []\n")
	registry, err := clients.Open(clients.Config{Path: path, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer registry.Close()
	changed := security.Change{File: settings.ClientsName, Before: "sha256:aa", After: "sha256:bb"}
	if got := judged(changed, registry); got.Problem != "" {
		t.Errorf("a good file: %q", got.Problem)
	}
	write("clients:\n  - {id: x, nonsense: 1}\n")
	if got := judged(changed, registry); got.Problem == "" {
		t.Error("a file that cannot be read counts as in force")
	}
	other := changed
	other.File = "tools.yaml"
	if got := judged(other, registry); got.Problem != "" {
		t.Errorf("another file: %q", got.Problem)
	}
}
