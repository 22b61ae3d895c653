package inforce_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/downstream/inforce"
	"durward.internal/services/platform/downstream/validator"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

const served = `servers:
  - id: notes
    program: {path: /opt/notes}
`

// stand is the folders that a process reads; whose key the lock is signed with is an operator's.
type stand struct {
	t        *testing.T
	dir      string
	signer   ssh.Signer
	told     atomic.Int32
	compiler downstream.Compiler
	// ago is how long before now what follows is signed.
	ago time.Duration
}

func newStand(t *testing.T) *stand {
	t.Helper()
	t.Cleanup(func() { _ = contract.Pin(nil) }) // no tools are always taken
	signer, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(append(make([]byte, 31), 1)))
	if err != nil {
		t.Fatal(err)
	}
	s := &stand{t: t, dir: t.TempDir(), signer: signer, compiler: validator.Compile}
	s.write(trust.FileAllowedSigners, trust.FormatSigner("ada", signer.PublicKey(), statement.Namespace)+"\n")
	return s
}

// write replaces a file at once, as durward does.
func (s *stand) write(name, text string) {
	s.t.Helper()
	fresh := filepath.Join(s.dir, "new")
	if err := os.WriteFile(fresh, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(fresh, filepath.Join(s.dir, name)); err != nil {
		s.t.Fatal(err)
	}
}

// accept writes a servers.yaml with one server, and the lock of it.
func (s *stand) accept(text string, tools ...downstream.Tool) (lock string) {
	s.t.Helper()
	entries, err := downstream.ReadFile(downstream.File, []byte(text))
	if err != nil {
		s.t.Fatal(err)
	}
	p := downstream.Pinned{Entry: entries[0], Tools: tools, ProgramDigest: [32]byte{1}}
	if p.EntryDigest, err = entries[0].Digest(); err != nil {
		s.t.Fatal(err)
	}
	l := &downstream.Lock{Servers: []downstream.Pinned{p}}
	l.Sort()
	digest, err := l.Digest()
	if err != nil {
		s.t.Fatal(err)
	}
	now := time.Now().Add(-s.ago)
	l.Signed, err = statement.Sign(&statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindServers, ID: strings.Repeat("a", 32), Operator: "ada",
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(time.Minute)),
		Epoch: 1, Audience: "spiffe://d/vault/local", Servers: &statement.Servers{Digest: digest, Tools: map[string]int{entries[0].ID: len(tools)}},
	}, s.signer)
	if err != nil {
		s.t.Fatal(err)
	}
	raw, err := l.Marshal()
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(downstream.File, text)
	s.write(downstream.LockFile, string(raw))
	return string(raw)
}

func (s *stand) open(unconfined bool, log spool) *inforce.Servers {
	s.t.Helper()
	cfg := inforce.Config{Folder: s.dir, TrustDir: s.dir, Unconfined: unconfined, Compiler: s.compiler, Logger: slog.New(slog.DiscardHandler),
		OnChange: func([]downstream.Pinned) { s.told.Add(1) }}
	if log != nil {
		cfg.Log = log
	}
	servers := inforce.Open(s.t.Context(), cfg)
	go servers.Watch(s.t.Context())
	return servers
}

type spool chan *auditv1.Record

func (s spool) Spool(_ context.Context, r *auditv1.Record) error { s <- r; return nil }

func tool(name string, roles map[string]downstream.Role) downstream.Tool {
	return downstream.Tool{Name: name, Description: "A tool.", Tier: optionsv1.Tier_TIER_READ, Roles: roles,
		Input: json.RawMessage(`{"properties":{"a":{"type":"string"},"b":{"type":"string"}},"type":"object"}`)}
}

// pinned reports whether the tool is there for everything that asks the contract.
func pinned(name string) bool { _, ok := contract.Lookup(name); return ok }

// within waits for what has to be so within a second, and fails where it is not; the watch looks at files twice before.
func within(t *testing.T, what string, is func() bool) {
	t.Helper()
	began := time.Now()
	for !is() {
		if time.Since(began) > 10*time.Second {
			t.Fatalf("not so: %s", what)
		}
		time.Sleep(10 * time.Millisecond) // the files are looked at by their times: there is no event
	}
	if took := time.Since(began); took > time.Second {
		t.Logf("%s: after %s", what, took)
		if took > 3*time.Second { // a machine under load is late, and not by that
			t.Errorf("%s: only after %s", what, took)
		}
	}
}

// TestWhatIsSignedIsInForce, and is so until its files say otherwise.
func TestWhatIsSignedIsInForce(t *testing.T) {
	s := newStand(t)
	lock := s.accept(served, tool("read", nil))
	records := make(spool, 8)
	servers := s.open(false, records)
	if p, ok := servers.Lookup("notes"); !ok || len(p.Tools) != 1 || !pinned("notes__read") || s.told.Load() != 1 || len(servers.Problems()) != 0 {
		t.Fatalf("%+v, told %d times, %v", servers.Current(), s.told.Load(), servers.Problems())
	}
	s.write(downstream.File, served+"  - id: {broken\n")
	within(t, "a broken servers.yaml is told of", func() bool { return len(servers.Problems()) == 1 })
	if !pinned("notes__read") || len(servers.Current()) != 1 {
		t.Error("a broken servers.yaml ends what was in force")
	}
	s.write(downstream.File, served)
	within(t, "it is mended", func() bool { return len(servers.Problems()) == 0 })
	if told := s.told.Load(); told != 1 {
		t.Errorf("told %d times of what is in force, which stayed the same", told)
	}
	s.write(downstream.LockFile, strings.Replace(lock, "A tool.", "A tool!", 1))
	within(t, "an edited lock pins nothing", func() bool { return !pinned("notes__read") })
	if len(servers.Current()) != 0 || s.told.Load() == 1 || !strings.Contains(strings.Join(servers.Problems(), "\n"), downstream.LockFile) {
		t.Errorf("%v, %v", servers.Current(), servers.Problems())
	}
	if r := <-records; r.GetKind() != auditv1.Kind_KIND_CONFIG_FOUND || r.GetBody().GetDetails()["before"] == r.GetBody().GetDetails()["after"] {
		t.Errorf("the change is recorded as %v", r)
	}
	s.write(downstream.LockFile, lock)
	within(t, "the signed one counts again", func() bool { return pinned("notes__read") })
	s.write(downstream.File, strings.Replace(served, "/opt/notes", "/opt/other", 1))
	within(t, "another entry than was accepted is not in force", func() bool { return !pinned("notes__read") })
}

