package root

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/rules"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/sink/unattended"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// fakePolicy is the vault's side of the rules: what it says is in force is what the files say now.
type fakePolicy struct {
	vaultv1.UnimplementedPolicyServiceServer
	w *world
}

func (f fakePolicy) look() (*security.State, []security.File, error) {
	cfg, err := f.w.home.Load()
	if err != nil {
		return nil, nil, err
	}
	state, files := security.Look(security.Options{Dir: cfg.SecurityDir, Also: map[string]string{"clients.yaml": cfg.Clients}}, nil)
	if _, err := client.Read(cfg.Clients); err != nil {
		for i := range files {
			if files[i].Name == "clients.yaml" {
				files[i].Problem = err.Error() // as the vault, who reads it
			}
		}
	}
	return state, files, nil
}

func (f fakePolicy) GetPolicy(_ context.Context, r *vaultv1.GetPolicyRequest) (*vaultv1.GetPolicyResponse, error) {
	state, files, err := f.look()
	if err != nil {
		return nil, err
	}
	response := &vaultv1.GetPolicyResponse{}
	for _, file := range files {
		response.Files = append(response.Files, &vaultv1.ConfigFile{Name: file.Name, Layer: file.Layer, Digest: file.Digest, Problem: file.Problem})
	}
	for _, s := range state.Settings(r.GetClient(), "") {
		response.Settings = append(response.Settings, &vaultv1.Setting{Name: s.Name, Value: s.Value, Layer: s.Layer})
	}
	for _, rule := range state.Policies.Rules() {
		response.Rules = append(response.Rules, &vaultv1.PolicyRule{Rule: rule.ID, Layer: string(rule.Layer), File: rule.File, Line: uint32(rule.Line), Forbids: rule.Forbids})
	}
	return response, nil
}

func (f fakePolicy) ExplainCall(_ context.Context, r *vaultv1.ExplainCallRequest) (*vaultv1.ExplainCallResponse, error) {
	state, _, err := f.look()
	if err != nil {
		return nil, err
	}
	tool, _ := contract.Lookup(r.GetTool())
	d := state.Policies.Decide(policy.Call{Client: r.GetClient(), Channel: callv1.Channel_CHANNEL_CLI, KeyBound: true, Ceiling: 3, Tool: tool, Arguments: r.GetArguments(),
		Dangerous: r.GetDangerous(), Now: time.Now()})
	return &vaultv1.ExplainCallResponse{Decision: d.Verdict.String(), Tier: d.Tier, Reason: d.Reason,
		Rule: &vaultv1.PolicyRule{Rule: d.Rule.ID, Layer: string(d.Rule.Layer), File: d.Rule.File, Line: uint32(d.Rule.Line), Forbids: d.Rule.Forbids}}, nil
}

func (f fakePolicy) AnnounceChange(_ context.Context, r *vaultv1.AnnounceChangeRequest) (*vaultv1.AnnounceChangeResponse, error) {
	folder, err := trust.Open(f.w.home.Trust())
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	st, err := statement.Verify(r.GetStatement(), folder.Current().AllowedSigners, time.Now())
	if err != nil || st.Kind != statement.KindConfig {
		return nil, fault.New(callv1.Code_CODE_DENIED, "the statement does not verify")
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.signed = append(f.w.signed, st.Statement)
	if f.w.announced != nil {
		f.w.announced(st.Change.File)
	}
	return &vaultv1.AnnounceChangeResponse{}, nil
}

// with lets clients in by clients.yaml and returns the operator's configuration's folder.
func (w *world) withClients(t *testing.T) string {
	t.Helper()
	cfg, err := w.home.Load()
	must(t, err)
	text := `clients:
  - {id: cursor, token_sha256: "` + strings.Repeat("a", 64) + `", key: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl", channel: cli, tier_ceiling: DESTRUCTIVE}
  - {id: dashboard, token_sha256: "` + strings.Repeat("b", 64) + `", channel: api, tier_ceiling: READ}
`
	testfile.Write(t, cfg.Clients, text)
	return filepath.Dir(cfg.Clients)
}

func read(t *testing.T, path string) string {
	t.Helper()
	return string(testfile.Read(t, path))
}

// tree is every file below a folder, so that what must not change can be compared.
func treeOf(t *testing.T, folder string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			out[path] = read(t, path)
		}
		return err
	})
	must(t, err)
	return out
}

