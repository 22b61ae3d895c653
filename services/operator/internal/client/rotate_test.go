package client

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/operator/internal/edit"
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
		{"flow style", "clients: [{id: a, token_sha256: \"" + digest + "\", channel: cli, tier_ceiling: READ}]\n", "a", "", edit.ErrLayout},
		{"a value elsewhere", "clients:\n  - id: a\n    token_sha256:\n      " + digest + "\n    channel: cli\n    tier_ceiling: READ\n", "a", "", edit.ErrLayout},
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
	must(t, err)
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
		must(t, err)
		return c
	}
	old := load()
	dropped, err := Renew(folder, "agent")
	must(t, err)
	if err := dropped.Drop(); err != nil || load().Token != old.Token {
		t.Errorf("a renewal that was given up: %v", err)
	}
	back, err := Renew(folder, "agent")
	must(t, err)
	if err := back.Place(); err != nil || load().Token == old.Token {
		t.Errorf("the new token is not in its place: %v", err)
	}
	if err := back.Drop(); err != nil || load().Token != old.Token || !load().Key.Equal(old.Key) {
		t.Errorf("a renewal that was taken back: %v", err)
	}
	fresh, err := Renew(folder, "agent")
	must(t, err)
	if load().Token != old.Token {
		t.Error("the new token is in use before it was entered")
	}
	must(t, fresh.Use())
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

// TestRenewKeepsTheOwner: what root renews stays whom it belonged to, or that user's programs could read it no more.
func TestRenewKeepsTheOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	for _, bearer := range []bool{true, false} {
		folder := filepath.Join(t.TempDir(), "agent")
		if _, err := Create(folder, "agent", "cli", "READ", bearer); err != nil {
			t.Fatal(err)
		}
		files := []string{folder, filepath.Join(folder, FileToken)}
		if !bearer {
			files = append(files, filepath.Join(folder, FileKey))
		}
		for _, file := range files {
			must(t, os.Chown(file, 12345, 23456))
		}
		fresh, err := Renew(folder, "agent")
		must(t, err)
		must(t, fresh.Use())
		for _, file := range files {
			info, err := os.Stat(file)
			must(t, err)
			if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != 12345 || st.Gid != 23456 || st.Mode&0o077 != 0 {
				t.Errorf("%s belongs to %d:%d, mode %o", file, st.Uid, st.Gid, st.Mode)
			}
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