// TestAnOlderLockIsTold: one that was signed before another, and is put back, is in force as it is, and said to be older: in the log and among
// the problems, until a newer one is there.
func TestAnOlderLockIsTold(t *testing.T) {
	s := newStand(t)
	s.ago = time.Hour
	older := s.accept(served, tool("read", nil))
	records := make(spool, 8)
	servers := s.open(false, records)
	s.ago = 0
	newer := s.accept(served, tool("write", nil))
	within(t, "the newer one counts", func() bool { return pinned("notes__write") })
	if r := <-records; strings.Contains(r.GetBody().GetSummary(), "OLDER") || len(servers.Problems()) != 0 {
		t.Errorf("the newer one: %v, %v", r, servers.Problems())
	}
	s.write(downstream.LockFile, older)
	within(t, "the older one counts", func() bool { return pinned("notes__read") })
	if r := <-records; !strings.Contains(r.GetBody().GetSummary(), "OLDER: signed at ") || !strings.Contains(strings.Join(servers.Problems(), "\n"), "OLDER: signed at ") {
		t.Errorf("the older one: %v, %v", r, servers.Problems())
	}
	s.write(downstream.LockFile, newer)
	within(t, "nothing is wrong with the newer one", func() bool { return pinned("notes__write") && len(servers.Problems()) == 0 })
}

// TestARemovedOperatorsLockPinsNothing: a lock counts as long as its signer is an operator.
func TestARemovedOperatorsLockPinsNothing(t *testing.T) {
	s := newStand(t)
	s.accept(served, tool("read", nil))
	servers := s.open(false, nil)
	if !pinned("notes__read") {
		t.Fatalf("%v", servers.Problems())
	}
	other, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(append(make([]byte, 31), 2)))
	if err != nil {
		t.Fatal(err)
	}
	s.write(trust.FileAllowedSigners, trust.FormatSigner("eve", other.PublicKey(), statement.Namespace)+"\n")
	within(t, "the lock of an operator who is none any more", func() bool { return !pinned("notes__read") && len(servers.Current()) == 0 })
}

// TestNotInForce: what is signed and cannot be in force in this process is told of, and pins nothing.
func TestNotInForce(t *testing.T) {
	bare := served + "    sandbox: {none: true}\n"
	two := map[string]downstream.Role{"/a": downstream.RoleURL, "/b": downstream.RoleURL}
	for name, c := range map[string]struct {
		text       string
		roles      map[string]downstream.Role
		unconfined bool
		says       string
	}{
		"no sandbox":                {text: bare, says: "development alone"},
		"no sandbox in development": {text: bare, unconfined: true},
		"two URLs":                  {text: served, roles: two, says: "two arguments are URLs"},
		"a URL and a path":          {text: served, roles: map[string]downstream.Role{"/a": downstream.RoleURL, "/b": downstream.RolePath}},
	} {
		s := newStand(t)
		s.accept(c.text, tool("read", c.roles))
		servers := s.open(c.unconfined, nil)
		said := strings.Join(servers.Problems(), "\n")
		if is := c.says == ""; pinned("notes__read") != is || len(servers.Current()) == 1 != is || is != (said == "") || !strings.Contains(said, c.says) {
			t.Errorf("%s: in force %v, %q", name, servers.Current(), said)
		}
	}
}

// TestNotInForceUncompiled: a signed schema that is none pins nothing, whoever listed it, and neither does any in a process that compiles none.
func TestNotInForceUncompiled(t *testing.T) {
	broken := tool("read", nil)
	broken.Input = json.RawMessage(`{"properties":{"a":{"type":"strin"}},"type":"object"}`)
	for name, c := range map[string]struct {
		tool     downstream.Tool
		compiler downstream.Compiler
	}{"a type that is none": {broken, validator.Compile}, "no compiler": {tool("read", nil), nil}} {
		s := newStand(t)
		s.accept(served, c.tool)
		s.compiler = c.compiler
		servers := s.open(false, nil)
		if said := strings.Join(servers.Problems(), "\n"); pinned("notes__read") || len(servers.Current()) != 0 || !strings.Contains(said, "the schema is none") {
			t.Errorf("%s: in force %v, %q", name, servers.Current(), said)
		}
	}
}

// TestArgumentsAreHeldToTheSchema that is pinned, and its refusal repeats nothing of them.
func TestArgumentsAreHeldToTheSchema(t *testing.T) {
	s := newStand(t)
	s.accept(served, tool("read", nil))
	s.open(false, nil)
	read, _ := contract.Lookup("notes__read")
	if _, err := read.Decode([]byte(`{"a":"x"}`)); err != nil {
		t.Error(err)
	}
	if _, err := read.Decode([]byte(`{"a":["secret"]}`)); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("what does not fit: %v", err)
	}
}