// TestNobodyIsNotAll: a list, or a user, that is given and empty is refused, and does not make a rule for all.
func TestNobodyIsNotAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	before := treeOf(t, folder)
	for _, args := range [][]string{
		{"policy", "allow", "--client", "cursor", "--tool", "start_service", "--yes", "--service", ""},
		{"policy", "allow", "--client", "cursor", "--tool", "start_service", "--yes", "--service", "chat,"},
		{"policy", "allow", "--client", "cursor", "--tool", "switch_mode", "--yes", "--mode="},
		{"egress", "allow", "docs.example", "--yes", "--client", ""},
		{"egress", "allow", "docs.example", "--yes", "--agent="},
		{"egress", "allow", "docs.example", "--yes", "--user", ""},
		{"server", "add", "program", "/usr/bin/true", "--yes", "--allow-read", ""},
	} {
		if r := w.run(args...); r.code != cli.ExitUsage || !strings.Contains(r.err, " is empty") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if !maps.Equal(before, treeOf(t, folder)) {
		t.Error("a rule was written")
	}
}

// TestRulesNeedAPersonAndAKey: a pipe that says yes, a protected key without a terminal, no key: nothing is written, the exit code
// is 4, and the answer is which file and line to edit (CFG-5).
func TestRulesNeedAPersonAndAKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	project := filepath.Join(t.TempDir(), "durward.yaml")
	testfile.Write(t, project, "settings: {tier_ceiling: READ}\n")
	commands := [][]string{
		{"config", "set", "approvals.wait_s", "600"},
		{"config", "set", "approvals.wait_s", "600", "--user", "alice"},
		{"config", "allow-origin", "https://console.example"},
		{"config", "trust", project},
		{"policy", "allow", "--client", "cursor", "--tool", "switch_mode", "--mode", "chatting"},
		{"policy", "limit", "switch_mode", "--budget-day", "5"},
	}
	before := treeOf(t, folder)
	refused := func(name string, extra ...string) {
		t.Helper()
		for _, c := range commands {
			r := w.run(append(c, extra...)...)
			if r.code != cli.ExitDenied || !strings.Contains(r.err, "Edit by hand: "+folder) {
				t.Errorf("%s: %v: exit code %d, %q", name, c, r.code, r.err)
			}
			if len(w.signed) > 0 {
				t.Fatalf("%s: %v: a statement was signed", name, c)
			}
		}
		if after := treeOf(t, folder); len(after) != len(before) {
			t.Fatalf("%s: files came or went", name)
		} else {
			for path, text := range before {
				if after[path] != text {
					t.Fatalf("%s: %s was written", name, path)
				}
			}
		}
	}
	refused("a pipe")
	w.protect(t, "open sesame")
	refused("a protected key and a pipe", "--yes")
	cfg, err := w.home.Load()
	must(t, err)
	must(t, os.Remove(cfg.SigningKey))
	refused("no key", "--yes")
}

// TestARefusedStatementWritesNothing: the vault does not believe the signer.
func TestARefusedStatementWritesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	testfile.Write(t, w.home.Trust(trust.FileAllowedSigners), "# nobody\n")
	before := read(t, filepath.Join(folder, "security/security.yaml"))
	if r := w.run("config", "set", "tier_ceiling", "READ", "--yes"); r.code == cli.ExitOK || !strings.Contains(r.err, "does not verify") {
		t.Errorf("%+v", r)
	}
	if read(t, filepath.Join(folder, "security/security.yaml")) != before {
		t.Error("it was written")
	}
}

