package clients

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/security/ownership"
)

const edKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl laptop"

func digest(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func one(lines ...string) string {
	fields := map[string]string{
		"id": "claude", "token_sha256": digest("t"), "channel": "cli", "tier_ceiling": "WRITE",
	}
	var extra []string
	for _, line := range lines {
		if key, value, _ := strings.Cut(line, ": "); fields[key] != "" {
			fields[key] = value
		} else {
			extra = append(extra, line)
		}
	}
	var b strings.Builder
	b.WriteString("clients:\n  - id: " + fields["id"] + "\n")
	for _, key := range []string{"token_sha256", "channel", "tier_ceiling"} {
		if fields[key] != `""` {
			fmt.Fprintf(&b, "    %s: %s\n", key, fields[key])
		}
	}
	for _, line := range extra {
		b.WriteString("    " + line + "\n")
	}
	return b.String()
}

func write(t testing.TB, path, text string) string {
	t.Helper()
	if path == "" {
		path = filepath.Join(t.TempDir(), "clients.yaml")
	}
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestReadRefuses(t *testing.T) {
	var crowd strings.Builder
	crowd.WriteString("clients:\n")
	for i := range maxClients + 1 {
		name := fmt.Sprint("c", i)
		crowd.WriteString(strings.TrimPrefix(one("id: "+name, "token_sha256: "+digest(name)), "clients:\n"))
	}
	for name, text := range map[string]string{
		"unknown field":              one("tokn: x"),
		"id in upper case":           one("id: Claude"),
		"id with a colon":            one(`id: "operator:alice"`),
		"id with a newline":          one(`id: "claude\n"`),
		"id of 65":                   one("id: " + strings.Repeat("a", 65)),
		"id that begins with a dash": one(`id: "-a"`),
		"no id":                      one(`id: ""`),
		"no token":                   one(`token_sha256: ""`),
		"token itself":               one("token_sha256: secret"),
		"token in upper case":        one("token_sha256: " + strings.ToUpper(digest("t"))),
		"token too short":            one("token_sha256: " + digest("t")[2:]),
		"no channel":                 one(`channel: ""`),
		"unknown channel":            one("channel: pigeon"),
		"messaging without a name":   one(`channel: "messaging:"`),
		"messaging with a bad name":  one(`channel: "messaging:a b"`),
		"no ceiling":                 one(`tier_ceiling: ""`),
		"unknown ceiling":            one("tier_ceiling: DENIED"),
		"ceiling in lower case":      one("tier_ceiling: write"),
		"key that is none":           one("key: secret"),
		"key of another kind":        one("key: ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEmKSENjQEezOmxkZMy7opKgwFB9nkt5YRrYMjNuG5N87uRgg6CLrbo5wAdT/y6v0mKV0U2w0WZ2YB/++Tpockg="),
		"two keys":                   one(`key: "` + edKey + `\n` + edKey + `"`),
		"key with options":           one(`key: 'command="x" ` + edKey + `'`),
		"negative limit":             one("limits: {sessions: -1}"),
		"too many pending":           one("limits: {pending: 51}"),
		"negative pending":           one("limits: {pending: -1}"),
		"too many sessions":          one("limits: {sessions: 1025}"),
		"a credential's value":       one(`credentials: ["Bearer sk-1"]`),
		"agent with a space":         one("agents: [a b]"),
		"too many agents":            one("agents: [a" + strings.Repeat(", a", maxAgents) + "]"),
		"too many clients":           crowd.String(),
		"user with a path":           one(`user: "../root"`),
		"user with a colon":          one(`user: "operator:alice"`),
		"previous without a token":   one("previous: {until: 2030-01-01T00:00:00Z}"),
		"previous without an end":    one("previous: {token_sha256: " + digest("old") + "}"),
		"previous for ever":          one("previous: {token_sha256: " + digest("old") + ", until: never}"),
		"previous is the same token": one("previous: {token_sha256: " + digest("t") + ", until: 2030-01-01T00:00:00Z}"),
		"previous without the key":   one("key: "+edKey, "previous: {token_sha256: "+digest("old")+", until: 2030-01-01T00:00:00Z}"),
		"previous with a key alone":  one("previous: {token_sha256: " + digest("old") + ", key: " + edKey + ", until: 2030-01-01T00:00:00Z}"),
		"previous is another's token": one() + strings.TrimPrefix(
			one("id: other", "token_sha256: "+digest("u"), "previous: {token_sha256: "+digest("t")+", until: 2030-01-01T00:00:00Z}"), "clients:\n"),
		"previous of two": one("previous: {token_sha256: "+digest("old")+", until: 2030-01-01T00:00:00Z}") + strings.TrimPrefix(
			one("id: other", "token_sha256: "+digest("u"), "previous: {token_sha256: "+digest("old")+", until: 2030-01-01T00:00:00Z}"), "clients:\n"),
		"identity and a previous": one(`token_sha256: ""`, "channel: api", "identity: spiffe://durward.local/tool/claude",
			"previous: {token_sha256: "+digest("old")+", until: 2030-01-01T00:00:00Z}"),
		"identity and a token":       one("identity: spiffe://durward.local/tool/claude", "channel: api"),
		"identity and a key":         one(`token_sha256: ""`, "channel: api", "identity: spiffe://durward.local/tool/claude", "key: "+edKey),
		"identity of another":        one(`token_sha256: ""`, "channel: api", "identity: spiffe://durward.local/tool/other"),
		"identity of another role":   one(`token_sha256: ""`, "channel: api", "identity: spiffe://durward.local/operator/claude"),
		"identity in a spelling":     one(`token_sha256: ""`, "channel: api", "identity: spiffe://durward.local/tool/claude/"),
		"identity that is a desktop": one(`token_sha256: ""`, "channel: desktop_ui", "identity: spiffe://durward.local/tool/claude"),
		"may of no server's tool":    one("may: [Fs__read]"),
		"may of no tool":             one(`token_sha256: ""`, "channel: api", "identity: spiffe://durward.local/tool/claude", "may: [List]"),
		"two of one id":              one() + strings.TrimPrefix(one("token_sha256: "+digest("u")), "clients:\n"),
		"two of one token":           one() + strings.TrimPrefix(one("id: other"), "clients:\n"),
	} {
		t.Run(name, func(t *testing.T) {
			list, err := Read(write(t, "", text))
			if err == nil {
				t.Fatalf("accepted as %+v", list[0])
			}
			if strings.Contains(err.Error(), digest("t")) || strings.Contains(err.Error(), "secret") {
				t.Errorf("the error repeats a credential: %v", err)
			}
		})
	}
}

func TestRead(t *testing.T) {
	list, err := Read(write(t, "", one("channel: messaging:signal", "tier_ceiling: DESTRUCTIVE", "key: "+edKey, "agents: [a, b]",
		"limits: {sessions: 3, pending: 2}")))
	must(t, err)
	c := list[0]
	if c.ID != "claude" || c.Channel != callv1.Channel_CHANNEL_MESSAGING || c.ChannelName != "signal" || !c.KeyBound() ||
		c.Ceiling != optionsv1.Tier_TIER_DESTRUCTIVE || c.Sessions != 3 || c.Pending != 2 || len(c.Agents) != 2 || len(c.Key) != 32 {
		t.Errorf("%+v", c)
	}
	if !c.Messaging() || !c.HasAgent("") || !c.HasAgent("b") || c.HasAgent("c") {
		t.Errorf("what it may say of itself: %+v", c)
	}
	for word, tier := range map[string]optionsv1.Tier{"READ": optionsv1.Tier_TIER_READ, "WRITE": optionsv1.Tier_TIER_WRITE, "DESTRUCTIVE": optionsv1.Tier_TIER_DESTRUCTIVE} {
		list, err := Read(write(t, "", one("tier_ceiling: "+word)))
		must(t, err)
		if list[0].Ceiling != tier || list[0].Messaging() {
			t.Errorf("the ceiling %s: %+v", word, list[0])
		}
	}
	path := write(t, "", one(`token_sha256: ""`, "channel: api", "identity: spiffe://durward.local/tool/claude", "may: [list_services]")+
		strings.TrimPrefix(one("id: other", `token_sha256: ""`, "channel: api", "identity: spiffe://durward.local/tool/other"), "clients:\n"))
	list, err = Read(path)
	must(t, err)
	start, _ := contract.Lookup("start_service")
	looks, _ := contract.Lookup("list_services")
	waits, _ := contract.Lookup("wait_operation")
	if r, err := Open(Config{Path: path}); err != nil {
		t.Error(err)
	} else {
		defer r.Close()
		id := list[0].Identity
		other, err := identity.New("elsewhere.example", id.Role(), id.Instance())
		must(t, err)
		if c, ok := r.Known(id); !ok || c.ID != "claude" {
			t.Errorf("the program of %s: %+v", id, c)
		}
		if _, ok := r.Known(other); ok {
			t.Errorf("%s is taken for %s", other, id)
		}
	}
	if c := list[0]; !c.Internal() || !c.KeyBound() || !c.MayCall(looks) || !c.MayCall(waits) || c.MayCall(start) || list[1].MayCall(looks) {
		t.Errorf("internal programs %+v, %+v", c, list[1])
	}
	list, err = Read(write(t, "", one("may: [list_services, files__read_text_file, my-docs__Search]")))
	must(t, err)
	if c := list[0]; c.Internal() || !c.MayCall(looks) || !c.MayCall(waits) || c.MayCall(start) {
		t.Errorf("a client with a set of tools: %+v", c)
	}
	list, err = Read(write(t, "", one()))
	must(t, err)
	if c := list[0]; c.KeyBound() || c.Sessions != DefaultSessions || c.Pending != DefaultPending {
		t.Errorf("defaults %+v", c)
	}
}

func TestAuthenticate(t *testing.T) {
	text := one() + strings.TrimPrefix(one("id: gone", "token_sha256: "+digest("g"), "revoked: true"), "clients:\n")
	r, err := Open(Config{Path: write(t, "", text)})
	must(t, err)
	defer r.Close()
	for _, token := range []string{"", "T", "t ", "t\n", "claude", digest("t"), "g"} {
		if c, ok := r.Authenticate(token); ok {
			t.Errorf("%q lets in %s", token, c.ID)
		}
	}
	if c, ok := r.Authenticate("t"); !ok || c.ID != "claude" {
		t.Error("the token does not let its client in")
	}
	if _, ok := r.Lookup("gone"); ok {
		t.Error("a revoked client is let in by its id")
	}
	if r.Count() != 1 {
		t.Errorf("count %d", r.Count())
	}
}

func TestHotReloadKeepsTheLastGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := write(t, "", one())
		r, err := Open(Config{Path: path})
		must(t, err)
		defer r.Close()
		write(t, path, one("token_sha256: "+digest("newer")+"\n    agents: [x]"))
		time.Sleep(time.Second)
		if _, ok := r.Authenticate("newer"); !ok {
			t.Fatalf("the change is not seen: %v", r.Err())
		}
		write(t, path, "clients: [oops")
		time.Sleep(time.Second)
		if _, ok := r.Authenticate("newer"); !ok || r.Err() == nil {
			t.Errorf("a broken file: let in %v, error %v", ok, r.Err())
		}
		write(t, path, "clients: []\n")
		time.Sleep(time.Second)
		if _, ok := r.Authenticate("newer"); ok || r.Err() != nil {
			t.Errorf("an emptied file: let in %v, error %v", ok, r.Err())
		}
		must(t, os.Remove(path))
		time.Sleep(time.Second)
		if r.Err() == nil {
			t.Error("a missing file is no error")
		}
	})
}

