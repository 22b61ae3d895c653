package downstream_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"
	"google.golang.org/protobuf/testing/protocmp"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/platformtest/full"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func signer(t testing.TB, seed byte) ssh.Signer {
	t.Helper()
	s, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(append(make([]byte, 31), seed)))
	must(t, err)
	return s
}

// verifier takes the word of ada, whose key is that of a seed.
func verifier(t testing.TB, seed byte) downstream.Verifier {
	t.Helper()
	operators, err := trust.ParseAllowedSigners([]byte(trust.FormatSigner("ada", signer(t, seed).PublicKey(), statement.Namespace) + "\n"))
	must(t, err)
	return statement.ServersSigned(operators, now.Add(time.Hour))
}

func sign(t testing.TB, l *downstream.Lock, change func(*statement.Statement)) []byte {
	t.Helper()
	digest, err := l.Digest()
	must(t, err)
	s := &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindServers, ID: strings.Repeat("a", 32), Operator: "ada",
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(time.Minute)),
		Epoch: 1, Audience: "spiffe://d/vault/local", Servers: &statement.Servers{Digest: digest, Tools: map[string]int{"files": 2}},
	}
	if change != nil {
		change(s)
	}
	if l.Signed, err = statement.Sign(s, signer(t, 1)); err != nil {
		t.Fatal(err)
	}
	text, err := l.Marshal()
	must(t, err)
	return text
}

// locked is a lock of the server files of the file whole.
func locked(t testing.TB) (*downstream.Lock, []downstream.Entry) {
	t.Helper()
	entries, err := downstream.ReadFile("servers.yaml", []byte(whole))
	must(t, err)
	p := downstream.Pinned{Entry: downstream.Entry{ID: "files"}, ProgramDigest: [32]byte{1}, Instructions: "Files live here.", Tools: []downstream.Tool{
		{
			Name: "read_file", Title: "Read", Description: "Reads a file.", Input: json.RawMessage(`{"properties":{"path":{"type":"string"}},"type":"object"}`),
			Annotations: json.RawMessage(`{"readOnlyHint":true}`), Tier: optionsv1.Tier_TIER_READ, Roles: map[string]downstream.Role{"/path": downstream.RolePath},
			Instructions: "Files live here.",
		},
		{Name: "move_file", Description: "Moves a file.", Input: json.RawMessage(`{"type":"object"}`), Tier: optionsv1.Tier_TIER_DESTRUCTIVE, Instructions: "Files live here."},
	}}
	if p.EntryDigest, err = entries[0].Digest(); err != nil {
		t.Fatal(err)
	}
	l := &downstream.Lock{Servers: []downstream.Pinned{p}}
	l.Sort()
	return l, entries
}