func TestConfigSetAndUnset(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	path := filepath.Join(folder, "security/security.yaml")
	documented := read(t, path)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"config", "set", "approvals.wait", "600"}, cli.ExitUsage, "Did you mean approvals.wait_s"},
		{[]string{"config", "set", "wait_s", "600"}, cli.ExitUsage, "approvals.wait_s"},
		{[]string{"config", "set", "approvals.wait_s", "7200"}, cli.ExitUsage, "a whole number from 60 to 1800"},
		{[]string{"config", "set", "approvals.wait_s", "600 # x"}, cli.ExitUsage, "a whole number"},
		{[]string{"config", "set", "tier_ceiling", "DENIED"}, cli.ExitUsage, "READ, WRITE or DESTRUCTIVE"},
		{[]string{"config", "set", "tier_ceiling", "READ", "--user", "../x"}, cli.ExitUsage, "--user"},
		{[]string{"config", "show", "--client", "curser"}, cli.ExitUsage, "Did you mean cursor"},
	} {
		if r := w.run(append(c.args, map[bool][]string{true: nil, false: {"--yes"}}[c.args[1] == "show"]...)...); r.code != c.code || !strings.Contains(r.err, c.want) {
			t.Errorf("%v: %+v", c.args, r)
		}
	}
	r := w.run("config", "set", "approvals.wait_s", "600", "--yes")
	if r.code != cli.ExitOK || !strings.Contains(r.out, "it is in force") {
		t.Fatalf("%+v", r)
	}
	for _, shown := range []string{"+approvals:", "+  wait_s: 600", `"kind": "config"`, "sha256:", `"file": "security.yaml"`, "The statement that you sign, whole"} {
		if !strings.Contains(r.out, shown) {
			t.Errorf("%q is not shown:\n%s", shown, r.out)
		}
	}
	if got := read(t, path); got != documented+"approvals:\n  wait_s: 600\n" {
		t.Errorf("%q", got)
	}
	if len(w.signed) != 1 || w.signed[0].Change.File != "security.yaml" || w.signed[0].Epoch != 3 || w.signed[0].Operator != "alice" {
		t.Errorf("signed %+v", w.signed)
	}
	if sum := sha256.Sum256([]byte(documented)); w.signed[0].Change.Before != "sha256:"+hex.EncodeToString(sum[:]) {
		t.Errorf("before is %s", w.signed[0].Change.Before)
	}
	if r = w.run("config", "set", "approvals.wait_s", "600", "--yes"); r.code != cli.ExitOK || !strings.Contains(r.out, "so already") || len(w.signed) != 1 {
		t.Errorf("%+v", r)
	}
	if r = w.run("config", "set", "approvals.wait_s", "300", "--user", "alice", "--yes"); r.code != cli.ExitOK || read(t, filepath.Join(folder, "security/users/alice/security.yaml")) != "approvals:\n  wait_s: 300\n" {
		t.Errorf("%+v", r)
	}
	r = w.run("config", "show", "--origin")
	if r.code != cli.ExitOK || !strings.Contains(r.out, path+":") || !strings.Contains(r.out, "built-in") || !strings.Contains(r.out, "users/alice/security.yaml  user") {
		t.Errorf("%+v", r)
	}
	r = w.run("--json", "config", "show")
	var shown struct {
		Settings []rules.EffectiveSetting `json:"settings"`
		Answered bool                     `json:"vault_answered"`
	}
	if err := json.Unmarshal([]byte(r.out), &shown); err != nil || !shown.Answered || shown.Settings[0].Value != "600" || shown.Settings[0].Layer != "system" || shown.Settings[0].Line == 0 {
		t.Errorf("%v: %+v", err, shown)
	}
	if r = w.run("config", "unset", "approvals.wait_s", "--yes"); r.code != cli.ExitOK || read(t, path) != documented {
		t.Errorf("%+v: %q", r, read(t, path))
	}
	if r = w.run("config", "unset", "approvals.wait_s", "--yes"); r.code != cli.ExitOK || !strings.Contains(r.out, "Nothing to change") {
		t.Errorf("%+v", r)
	}
}

// Without the vault the files are shown and changed all the same, and that is said.
func TestConfigWithoutTheVault(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	w.stopVault()
	if r := w.run("config", "show"); r.code != cli.ExitOK || !strings.Contains(r.err, "does not answer") || !strings.Contains(r.out, "tier_ceiling") {
		t.Errorf("%+v", r)
	}
	r := w.run("config", "set", "tier_ceiling", "WRITE", "--yes")
	if r.code != cli.ExitOK || !strings.Contains(r.err, "record it as found") || strings.Contains(r.out, "in force") {
		t.Errorf("%+v", r)
	}
	if got := read(t, filepath.Join(folder, "security/security.yaml")); !strings.HasSuffix(got, "tier_ceiling: WRITE\n") {
		t.Errorf("%q", got)
	}
	if r = w.run("policy", "list"); r.code != cli.ExitOK || !strings.Contains(r.out, "may-be-asked-for") {
		t.Errorf("%+v", r)
	}
}