func TestSameCredential(t *testing.T) {
	before := &Client{ID: "a", Token: sha256.Sum256([]byte("t")), Channel: callv1.Channel_CHANNEL_CLI}
	for name, change := range map[string]func(*Client){
		"revoked":          func(c *Client) { c.Revoked = true },
		"another token":    func(c *Client) { c.Token[0]++ },
		"a key now":        func(c *Client) { c.Key = make([]byte, 32) },
		"another user":     func(c *Client) { c.User = "bob" },
		"another platform": func(c *Client) { c.ChannelName = "signal" },
		"another channel":  func(c *Client) { c.Channel = callv1.Channel_CHANNEL_API },
		"a remote one now": func(c *Client) { c.Remote = true },
		"a program now":    func(c *Client) { c.Identity, _ = identity.Parse("spiffe://durward.local/tool/a") },
	} {
		now := *before
		change(&now)
		if now.SameCredential(before) {
			t.Errorf("%s: still let in", name)
		}
	}
	now := *before
	now.Ceiling, now.Agents = optionsv1.Tier_TIER_READ, []string{"x"}
	if !now.SameCredential(before) {
		t.Error("another ceiling ends the session")
	}
}

// A rotation with an overlap: both credentials let in until the end, sessions of either go on, and at the end the old one and its
// sessions are over at once, though nobody touched the file.
func TestRotation(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	until := now.Add(time.Hour)
	path := write(t, "", one("token_sha256: "+digest("old")))
	r, err := Open(Config{Path: path, Now: func() time.Time { return now }})
	must(t, err)
	defer r.Close()
	before, ok := r.Authenticate("old")
	if !ok {
		t.Fatal("not let in before the rotation")
	}
	write(t, path, one("token_sha256: "+digest("new"), "previous: {token_sha256: "+digest("old")+", until: "+until.Format(time.RFC3339)+"}"))
	must(t, r.Reload())
	held := func(opened *Client) bool {
		c, ok := r.Lookup("claude")
		return ok && c.SameCredential(opened)
	}
	newer, ok := r.Authenticate("new")
	if !ok || !held(newer) {
		t.Error("the new credential does not let in")
	}
	old, ok := r.Authenticate("old")
	if !ok || !held(old) || !held(before) {
		t.Error("the old credential, or its session, ended before its time")
	}
	stranger := *before
	stranger.Token = sha256.Sum256([]byte("stranger"))
	if c, ok := r.Authenticate("stranger"); ok || held(&stranger) {
		t.Errorf("while an old credential is taken, any other is too: %v, %v", c, held(&stranger))
	}
	now = until.Add(-time.Nanosecond)
	if _, ok := r.Authenticate("old"); !ok {
		t.Error("the old credential ended before its time")
	}
	now = until
	if _, ok := r.Authenticate("old"); ok || held(old) || held(before) {
		t.Error("the old credential, or its session, is there after its end")
	}
	if _, ok := r.Authenticate("new"); !ok || !held(newer) {
		t.Error("the new credential ended with the old one")
	}
	write(t, path, one("token_sha256: "+digest("new"), "revoked: true", "previous: {token_sha256: "+digest("old")+", until: 2099-01-01T00:00:00Z}"))
	must(t, r.Reload())
	for _, token := range []string{"old", "new"} {
		if _, ok := r.Authenticate(token); ok {
			t.Errorf("a revoked client is let in with its %s credential", token)
		}
	}
}

