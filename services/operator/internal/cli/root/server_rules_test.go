package root

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"golang.org/x/crypto/ssh"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/sink/unattended"
	"durward.internal/services/platform/statement"
)

// withServer accepts a server "files" with the tool write_file, as an operator does, and gives egress a file of its own. What is pinned is
// this process's: a test with a server runs beside no other.
func (w *world) withServer(t *testing.T, more ...downstream.Tool) (folder string) {
	t.Helper()
	t.Cleanup(func() { must(t, contract.Pin(nil)) })
	folder = w.withClients(t)
	cfg, err := w.home.Load()
	must(t, err)
	signer, err := ssh.ParsePrivateKey([]byte(read(t, cfg.SigningKey)))
	must(t, err)
	const text = "servers:\n  - id: files\n    program: {path: /opt/files}\n"
	list, err := downstream.ReadFile(downstream.File, []byte(text))
	must(t, err)
	p := downstream.Pinned{Entry: list[0], ProgramDigest: [32]byte{1}, Tools: []downstream.Tool{{
		Name: "write_file", Description: "Writes.", Tier: optionsv1.Tier_TIER_WRITE,
		Input: []byte(`{"properties":{"count":{"type":"integer"},"path":{"type":"string"}},"required":["path"],"type":"object"}`),
	}}}
	p.Tools = append(p.Tools, more...)
	p.EntryDigest, err = list[0].Digest()
	must(t, err)
	lock := &downstream.Lock{Servers: []downstream.Pinned{p}}
	digest, err := lock.Digest()
	must(t, err)
	now := time.Now()
	lock.Signed, err = statement.Sign(&statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindServers, ID: strings.Repeat("a", 32), Operator: "alice",
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(time.Minute)),
		Epoch: 1, Audience: cfg.Vault.Identity, Servers: &statement.Servers{Digest: digest, Tools: map[string]int{"files": len(p.Tools)}},
	}, signer)
	must(t, err)
	raw, err := lock.Marshal()
	must(t, err)
	for name, text := range map[string]string{downstream.File: text, downstream.LockFile: string(raw), "egress.yaml": "# mine\nunattended: []\n"} {
		must(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	return folder
}

// TestAllowForEgress: what egress carries out, of its own and of other people's servers, is listed in egress' file as the executor's is in
// the executor's, and goes from there with its rule.
func TestAllowForEgress(t *testing.T) {
	w := newWorld(t)
	folder := w.withServer(t)
	egress, executor := filepath.Join(folder, "egress.yaml"), filepath.Join(folder, "executor.yaml")
	before, other := read(t, egress), read(t, executor)
	for _, c := range []struct {
		args          []string
		tool          string
		covers, wants string
	}{
		{[]string{"--tool", "http_request"}, "http_request", `{}`, "also needs an entry in egress' file"},
		{[]string{"--tool", "files__write_file"}, "files__write_file", `{}`, "also needs an entry in egress' file"},
		{[]string{"--tool", "files__write_file", "--arg", "path=/data/a", "--arg", "count=7"}, "files__write_file", `{"count":7,"path":"/data/a"}`, "not checked"},
	} {
		r := w.run(append([]string{"policy", "allow", "--client", "cursor", "--yes"}, c.args...)...)
		if r.code != cli.ExitOK || !strings.Contains(r.out, "egress.yaml is written; egress reads it within a second") {
			t.Fatalf("%v: %+v", c.args, r)
		}
		var listed struct {
			Unattended []any `yaml:"unattended"`
		}
		must(t, yaml.Unmarshal([]byte(read(t, egress)), &listed))
		list, err := unattended.Parse(listed.Unattended)
		if err == nil {
			err = unattended.Check(list, optionsv1.Role_ROLE_EGRESS)
		}
		tool, _ := contract.Lookup(c.tool)
		if err != nil || len(list) != 1 || !unattended.Cover(list, tool, "cursor", []byte(c.covers), time.Now()) || unattended.Cover(list, tool, "dashboard", []byte(c.covers), time.Now()) {
			t.Fatalf("%v: %+v, %v", c.args, list, err)
		}
		if r := w.run("policy", "check"); r.code != cli.ExitOK || strings.Contains(r.out+r.err, "also needs an entry") {
			t.Errorf("%v: with its entry: %+v", c.args, r)
		}
		testfile.Write(t, egress, before)
		if r := w.run("policy", "check"); !strings.Contains(r.out, c.wants) {
			t.Errorf("%v: without its entry: %+v", c.args, r)
		}
		if r := w.run(append([]string{"policy", "allow", "--client", "cursor", "--yes"}, c.args...)...); r.code != cli.ExitOK {
			t.Fatalf("%v: again: %+v", c.args, r)
		}
		ids := ruleIDs(t, folder)
		if len(ids) != 1 {
			t.Fatalf("%v: rules %q", c.args, ids)
		}
		if r := w.run("policy", "remove", ids[0], "--yes"); r.code != cli.ExitOK || strings.Contains(read(t, egress), c.tool) || len(ruleIDs(t, folder)) != 0 {
			t.Errorf("%v: removed: %+v\n%s", c.args, r, read(t, egress))
		}
		if read(t, executor) != other {
			t.Errorf("%v: the executor's file was changed", c.args)
		}
	}
}

// TestALongLockIsChanged: of a server with many large schemas the lock is longer than any other file, and the server is taken away all the same.
func TestALongLockIsChanged(t *testing.T) {
	w := newWorld(t)
	deep := strings.Repeat(`{"properties":{"a":`, 14) + `{"enum":[` + strings.Repeat("0,", 3_800) + `1]}` + strings.Repeat(`},"type":"object"}`, 14)
	var tools []downstream.Tool
	for i := range 8 {
		tools = append(tools, downstream.Tool{Name: fmt.Sprintf("z%d", i), Description: "Deep.", Tier: optionsv1.Tier_TIER_WRITE, Input: []byte(deep)})
	}
	lock := filepath.Join(w.withServer(t, tools...), downstream.LockFile)
	if n := len(read(t, lock)); n < 3<<19 {
		t.Fatalf("%d bytes", n)
	}
	if r := w.run("server", "remove", "files", "--yes"); r.code != cli.ExitOK || strings.Contains(read(t, lock), "write_file") {
		t.Errorf("%+v", r)
	}
}

// meanwhile does something once, when a text is written to it.
type meanwhile struct {
	lockedBuffer

	when string
	do   func()
}

func (m *meanwhile) Write(p []byte) (int, error) {
	if do := m.do; do != nil && strings.Contains(string(p), m.when) {
		m.do = nil
		do()
	}
	return m.lockedBuffer.Write(p)
}

// TestServersChangedTogether: while one command asks a server for its tools, another takes a server away. Both changes count.
func TestServersChangedTogether(t *testing.T) {
	w := newWorld(t)
	lock := filepath.Join(w.withServer(t), downstream.LockFile)
	errs := &meanwhile{when: "Sign where the credential goes", do: func() {
		if r := w.run("server", "remove", "files", "--yes"); r.code != cli.ExitOK {
			t.Errorf("%+v", r)
		}
	}}
	var out lockedBuffer
	code := Main(t.Context(), []string{"server", "add", "https://mcp.example/mcp", "--id", "other", "--bearer", "token", "--yes"}, cli.Streams{
		In: strings.NewReader(""), Out: &out, Err: errs, Getenv: at(w.home.Dir), Version: "test",
	})
	if code != cli.ExitOK || errs.do != nil {
		t.Fatalf("%d: %s", code, errs.String())
	}
	if text := read(t, lock); strings.Contains(text, "write_file") || !strings.Contains(text, `"id": "other"`) {
		t.Errorf("what was taken away is back, or what was added is not there: %s", text)
	}
}

// TestServersToolsAreNamed: rules are asked about and written for a tool of another's server, which the first command of a run is told by the
// files, and shells complete it with its own arguments.
func TestServersToolsAreNamed(t *testing.T) {
	w := newWorld(t)
	w.withServer(t)
	for line, want := range map[string][]string{
		"policy explain ": {"files__write_file", "switch_mode"}, "policy limit ": {"files__write_file"}, "policy allow --tool ": {"files__write_file"},
		"policy explain files__write_file ": {"count=", "path="},
	} {
		fresh(t)
		got := strings.Fields(complete(t, append([]string{"--home", w.home.Dir}, strings.Split(line, " ")...)...))
		for _, word := range want {
			if !slices.Contains(got, word) {
				t.Errorf("%q is completed with %q, without %s", line, got, word)
			}
		}
		if strings.HasSuffix(line, "file ") && len(got) != len(want) {
			t.Errorf("%q is completed with %q", line, got)
		}
	}
	fresh(t)
	if r := w.run("policy", "explain", "--as", "cursor", "files__write_file", "path=/data/a"); r.code != cli.ExitOK || !strings.Contains(r.out, "asks") {
		t.Errorf("%+v", r)
	}
	fresh(t)
	if r := w.run("policy", "explain", "--as", "cursor", "files__write_fil"); r.code != cli.ExitUsage || !strings.Contains(r.err, "Did you mean files__write_file") {
		t.Errorf("%+v", r)
	}
}

// TestLimitOfAServersTool: tools.yaml names the tool as policy does, so that the limit is in force, and it is taken out again.
func TestLimitOfAServersTool(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(w.withServer(t), "security/tools.yaml")
	before := read(t, path)
	explained := func(want string) {
		t.Helper()
		fresh(t)
		if r := w.run("policy", "explain", "--as", "cursor", "files__write_file", "path=a"); r.code != cli.ExitOK || !strings.Contains(r.out, want) {
			t.Errorf("%+v", r)
		}
	}
	for _, c := range []struct{ args, want string }{
		{"--budget-day 3 --min-interval 30s", "asks"}, {"--tier DESTRUCTIVE", "DESTRUCTIVE"}, {"--tier DENIED", "denied"}, {"--remove", "asks"},
	} {
		fresh(t)
		if r := w.run(append([]string{"policy", "limit", "files__write_file", "--yes"}, strings.Fields(c.args)...)...); r.code != cli.ExitOK || !strings.Contains(r.out, "in force") {
			t.Fatalf("%s: %+v", c.args, r)
		}
		explained(c.want)
		if text := read(t, path); c.args != "--remove" && !strings.Contains(text, "mcp:files:write_file") || c.args == "--remove" && text != before {
			t.Errorf("%s:\n%s", c.args, text)
		}
	}
	fresh(t)
	if r := w.run("policy", "limit", "files__write_file", "--tier", "READ", "--yes"); r.code != cli.ExitUsage || !strings.Contains(r.err, "that is no limit") {
		t.Errorf("%+v", r)
	}
}

// fresh is a process that has read no servers yet.
func fresh(t *testing.T) {
	t.Helper()
	must(t, contract.Pin(nil))
}