// What the vault would refuse is not written; what was broken before does not stand in the way of a change beside it.
func TestRulesThatTheVaultWouldRefuse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	testfile.Write(t, filepath.Join(folder, "security/policy/broken.cedar"), "permit (")
	if r := w.run("policy", "check"); r.code != cli.ExitFailed || !strings.Contains(r.out, "policy/broken.cedar:1") ||
		r.err != "durward: the rules have 1 mistake\n  What was good before stays in force until it is corrected.\n" {
		t.Errorf("%+v", r)
	}
	if r := w.run("config", "set", "tier_ceiling", "WRITE", "--yes"); r.code != cli.ExitOK {
		t.Errorf("%+v", r)
	}
	testfile.Write(t, filepath.Join(folder, "security/security.yaml"), "approvals: {wait: 1}\n")
	if r := w.run("config", "set", "tier_ceiling", "READ", "--yes"); r.code != cli.ExitUsage || !strings.Contains(r.err, "Nothing was written") || !strings.Contains(r.err, "security.yaml:1:") {
		t.Errorf("%+v", r)
	}
	project := filepath.Join(t.TempDir(), "durward.yaml")
	testfile.Write(t, project, "tools:\n  switch_mode: {tier: READ}\n")
	if r := w.run("config", "trust", project, "--yes"); r.code != cli.ExitUsage || !strings.Contains(r.err, "Nothing was written") {
		t.Errorf("a project that loosens: %+v", r)
	}
	if _, err := os.Stat(filepath.Join(folder, "security/projects.yaml")); err == nil {
		t.Error("it is trusted")
	}
}

func TestTrust(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	project := filepath.Join(t.TempDir(), "it's a project", "durward.yaml")
	must(t, os.MkdirAll(filepath.Dir(project), 0o755))
	text := "settings:\n  approvals: {wait_s: 120}\n  desktop: {allowed: true}\ntools:\n  stop_service: {tier: DENIED}\n# \x1b[31mhostile\n"
	testfile.Write(t, project, strings.ReplaceAll(text, "\x1b", "\u202e"))
	r := w.run("config", "trust", project, "--client", "cursor", "--yes")
	if r.code != cli.ExitOK {
		t.Fatalf("%+v", r)
	}
	for _, shown := range []string{"approvals.wait_s: 120, which was 1800", "tools/stop_service", "+  desktop: {allowed: true}"} {
		if !strings.Contains(r.out, shown) {
			t.Errorf("%q is not shown:\n%s", shown, r.out)
		}
	}
	if strings.Contains(r.out, "desktop.allowed: true") || strings.Contains(r.out, "\u202e") {
		t.Errorf("it seems to loosen, or hides something:\n%s", r.out)
	}
	first, _ := filepath.Glob(filepath.Join(folder, "security/projects/*.yaml"))
	if len(first) != 1 || len(w.signed) != 2 {
		t.Fatalf("%v, %d statements", first, len(w.signed))
	}
	if r = w.run("policy", "explain", "--as", "cursor", "stop_service", "service_id=chat"); !strings.Contains(r.out, "denied") {
		t.Errorf("%+v", r)
	}
	if r = w.run("policy", "explain", "--as", "dashboard", "stop_service", "service_id=chat"); strings.Contains(r.out, "denied") {
		t.Errorf("it binds others: %+v", r)
	}
	// The project's own folder counts for nothing until it is trusted again.
	testfile.Write(t, project, "settings: {}\n")
	if r = w.run("policy", "explain", "--as", "cursor", "stop_service", "service_id=chat"); !strings.Contains(r.out, "denied") {
		t.Errorf("%+v", r)
	}
	if r = w.run("config", "trust", project, "--client", "cursor", "--yes"); r.code != cli.ExitOK {
		t.Errorf("%+v", r)
	}
	if now, _ := filepath.Glob(filepath.Join(folder, "security/projects/*.yaml")); len(now) != 1 || now[0] == first[0] {
		t.Errorf("copies: %v", now)
	}
	if r = w.run("config", "untrust", project, "--yes"); r.code != cli.ExitOK {
		t.Errorf("%+v", r)
	}
	if now, _ := filepath.Glob(filepath.Join(folder, "security/projects/*.yaml")); len(now) != 0 {
		t.Errorf("copies: %v", now)
	}
	if r = w.run("config", "untrust", project, "--yes"); r.code != cli.ExitUsage {
		t.Errorf("%+v", r)
	}
}

