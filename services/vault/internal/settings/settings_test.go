package settings

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/keyfile"
	"durward.internal/services/platform/platformtest/input"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/keyring"
)

const (
	example        = "../../../../deploy/config/vault.yaml"
	exampleClients = "../../../../deploy/config/clients.yaml"
)

func TestValidateRefuses(t *testing.T) {
	input.Outside(t)
	good := testfile.Read(t, example)
	off := "off: false" + strings.SplitN(strings.SplitN(string(good), "off: false", 2)[1], "types: []", 2)[0] + "types: []"
	for _, c := range []struct{ name, old, new, want string }{
		{"detectors while detection is off", off, "off: true\n  types: [EMAIL]", "privacy: off and types"},
		{"unknown key", "grant_key:", "grant_kye:", `"grant_kye"`},
		{"remote listener", "listen: 127.0.0.1:7431", "listen: 0.0.0.0:7431", "listen"},
		{"no clients file", "clients_file: /etc/durward/clients.yaml", "clients_file: \"\"", "clients_file"},
		{"relative grant key", "grant_key: /etc", "grant_key: etc", "grant_key"},
		{"relative security folder", "security_dir: /etc", "security_dir: etc", "security_dir"},
		{"no audit", "address: 127.0.0.1:7433", "address: \"\"", "audit"},
		{"audit of another role", "durward.local/audit/main", "durward.local/vault/main", "audit.identity"},
		{"no sinks", "sinks:\n  - role: executor\n    identity: spiffe://durward.local/executor/local\n", "sinks: []\n", "sinks: at least one"},
		{"sink of another role", "durward.local/executor/local", "durward.local/egress/main", "sinks[0].identity"},
		{"sink that is no sink", "role: executor", "role: gateway", "sinks[0].role"},
		{"sink without identity", "spiffe://durward.local/executor/local", "executor", "sinks[0].identity"},
		{"two sinks of a role", "limits:", "  - {role: executor, identity: \"spiffe://durward.local/executor/two\"}\nlimits:", "sinks[1].role"},
		{"too many sessions", "sessions: 0", "sessions: 65537", "limits.sessions"},
		{"negative pending", "pending: 0", "pending: -1", "limits.pending"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(string(good), c.old, c.new, 1)
			if text == string(good) {
				t.Fatalf("the example does not hold %q", c.old)
			}
			var s Settings
			err := config.Parse("vault.yaml", []byte(text), &s)
			if err == nil {
				err = s.Validate()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one about %s", err, c.want)
			}
		})
	}
}

func TestShippedExamples(t *testing.T) {
	input.Outside(t)
	var s Settings
	if err := config.Load(example, &s); err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
	list, err := clients.Read(exampleClients)
	if err != nil {
		t.Fatal(err)
	}
	var none identity.ID
	if len(list) != 3 || !list[0].KeyBound() || list[1].Identity == none || list[2].KeyBound() || list[2].Identity != none {
		t.Errorf("clients %+v", list)
	}
}

func TestKeysThatOthersCanReadAreRefused(t *testing.T) {
	s := Settings{GrantKey: filepath.Join(t.TempDir(), "grant.key")}
	s.StateDir = t.TempDir()
	for _, path := range []string{s.GrantKey, filepath.Join(s.StateDir, keyring.File)} {
		for mode, refused := range map[os.FileMode]bool{0o600: false, 0o604: true} {
			if err := errors.Join(os.WriteFile(path, []byte("secret"), 0o600), os.Chmod(path, mode)); err != nil {
				t.Fatal(err)
			}
			if err := s.Check(); errors.Is(err, keyfile.ErrOpen) != refused {
				t.Errorf("%s of mode %o: %v", path, mode, err)
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}
