package client

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	otherDigest = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
	oldKey      = "ssh-ed25519 OLD agent"
	newKey      = "ssh-ed25519 NEW agent"
)

func TestRotateRefuses(t *testing.T) {
	entry := "clients:\n  - id: a\n    token_sha256: \"" + digest + "\"\n    channel: cli\n    tier_ceiling: READ\n"
	for _, c := range []struct {
		name, file, client, key string
		want                    error
	}{
		{"unknown", entry, "b", "", ErrUnknown},
		{"revoked", entry + "    revoked: true\n", "a", "", ErrRevoked},
		{"flow style", "clients: [{id: a, token_sha256: \"" + digest + "\", channel: cli, tier_ceiling: READ}]\n", "a", "", ErrLayout},
		{"a value elsewhere", "clients:\n  - id: a\n    token_sha256:\n      " + digest + "\n    channel: cli\n    tier_ceiling: READ\n", "a", "", ErrLayout},
		{"a key for a bearer client", entry, "a", newKey, nil},
		{"no key for another", entry + "    key: " + oldKey + "\n", "a", "", nil},
	} {
		out, err := Rotate([]byte(c.file), c.client, Rotation{TokenSHA256: otherDigest, Key: c.key})
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %q, %v", c.name, out, err)
		}
	}
}

// TestRotate: the credential is replaced wherever it stands, an earlier one goes, and everything else keeps its bytes.
func TestRotate(t *testing.T) {
	until := time.Date(2026, 11, 23, 7, 0, 0, 5, time.UTC)
	file := `# Who may connect.
clients:
  # The desk.
  - token_sha256: ` + digest + ` # of the desk
    id: desk
    previous: # an earlier rotation
      token_sha256: 1111111111111111111111111111111111111111111111111111111111111111
      # gone soon
      key: ssh-ed25519 OLDER agent
      until: 2026-01-01T00:00:00Z
    key: '` + oldKey + `'
    channel: cli

    tier_ceiling: WRITE # enough
    agents: [a]
  # The wall.
  - id: wall
    token_sha256: "2222222222222222222222222222222222222222222222222222222222222222"
    channel: api
    tier_ceiling: READ
`
	want := `# Who may connect.
clients:
  # The desk.
  - token_sha256: "` + otherDigest + `" # of the desk
    id: desk
    key: "` + newKey + `"
    channel: cli

    tier_ceiling: WRITE # enough
    agents: [a]
    previous:
      token_sha256: "` + digest + `"
      key: "` + oldKey + `"
      until: "2026-11-23T07:00:00Z"
  # The wall.
  - id: wall
    token_sha256: "2222222222222222222222222222222222222222222222222222222222222222"
    channel: api
    tier_ceiling: READ
`
	got, err := Rotate([]byte(file), "desk", Rotation{TokenSHA256: otherDigest, Key: newKey, Until: until})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	again, err := Rotate(got, "wall", Rotation{TokenSHA256: digest})
	if err != nil || !strings.HasSuffix(string(again), "  - id: wall\n    token_sha256: \""+digest+"\"\n    channel: api\n    tier_ceiling: READ\n") {
		t.Errorf("at once: %v\n%s", err, again)
	}
}

// TestRenew: the old files stay until the new ones are used, and then nothing of them is left.
func TestRenew(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "agent")
	if _, err := Renew(folder, "agent"); err == nil {
		t.Error("a client without files was renewed")
	}
	if _, err := Create(folder, "agent", "cli", "READ", false); err != nil {
		t.Fatal(err)
	}
	load := func() Credentials {
		t.Helper()
		c, err := LoadCredentials(folder)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	old := load()
	dropped, err := Renew(folder, "agent")
	if err != nil {
		t.Fatal(err)
	}
	if err := dropped.Drop(); err != nil || load().Token != old.Token {
		t.Errorf("a renewal that was given up: %v", err)
	}
	fresh, err := Renew(folder, "agent")
	if err != nil {
		t.Fatal(err)
	}
	if load().Token != old.Token {
		t.Error("the new token is in use before it was entered")
	}
	if err := fresh.Use(); err != nil {
		t.Fatal(err)
	}
	now := load()
	if now.Token == old.Token || now.Key.Equal(old.Key) {
		t.Error("the old credential is still there")
	}
	if list, err := os.ReadDir(filepath.Dir(folder)); err != nil || len(list) != 1 {
		t.Errorf("left over: %v, %v", list, err)
	}
	if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder's mode is %v, %v", info.Mode(), err)
	}
}