func TestAllowOrigin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	for _, bad := range []string{"*", "https://*.example", "https://a.example/x", "ftp://a.example", "https://a.example?x", "https://u@a.example", "https://A.example", "a.example", "null", "https://"} {
		if r := w.run("config", "allow-origin", bad, "--yes"); r.code != cli.ExitUsage {
			t.Errorf("%s: %+v", bad, r)
		}
	}
	path := filepath.Join(folder, "gateway.yaml")
	before := read(t, path)
	if r := w.run("config", "allow-origin", "https://console.example:8443", "--yes"); r.code != cli.ExitOK || len(w.signed) != 1 || w.signed[0].Change.File != "gateway.yaml" {
		t.Errorf("%+v", r)
	}
	if got := read(t, path); !strings.HasPrefix(got, before) || !strings.HasSuffix(got, "allowed_origins:\n  - \"https://console.example:8443\"\n") {
		t.Errorf("%q", got)
	}
	if r := w.run("config", "allow-origin", "https://console.example:8443", "--yes", "--remove"); r.code != cli.ExitOK || strings.Contains(read(t, path), "console.example") {
		t.Errorf("%+v", r)
	}
}

// One command writes the rule and the executor's own list, and both say the same; removing takes both away.
func TestPolicyAllow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	executor := filepath.Join(folder, "executor.yaml")
	was := read(t, executor)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--client", "curser", "--tool", "switch_mode"}, "Did you mean cursor"},
		{[]string{"--client", "cursor", "--tool", "swich_mode"}, "Did you mean switch_mode"},
		{[]string{"--client", "cursor"}, "--tool"},
		{[]string{"--client", "cursor", "--tool", "switch_mode", "--service", "x"}, "no argument service_id"},
		{[]string{"--client", "cursor", "--tool", "switch_mode", "--arg", "mode_id"}, "NAME=VALUE"},
		{[]string{"--client", "cursor", "--tool", "switch_mode", "--arg", "margin_mib_override=x"}, "no value"},
	} {
		if r := w.run(append([]string{"policy", "allow", "--yes"}, c.args...)...); r.code != cli.ExitUsage || !strings.Contains(r.err, c.want) {
			t.Errorf("%v: %+v", c.args, r)
		}
	}
	if r := w.run("policy", "explain", "--as", "cursor", "switch_mode", "mode_id=chatting"); r.code != cli.ExitOK || !strings.Contains(r.out, "asks") {
		t.Errorf("%+v", r)
	}
	r := w.run("policy", "allow", "--client", "cursor", "--tool", "switch_mode", "--mode", "coding,chatting", "--arg", "margin_mib_override=256", "--yes", "--json")
	var made signedchange.Result
	if !strings.Contains(r.err, "DESTRUCTIVE: from now on cursor does this without asking anybody") {
		t.Errorf("what it means is not said: %q", r.err)
	}
	if err := json.Unmarshal([]byte(r.out), &made); err != nil || r.code != cli.ExitOK || len(made.Files) != 2 || !made.Announced || made.InForce || strings.Join(made.Unseen, " ") != "executor.yaml" {
		t.Fatalf("%+v, %v", r, err)
	}
	if len(w.signed) != 2 || w.signed[0].Change.File != "policy/allow.cedar" || w.signed[1].Change.File != "executor.yaml" {
		t.Errorf("signed %+v", w.signed)
	}
	var listed struct {
		Unattended []any `yaml:"unattended"`
	}
	must(t, yaml.Unmarshal([]byte(read(t, executor)), &listed))
	entries, err := unattended.Parse(listed.Unattended)
	if err != nil || len(entries) != 1 || entries[0].Tool != "switch_mode" || strings.Join(entries[0].Clients, " ") != "cursor" ||
		len(entries[0].Arguments["mode_id"]) != 2 || string(entries[0].Arguments["mode_id"][0]) != `"chatting"` || string(entries[0].Arguments["margin_mib_override"][0]) != "256" {
		t.Errorf("%+v, %v", entries, err)
	}
	if r = w.run("policy", "explain", "--as", "cursor", "switch_mode", `{"mode_id":"chatting","margin_mib_override":256}`); !strings.Contains(r.out, "runs") || !strings.Contains(r.out, "policy/allow.cedar:") {
		t.Errorf("%+v", r)
	}
	for _, args := range [][]string{{"cursor", "mode_id=large", "margin_mib_override=256"}, {"cursor", "mode_id=chatting"}, {"dashboard", "mode_id=chatting", "margin_mib_override=256"}} {
		if r = w.run(append([]string{"policy", "explain", "--as", args[0], "switch_mode"}, args[1:]...)...); r.code != cli.ExitOK || strings.Contains(r.out, "runs") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if r = w.run("policy", "allow", "--client", "cursor", "--tool", "switch_mode", "--mode", "chatting,coding", "--arg", "margin_mib_override=256", "--yes"); r.code != cli.ExitOK || !strings.Contains(r.out, "so already") {
		t.Errorf("again: %+v", r)
	}
	if r = w.run("policy", "allow", "--client", "cursor", "--tool", "stop_service", "--yes"); r.code != cli.ExitOK || !strings.Contains(r.out, "whatever its arguments") {
		t.Errorf("%+v", r)
	}
	cases := filepath.Join(t.TempDir(), "cases.yaml")
	if err := os.WriteFile(cases, []byte(`cases:
  - {client: cursor, tool: switch_mode, arguments: {mode_id: chatting, margin_mib_override: 256}, expect: runs}
  - {client: cursor, tool: switch_mode, arguments: {mode_id: large}, expect: asks, rule: may-be-asked-for}
  - {client: dashboard, tool: stop_service, arguments: {service_id: chat}, expect: denied, rule: above-the-ceiling}
  - {name: a client with a key of its own, client: someone, key_bound: false, tool: stop_service, arguments: {service_id: chat}, dangerous: true, expect: asks}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	if r = w.run("policy", "test", cases); r.code != cli.ExitOK || !strings.Contains(r.out, "4 cases, all as expected") {
		t.Errorf("%+v", r)
	}
	testfile.Write(t, cases, "cases:\n  - {client: cursor, tool: stop_service, arguments: {service_id: chat}, expect: asks, rule: x}\n")
	if r = w.run("policy", "test", cases); r.code != cli.ExitFailed || !strings.Contains(r.out, "- asks  x") || !strings.Contains(r.out, "+ runs") {
		t.Errorf("%+v", r)
	}
	for _, id := range ruleIDs(t, folder) {
		if r = w.run("policy", "remove", id, "--yes"); r.code != cli.ExitOK {
			t.Errorf("%+v", r)
		}
	}
	if now := read(t, executor); now != was {
		t.Errorf("the executor's file is %q, and was %q", now, was)
	}
	if r = w.run("policy", "explain", "--as", "cursor", "stop_service", "service_id=chat"); !strings.Contains(r.out, "asks") {
		t.Errorf("%+v", r)
	}
	if r = w.run("policy", "remove", "allow/none", "--yes"); r.code != cli.ExitUsage {
		t.Errorf("%+v", r)
	}
}

func ruleIDs(t *testing.T, folder string) (ids []string) {
	t.Helper()
	for line := range strings.Lines(read(t, filepath.Join(folder, "security/policy/allow.cedar"))) {
		if id, ok := strings.CutPrefix(strings.TrimSpace(line), `@id("`); ok {
			ids = append(ids, strings.TrimSuffix(id, `")`))
		}
	}
	return ids
}

func TestPolicyLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	for _, args := range [][]string{{"switch_mode"}, {"switch_mode", "--budget-day", "0"}, {"switch_mode", "--min-interval", "1500ms"}, {"switch_mode", "--tier", "NONE"}, {"swich_mode", "--tier", "DENIED"},
		{"switch_mode", "--remove", "--budget-day", "3"}} {
		if r := w.run(append([]string{"policy", "limit", "--yes"}, args...)...); r.code != cli.ExitUsage {
			t.Errorf("%v: %+v", args, r)
		}
	}
	path := filepath.Join(folder, "security/tools.yaml")
	before := read(t, path)
	if r := w.run("policy", "limit", "switch_mode", "--min-interval", "30s", "--budget-day", "50", "--yes"); r.code != cli.ExitOK {
		t.Errorf("%+v", r)
	}
	if r := w.run("policy", "limit", "switch_mode", "--tier", "DENIED", "--yes"); r.code != cli.ExitOK {
		t.Errorf("%+v", r)
	}
	want := before + "tools:\n  switch_mode:\n    budget:\n      day: 50\n    min_interval_s: 30\n    tier: DENIED\n"
	if got := read(t, path); got != want {
		t.Errorf("%q", got)
	}
	if r := w.run("policy", "explain", "--as", "cursor", "switch_mode", "mode_id=chat"); !strings.Contains(r.out, "denied") || !strings.Contains(r.out, "tools.yaml:") {
		t.Errorf("%+v", r)
	}
	if r := w.run("policy", "limit", "switch_mode", "--remove", "--yes"); r.code != cli.ExitOK || read(t, path) != before {
		t.Errorf("%+v, %q", r, read(t, path))
	}
	if r := w.run("policy", "limit", "switch_mode", "--remove", "--yes"); r.code != cli.ExitOK || !strings.Contains(r.out, "so already") || read(t, path) != before {
		t.Errorf("again: %+v, %q", r, read(t, path))
	}
}