// A file that the gateway's user owns, or may write, is no human's word.
func TestForeignFile(t *testing.T) {
	path := write(t, "", one())
	stranger := &ownership.Foreign{UID: 54321, GIDs: []uint32{54321}}
	r, err := Open(Config{Path: path, Foreign: stranger})
	must(t, err)
	defer r.Close()
	write(t, path, one("token_sha256: "+digest("planted")))
	if err := os.Chmod(path, 0o666); err != nil { // #nosec G302 -- that is the attack
		t.Fatal(err)
	}
	if err := r.Reload(); err == nil || r.Err() == nil {
		t.Error("a file that others may write is read")
	}
	if _, ok := r.Authenticate("planted"); ok {
		t.Error("a planted client is let in")
	}
	if _, ok := r.Authenticate("t"); !ok {
		t.Error("what was good before is gone")
	}
	if _, err := Open(Config{Path: path, Foreign: stranger}); err == nil {
		t.Error("opened with a file that others may write")
	}
}

func TestKeys(t *testing.T) {
	path := write(t, "", one("key: "+edKey, "revoked: true"))
	r, err := Open(Config{Path: path})
	must(t, err)
	defer r.Close()
	key, err := parseKey(edKey)
	must(t, err)
	if keys := r.Keys(); len(keys) != 1 || !keys[0].Equal(key) {
		t.Errorf("a revoked client's key is not among %v", keys)
	}
	next, _, err := ed25519.GenerateKey(nil)
	must(t, err)
	line, err := ssh.NewPublicKey(next)
	must(t, err)
	write(t, path, one("key: "+strings.TrimSpace(string(ssh.MarshalAuthorizedKey(line))),
		"previous: {token_sha256: "+digest("old")+", key: "+edKey+", until: 2099-01-01T00:00:00Z}"))
	must(t, r.Reload())
	if keys := r.Keys(); len(keys) != 2 || !keys[0].Equal(next) || !keys[1].Equal(key) {
		t.Errorf("the key before a rotation is not among %v", keys)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