func TestLockRoundTrip(t *testing.T) {
	l, _ := locked(t)
	text := sign(t, l, nil)
	got, err := downstream.ReadLock(text, verifier(t, 1))
	must(t, err)
	if diff := cmp.Diff(l, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if got, err := downstream.ReadLock(nil, verifier(t, 1)); err != nil || len(got.Servers) != 0 {
		t.Errorf("no lock: %v, %v", got, err)
	}
}

// TestLockRefuses what another key, another kind of statement or another list of servers is signed by.
func TestLockRefuses(t *testing.T) {
	l, _ := locked(t)
	good := sign(t, l, nil)
	if _, err := downstream.ReadLock(good, verifier(t, 2)); err == nil {
		t.Error("a stranger's key is taken")
	}
	kind := sign(t, l, func(s *statement.Statement) { s.Kind, s.Servers = statement.KindResume, nil })
	if _, err := downstream.ReadLock(kind, verifier(t, 1)); err == nil {
		t.Error("a statement of another kind is taken")
	}
	other := sign(t, l, func(s *statement.Statement) { s.Servers.Digest = "sha256:" + strings.Repeat("0", 64) })
	if _, err := downstream.ReadLock(other, verifier(t, 1)); err == nil {
		t.Error("a statement of other servers is taken")
	}
	for name, spoil := range map[string]func(*downstream.Pinned){
		"an id that is none":       func(p *downstream.Pinned) { p.Entry.ID = "My_Files" },
		"a tool twice":             func(p *downstream.Pinned) { p.Tools[1] = p.Tools[0] },
		"a tool without a tier":    func(p *downstream.Pinned) { p.Tools[0].Tier = 0 },
		"a name with blanks":       func(p *downstream.Pinned) { p.Tools[0].Name = "a b" },
		"a schema that loops":      func(p *downstream.Pinned) { p.Tools[0].Input = json.RawMessage(`{"$ref":"#","type":"object"}`) },
		"an output that loops":     func(p *downstream.Pinned) { p.Tools[0].Output = json.RawMessage(`{"$ref":"#","type":"object"}`) },
		"no schema":                func(p *downstream.Pinned) { p.Tools[0].Input = nil },
		"an unknown role":          func(p *downstream.Pinned) { p.Tools[0].Roles = map[string]downstream.Role{"/x": "root"} },
		"tools in another order":   func(p *downstream.Pinned) { p.Tools[0], p.Tools[1] = p.Tools[1], p.Tools[0] },
		"nothing that is refused.": nil,
	} {
		l, _ := locked(t)
		if spoil != nil {
			spoil(&l.Servers[0])
		}
		if _, err := l.Marshal(); (err != nil) != (spoil != nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestALockThatIsWrittenIsRead: indented, a nested schema is many times as long. A lock that would be too long to read is not written.
func TestALockThatIsWrittenIsRead(t *testing.T) {
	deep := json.RawMessage(strings.Repeat(`{"properties":{"a":`, 14) + `{"enum":[` + strings.Repeat("0,", 3_800) + `1]}` + strings.Repeat(`},"type":"object"}`, 14))
	for tools, refused := range map[int]bool{4: false, 40: true} {
		l, _ := locked(t)
		for i := range tools {
			l.Servers[0].Tools = append(l.Servers[0].Tools, downstream.Tool{
				Name: fmt.Sprintf("t%02d", i), Description: "Deep.", Input: deep, Tier: optionsv1.Tier_TIER_WRITE, Instructions: "Files live here.",
			})
		}
		l.Sort()
		if _, err := l.Digest(); err != nil {
			t.Fatal(err)
		}
		if refused {
			if _, err := l.Marshal(); err == nil || !strings.Contains(err.Error(), "servers.lock would be longer than 4 MB") {
				t.Errorf("%d tools: %v", tools, err)
			}
			continue
		}
		if _, err := downstream.ReadLock(sign(t, l, nil), verifier(t, 1)); err != nil {
			t.Errorf("%d tools: %v", tools, err)
		}
	}
}

// TestAChangedByteOfTheLockOpensNothing: whatever byte is changed, put in or taken out, the whole lock is refused.
func TestAChangedByteOfTheLockOpensNothing(t *testing.T) {
	l, _ := locked(t)
	good, verify := sign(t, l, nil), verifier(t, 1)
	seed, n := full.Sample(t, 10_000, 1_500)
	r := rand.New(rand.NewPCG(seed, 1))
	for range n {
		at := r.IntN(len(good))
		bad := bytes.Clone(good)
		switch r.IntN(4) {
		case 0:
			bad[at] ^= 1 << r.IntN(8)
		case 1:
			bad = append(bad[:at:at], bad[at+1:]...)
		case 2:
			bad = append(bad[:at:at], append([]byte{"\n {}[]\",0a"[r.IntN(10)]}, bad[at:]...)...)
		case 3:
			bad = bad[:at]
		}
		if bytes.Equal(bad, good) {
			continue
		}
		if got, err := downstream.ReadLock(bad, verify); err == nil && len(got.Servers) > 0 {
			t.Fatalf("taken: byte %d\n%s", at, bad)
		}
	}
	if _, err := downstream.ReadLock(good, verify); err != nil {
		t.Fatalf("the control, not changed: %v", err)
	}
}

func TestJoin(t *testing.T) {
	l, entries := locked(t)
	in, left := downstream.Join(entries, l)
	if len(in) != 1 || len(in[0].Tools) != 2 || in[0].Entry.Sandbox.MemoryMiB != 256 || len(left) != 1 || left[0].ID != "web" {
		t.Fatalf("%+v, %+v", in, left)
	}
	entries[0].Allow = []string{"read_file"}
	if in, left := downstream.Join(entries, l); len(in) != 0 || len(left) != 2 || !strings.Contains(left[0].Why, "something else") {
		t.Errorf("an entry that was changed since: %+v, %+v", in, left)
	}
	l.Servers[0].EntryDigest, _ = entries[0].Digest()
	if in, _ := downstream.Join(entries, l); len(in) != 1 || len(in[0].Tools) != 1 || in[0].Tools[0].Tier != optionsv1.Tier_TIER_READ {
		t.Errorf("a tool that is not allowed: %+v", in)
	}
	if in, left := downstream.Join(nil, l); len(in) != 0 || len(left) != 1 || !strings.Contains(left[0].Why, "servers.yaml does not") {
		t.Errorf("a server that servers.yaml does not have: %+v, %+v", in, left)
	}
	if in, left := downstream.Join(entries, nil); len(in) != 0 || len(left) != 2 {
		t.Errorf("no lock: %+v, %+v", in, left)
	}
}

// TestEachPartOfADefinitionIsInItsDigest: a tool that differs in anything is another tool.
func TestEachPartOfADefinitionIsInItsDigest(t *testing.T) {
	l, _ := locked(t)
	tool := l.Servers[0].Tools[1]
	digests := map[[32]byte]string{tool.Digest("files"): "itself", tool.Digest("other"): "of another server", {}: "none"}
	for name, change := range map[string]func(*downstream.Tool){
		"name":         func(t *downstream.Tool) { t.Name += "x" },
		"title":        func(t *downstream.Tool) { t.Title += "x" },
		"description":  func(t *downstream.Tool) { t.Description += "x" },
		"input":        func(t *downstream.Tool) { t.Input = json.RawMessage(`{"type":"object"}`) },
		"output":       func(t *downstream.Tool) { t.Output = json.RawMessage(`{"type":"object"}`) },
		"annotations":  func(t *downstream.Tool) { t.Annotations = nil },
		"tier":         func(t *downstream.Tool) { t.Tier = optionsv1.Tier_TIER_WRITE },
		"roles":        func(t *downstream.Tool) { t.Roles = nil },
		"instructions": func(t *downstream.Tool) { t.Instructions += "x" },
	} {
		changed := tool
		change(&changed)
		if same, known := digests[changed.Digest("files")]; known {
			t.Errorf("another %s: the digest of %s", name, same)
		}
		digests[changed.Digest("files")] = name
	}
	if len(digests) != 12 {
		t.Errorf("%d digests", len(digests))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