// TestAllowThatLetsNothingRun: a rule that clients.yaml keeps from counting is written, and is not said to let a client call.
func TestAllowThatLetsNothingRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	clients := filepath.Join(w.withClients(t), "clients.yaml")
	testfile.Write(t, clients, read(t, clients)+`  - {id: relay, token_sha256: "`+strings.Repeat("c", 64)+`", channel: api, tier_ceiling: WRITE}
  - {id: night-shift, identity: "spiffe://durward.local/tool/night-shift", may: [stop_service], channel: api, tier_ceiling: WRITE}
`)
	for client, want := range map[string]string{
		"dashboard": "lets nothing run: dashboard may use tools up to READ", "relay": "lets nothing run: relay is a bearer client",
		"cursor": "cursor may call stop_service without asking", "night-shift": "night-shift may call stop_service without asking",
	} {
		r := w.run("policy", "allow", "--client", client, "--tool", "stop_service", "--yes")
		if r.code != cli.ExitOK || !strings.Contains(r.out, want) || strings.Contains(r.out, "✓ "+client+" may call") != strings.Contains(want, "may call") {
			t.Errorf("%s: %+v", client, r)
		}
	}
}

// TestDomains: what is listed already is not listed again, and what stays blocked is not said to be reached.
func TestDomains(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withClients(t)
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{cli.ExitOK, "agents may reach docs.example", []string{"allow", "docs.example", "*.docs.example"}},
		{cli.ExitOK, "so already", []string{"allow", "*.docs.example", "docs.example", "docs.example"}},
		{cli.ExitOK, "agents of cursor may reach docs.example", []string{"allow", "docs.example", "--client", "cursor"}},
		{cli.ExitOK, "so already", []string{"allow", "docs.example", "--client", "cursor"}},
		{cli.ExitOK, "no agent reaches *.zip", []string{"block", "*.zip", "[2001:db8::1]:80"}},
		{cli.ExitOK, "so already", []string{"block", "*.zip"}},
		{cli.ExitOK, "no agent of cursor reaches wiki.example", []string{"block", "wiki.example", "--client", "cursor"}},
		{cli.ExitUsage, "domains.yaml blocks *.zip", []string{"allow", "a.zip"}},
		{cli.ExitUsage, "domains.yaml blocks *.zip", []string{"allow", "fine.example", "*.b.zip:8080", "--client", "cursor"}},
		{cli.ExitUsage, "domains.yaml blocks [2001:db8::1]:80", []string{"allow", "[2001:db8::1]:80"}},
		{cli.ExitUsage, "Durward itself blocks metadata.goog", []string{"allow", "metadata.goog"}},
		{cli.ExitUsage, "domains.yaml blocks wiki.example", []string{"allow", "wiki.example", "--client", "dashboard,cursor"}},
		{cli.ExitOK, "agents of dashboard may reach wiki.example", []string{"allow", "wiki.example", "--client", "dashboard"}},
		{cli.ExitOK, "agents may reach", []string{"allow", "[2001:db8::1]:81"}},
	} {
		signed := len(w.signed)
		r := w.run(append(append([]string{"egress"}, c.args...), "--yes")...)
		if r.code != c.code || !strings.Contains(r.out+r.err, c.want) || (len(w.signed) == signed) == strings.Contains(c.want, "agent") {
			t.Errorf("%v: %+v, signed %d, want %q", c.args, r, len(w.signed)-signed, c.want)
		}
	}
}
