package settings

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/security"
	"durward.internal/services/vault/internal/clients"
)

// Four eyes that cannot be told apart are warned of, and nothing else is.
func TestFourEyesWarnings(t *testing.T) {
	for name, c := range map[string]struct {
		settings, user string
		revoked        bool
		operators      []string
		want           []string
	}{
		"a client without a user":         {"approvals: {four_eyes: true}", "", false, []string{"alice"}, []string{"the client ada has no user"}},
		"an operator whom no user can be": {"approvals: {four_eyes: true}", "alice", false, []string{"Alice", "Alice", "bob"}, []string{"the operator Alice"}},
		"both":                            {"approvals: {four_eyes: true}", "", false, []string{"a@b.example"}, []string{"ada", "a@b.example"}},
		"neither":                         {"approvals: {four_eyes: true}", "alice", false, []string{"alice", "bob"}, nil},
		"no four eyes":                    {"approvals: {four_eyes: false}", "", false, []string{"Alice"}, nil},
		"a client that is not let in":     {"approvals: {four_eyes: true}", "", true, []string{"Alice"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir, own := t.TempDir(), t.TempDir()
			sum := sha256.Sum256([]byte("token"))
			entry := "clients:\n  - id: ada\n    channel: cli\n    tier_ceiling: READ\n    token_sha256: " + hex.EncodeToString(sum[:]) + "\n"
			if c.user != "" {
				entry += "    user: " + c.user + "\n"
			}
			if c.revoked {
				entry += "    revoked: true\n"
			}
			for file, text := range map[string]string{filepath.Join(own, "clients.yaml"): entry, filepath.Join(dir, "security.yaml"): c.settings + "\n"} {
				testfile.Write(t, file, text)
			}
			list, err := clients.Read(filepath.Join(own, "clients.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			state, err := security.Try(security.Options{Dir: dir}, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := fourEyes(state, list, c.operators)
			if len(got) != len(c.want) {
				t.Fatalf("%q", got)
			}
			for i, want := range c.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("%q, want one about %q", got[i], want)
				}
			}
			if s := (&Settings{ClientsFile: filepath.Join(own, "clients.yaml"), SecurityDir: dir}); len(s.Warnings()) > len(got) {
				t.Errorf("%q", s.Warnings())
			}
		})
	}
}
