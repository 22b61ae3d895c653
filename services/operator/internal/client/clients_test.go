package client

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/operator/internal/edit"
)

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func sample(name string) Client {
	return Client{ID: name, TokenSHA256: digest, Channel: "cli", TierCeiling: "WRITE"}
}

func TestAddRefuses(t *testing.T) {
	for _, c := range []struct {
		name, file string
		change     func(*Client)
		want       string
	}{
		{"bad name", "clients: []\n", func(c *Client) { c.ID = "Claude Code" }, "a client's name"},
		{"newline in name", "clients: []\n", func(c *Client) { c.ID = "x\n" }, "a client's name"},
		{"path in name", "clients: []\n", func(c *Client) { c.ID = "../x" }, "a client's name"},
		{"bad channel", "clients: []\n", func(c *Client) { c.Channel = "cli\nrevoked: true" }, "channel"},
		{"bad tier", "clients: []\n", func(c *Client) { c.TierCeiling = "DENIED" }, "tier"},
		{"taken", "clients:\n  - id: new\n    token_sha256: \"" + digest + "\"\n    channel: cli\n    tier_ceiling: READ\n    revoked: true\n", func(*Client) {}, ErrExists.Error()},
		{"unknown key", "clientz: []\n", func(*Client) {}, "clientz"},
		{"flow style", "clients: [{id: a, token_sha256: \"" + digest + "\", channel: cli, tier_ceiling: READ}]\n", func(*Client) {}, edit.ErrLayout.Error()},
		{"empty file", "", func(*Client) {}, "empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := sample("new")
			c.change(&client)
			out, err := Add([]byte(c.file), client)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %q, %v; want an error with %q", out, err, c.want)
			}
		})
	}
}

func TestAddAndRevokeKeepEverythingElse(t *testing.T) {
	file := "# Who may connect.\nclients: [] # none yet\n"
	b, err := Add([]byte(file), sample("first"))
	must(t, err)
	b, err = Add(append(b, []byte("\n# the end\n")...), Client{ID: "second", TokenSHA256: strings.Repeat("a", 64), Key: "ssh-ed25519 AAAA x", Channel: "messaging:signal", TierCeiling: "READ"})
	must(t, err)
	b = []byte(strings.Replace(string(b), "- id: first\n", "- id: first # the laptop\n", 1))
	b, err = Revoke(b, "first")
	must(t, err)
	want := `# Who may connect.
clients: # none yet
  - id: first # the laptop
    token_sha256: "` + digest + `"
    channel: cli
    tier_ceiling: WRITE
    revoked: true
  - id: second
    token_sha256: "` + strings.Repeat("a", 64) + `"
    key: "ssh-ed25519 AAAA x"
    channel: messaging:signal
    tier_ceiling: READ

# the end
`
	if diff := cmp.Diff(want, string(b)); diff != "" {
		t.Error(diff)
	}
	again, err := Revoke(b, "first")
	if err != nil || string(again) != string(b) {
		t.Errorf("revoking again: %v", err)
	}
	if _, err := Revoke(b, "third"); !errors.Is(err, ErrUnknown) {
		t.Errorf("revoking nobody: %v", err)
	}
	last, err := Revoke(b, "second")
	if err != nil || !strings.Contains(string(last), "tier_ceiling: READ\n    revoked: true\n\n# the end\n") {
		t.Errorf("revoking the last: %v\n%s", err, last)
	}
}

func TestRevokeTurnsFalseIntoTrue(t *testing.T) {
	file := "clients:\n- id: a\n  revoked: false\n  token_sha256: \"" + digest + "\"\n  channel: cli\n  tier_ceiling: READ"
	out, err := Revoke([]byte(file), "a")
	if err != nil || string(out) != strings.Replace(file, "false", "true", 1) {
		t.Errorf("%v\n%s", err, out)
	}
	added, err := Add([]byte(file), sample("b"))
	if err != nil || !strings.HasPrefix(string(added), file+"\n- id: b\n") {
		t.Errorf("%v\n%s", err, added)
	}
}

func TestNewToken(t *testing.T) {
	token, digest := NewToken()
	sum := sha256.Sum256([]byte(token))
	if digest != hex.EncodeToString(sum[:]) || len(token) < 40 {
		t.Errorf("token of %d characters, digest %s", len(token), digest)
	}
	if other, _ := NewToken(); other == token {
		t.Error("two tokens are the same")
	}
}

// An internal program's entry has its identity and what it may in the place of a credential, and no rotation.
func TestInternalProgram(t *testing.T) {
	c := Client{ID: "reporter", Identity: "spiffe://durward.local/tool/reporter", May: []string{"list_services", "start_service"}, Channel: "api", TierCeiling: "WRITE"}
	out, err := Add([]byte("# who\nclients: []\n"), c)
	must(t, err)
	list, err := parse("clients.yaml", out)
	if err != nil || len(list) != 1 || list[0].Identity != c.Identity || len(list[0].May) != 2 || strings.Contains(string(out), "token") {
		t.Errorf("%v, %v:\n%s", list, err, out)
	}
	if _, err := Rotate(out, "reporter", Rotation{TokenSHA256: strings.Repeat("0", 64)}); !errors.Is(err, ErrInternal) {
		t.Errorf("rotated: %v", err)
	}
	if out, err = Revoke(out, "reporter"); err != nil || !strings.Contains(string(out), "revoked: true") {
		t.Errorf("revoked: %v\n%s", err, out)
	}
}

// An internal program that may call no tool yet is entered too, whether --may was not given or is empty.
func TestInternalProgramWithoutTools(t *testing.T) {
	for _, may := range [][]string{nil, {}} {
		c := Client{ID: "reporter", Identity: "spiffe://durward.local/tool/reporter", May: may, Channel: "api", TierCeiling: "READ"}
		if out, err := Add([]byte("clients: []\n"), c); err != nil || strings.Contains(string(out), "may:") {
			t.Errorf("%#v: %v\n%s", may, err, out)
		}
	}
}
