package root

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/operator/internal/signingkey"
	entry "durward.internal/services/operator/internal/unattended"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/sink/unattended"
	"durward.internal/services/platform/trust"
)

// entries are what the executor would read of its list.
func entries(t *testing.T, folder string) []unattended.Entry {
	t.Helper()
	var listed struct {
		Unattended []any `yaml:"unattended"`
	}
	must(t, yaml.Unmarshal([]byte(read(t, filepath.Join(folder, "executor.yaml"))), &listed))
	list, err := unattended.Parse(listed.Unattended)
	must(t, err)
	return list
}

// TestARuleWithItsEntryIsNotWarnedAbout: a rule that lets a tool run is a half, unless the executor's list names the tool too.
func TestARuleWithItsEntryIsNotWarnedAbout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	const half = "also needs an entry in the executor's file"
	if r := w.run("policy", "allow", "--client", "cursor", "--tool", "stop_service", "--service", "chat", "--yes"); r.code != cli.ExitOK {
		t.Fatalf("allow ended with %d: %s", r.code, r.err)
	}
	if r := w.run("policy", "check"); strings.Contains(r.out+r.err, half) {
		t.Errorf("with its entry: %s%s", r.out, r.err)
	}
	file := filepath.Join(folder, "executor.yaml")
	testfile.Write(t, file, strings.ReplaceAll(read(t, file), "stop_service", "start_service"))
	if r := w.run("policy", "check"); !strings.Contains(r.out+r.err, half) {
		t.Errorf("without its entry nothing is said: %s%s", r.out, r.err)
	}
}

// TestAllowUntilEndsInBothFiles: the executor's entry ends with the rule, and another end replaces rule and entry.
func TestAllowUntilEndsInBothFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	allow := []string{"policy", "allow", "--client", "cursor", "--tool", "stop_service", "--service", "chat", "--yes"}
	for _, c := range []struct {
		until string
		want  time.Duration
	}{{"1h", time.Hour}, {"48h", 48 * time.Hour}, {"", 0}, {"2h", 2 * time.Hour}} {
		args := allow
		if c.until != "" {
			args = append(args[:len(args):len(args)], "--until", c.until)
		}
		if r := w.run(args...); r.code != cli.ExitOK {
			t.Fatalf("%q: %+v", c.until, r)
		}
		list, ids := entries(t, folder), ruleIDs(t, folder)
		if len(list) != 1 || len(ids) != 1 || !strings.Contains(read(t, filepath.Join(folder, "executor.yaml")), entry.Mark+ids[0]+"\n") {
			t.Fatalf("%q: entries %+v, rules %q", c.until, list, ids)
		}
		if left := time.Until(list[0].Until); c.want == 0 && !list[0].Until.IsZero() || c.want > 0 && (left > c.want || left < c.want-time.Minute) {
			t.Errorf("%q: the entry ends at %s", c.until, list[0].Until)
		}
	}
	// Another rule of the same tool is nobody's replacement.
	if r := w.run("policy", "allow", "--client", "cursor", "--tool", "stop_service", "--service", "coder", "--until", "2h", "--yes"); r.code != cli.ExitOK || len(entries(t, folder)) != 2 {
		t.Errorf("%+v", r)
	}
}

// TestACommentIsNoEntry: an entry that was commented out is written again.
func TestACommentIsNoEntry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	allow := []string{"policy", "allow", "--client", "cursor", "--tool", "stop_service", "--service", "chat", "--yes"}
	if r := w.run(allow...); r.code != cli.ExitOK {
		t.Fatalf("%+v", r)
	}
	path := filepath.Join(folder, "executor.yaml")
	off := strings.Replace(strings.Replace(read(t, path), "unattended:\n", "unattended: []\n", 1), "  - {tool: stop_service", "#  - {tool: stop_service", 1)
	testfile.Write(t, path, off)
	if len(entries(t, folder)) != 0 {
		t.Fatal("it is an entry still")
	}
	if r := w.run(allow...); r.code != cli.ExitOK || len(entries(t, folder)) != 1 {
		t.Errorf("%+v, %+v", r, entries(t, folder))
	}
}

// TestInForceIsWhatWasSeen: of a file that another process reads nobody says that it is in force.
func TestInForceIsWhatWasSeen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withClients(t)
	r := w.run("policy", "allow", "--client", "cursor", "--tool", "stop_service", "--service", "chat", "--yes")
	if r.code != cli.ExitOK || strings.Contains(r.out, ", and it is in force") || !strings.Contains(r.out, "At the vault it is in force") ||
		!strings.Contains(r.out, "executor.yaml is written; the executor reads it within a second") {
		t.Errorf("%+v", r)
	}
	r = w.run("--json", "config", "allow-origin", "https://console.example", "--yes")
	var out signedchange.Result
	if err := json.Unmarshal([]byte(r.out), &out); err != nil || out.InForce || len(out.Unseen) != 1 || out.Unseen[0] != "gateway.yaml" {
		t.Errorf("%v: %+v", err, r)
	}
}

// TestRulesThatBindNobody: a user that nobody has is said, and a mode or a service that there is not is refused, with what may have
// been meant.
func TestRulesThatBindNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	path := filepath.Join(folder, "clients.yaml")
	testfile.Write(t, path, strings.Replace(read(t, path), "{id: cursor,", "{id: cursor, user: alice,", 1))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"config", "set", "tier_ceiling", "READ", "--user", "alice", "--yes"}, ""},
		{[]string{"policy", "limit", "stop_service", "--budget-day", "3", "--user", "alice", "--yes"}, ""},
		{[]string{"policy", "check"}, ""},
		{[]string{"config", "set", "tier_ceiling", "READ", "--user", "alcie", "--yes"}, "no client has the user alcie (clients.yaml): its rules bind nobody; did you mean alice?"},
		{[]string{"policy", "limit", "stop_service", "--budget-day", "3", "--user", "bob", "--yes"}, "no client has the user bob"},
		{[]string{"policy", "check"}, "users/alcie: warning: no client has the user alcie"},
		{[]string{"policy", "allow", "--client", "cursor", "--tool", "stop_service", "--service", "coder", "--yes"}, ""},
		{[]string{"policy", "allow", "--client", "cursor", "--tool", "stop_service", "--service", "cder", "--yes"}, "the catalogue has no service cder, so the rule would do nothing"},
		{[]string{"policy", "allow", "--client", "cursor", "--tool", "switch_mode", "--mode", "chattin,coding", "--yes"}, "the catalogue has no mode chattin, so the rule would do nothing"},
		{[]string{"policy", "allow", "--client", "cursor", "--tool", "switch_mode", "--mode", "chattin,coding", "--yes"}, "Did you mean chatting?"},
		{[]string{"policy", "allow", "--client", "cursor", "--tool", "switch_mode", "--arg", "mode_id=nowhere", "--yes"}, "durward mode list"},
	} {
		before := treeOf(t, folder)
		r := w.run(c.args...)
		said := r.out + r.err
		code := cli.ExitOK
		if c.args[1] == "allow" && c.want != "" {
			code = cli.ExitUsage
			if !maps.Equal(before, treeOf(t, folder)) {
				t.Errorf("%v: a rule was written", c.args)
			}
		}
		if r.code != code || c.want != "" && !strings.Contains(said, c.want) || c.want == "" && (strings.Contains(said, "no client has") || strings.Contains(said, "the catalogue has no")) {
			t.Errorf("%v: want %q: %+v", c.args, c.want, r)
		}
	}
}

// TestFourEyesAreSaid: clients that belong to nobody are named where a second human is asked for.
func TestFourEyesAreSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withClients(t)
	if r := w.run("config", "set", "approvals.four_eyes", "false", "--yes"); r.code != cli.ExitOK || strings.Contains(r.err, "no user") {
		t.Errorf("%+v", r)
	}
	if r := w.run("client", "add", "early", "--yes"); r.code != cli.ExitOK || strings.Contains(r.err, "no user") {
		t.Errorf("%+v", r)
	}
	if r := w.run("config", "set", "approvals.four_eyes", "true", "--yes"); r.code != cli.ExitOK || !strings.Contains(r.err, "cursor, dashboard, early have no user") {
		t.Errorf("%+v", r)
	}
	if r := w.run("client", "add", "late", "--yes"); r.code != cli.ExitOK || !strings.Contains(r.err, "late has no user: nobody can approve what it asks") {
		t.Errorf("%+v", r)
	}
	if r := w.run("client", "add", "hers", "--user", "alice", "--yes"); r.code != cli.ExitOK || strings.Contains(r.err, "no user") {
		t.Errorf("%+v", r)
	}
}

// TestNoLimitLetsAToolRun: a tier that makes a tool run unasked is no limit, and would be refused by the executor.
func TestNoLimitLetsAToolRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	before := treeOf(t, folder)
	for _, tool := range []string{"stop_service", "switch_mode"} {
		if r := w.run("policy", "limit", tool, "--tier", "READ", "--yes"); r.code != cli.ExitUsage || !strings.Contains(r.err, "durward policy allow --client CLIENT --tool "+tool) {
			t.Errorf("%+v", r)
		}
	}
	for path, text := range treeOf(t, folder) {
		if before[path] != text {
			t.Errorf("%s was written", path)
		}
	}
	if r := w.run("policy", "limit", "gpu_status", "--tier", "READ", "--yes"); r.code != cli.ExitOK {
		t.Errorf("%+v", r)
	}
}

// TestTooLongToSign: what no statement can hold is refused before anything is shown.
func TestTooLongToSign(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	project := filepath.Join(t.TempDir(), "durward.yaml")
	testfile.Write(t, project, "settings: {tier_ceiling: READ}\n"+strings.Repeat("# "+strings.Repeat("x", 100)+"\n", 1000))
	before := len(treeOf(t, folder))
	r := w.run("config", "trust", project, "--yes")
	if r.code != cli.ExitUsage || !strings.Contains(r.err, "too long to be signed") || strings.Contains(r.out, "statement that you sign") || len(w.signed) > 0 {
		t.Errorf("%d %q", r.code, r.err)
	}
	if len(treeOf(t, folder)) != before {
		t.Error("something was written")
	}
}

// TestHalfAChangeIsSaid: where the second of two files cannot be written, what stands already is said.
func TestHalfAChangeIsSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	w.announced = func(file string) {
		if file != "executor.yaml" {
			return
		}
		// Somebody else edits it between what was shown and what is written.
		path := filepath.Join(folder, "executor.yaml")
		if err := os.WriteFile(path, []byte(read(t, path)+"# mine\n"), 0o600); err != nil {
			t.Error(err)
		}
	}
	r := w.run("policy", "allow", "--client", "cursor", "--tool", "stop_service", "--service", "chat", "--yes")
	if r.code != cli.ExitFailed || !strings.Contains(r.err, "policy/allow.cedar is changed already, and executor.yaml is not") {
		t.Errorf("%d %q", r.code, r.err)
	}
	if len(ruleIDs(t, folder)) != 1 || len(entries(t, folder)) != 0 {
		t.Error("something else stands")
	}
}

// TestRightsAreSigned: letting an operator in takes a person and a key; taking a right away is signed where one can be asked for.
func TestRightsAreSigned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	for _, name := range []string{"one", "two"} {
		if r := w.run("client", "add", name, "--yes"); r.code != cli.ExitOK {
			t.Fatalf("%+v", r)
		}
	}
	w.signed = nil
	_, public, err := signingkey.Generate("bob", nil)
	must(t, err)
	pub := filepath.Join(t.TempDir(), "bob.pub")
	testfile.Write(t, pub, public)
	signers, clients := w.home.Trust(trust.FileAllowedSigners), filepath.Join(folder, "clients.yaml")
	before := read(t, signers)
	r := w.run("operator", "add", "bob", pub)
	if r.code != cli.ExitDenied || !strings.Contains(r.err, "Edit by hand: "+signers) || read(t, signers) != before {
		t.Errorf("a pipe lets an operator in: %+v", r)
	}
	cfg, err := w.home.Load()
	must(t, err)
	key := read(t, cfg.SigningKey)
	w.protect(t, "open sesame")
	if r = w.run("operator", "add", "bob", pub, "--yes"); r.code != cli.ExitDenied || read(t, signers) != before {
		t.Errorf("a protected key and a pipe let an operator in: %+v", r)
	}
	// Taking away goes on without.
	if r = w.run("client", "revoke", "one", "--yes"); r.code != cli.ExitOK || !strings.Contains(r.err, "without a signature") || len(w.signed) > 0 ||
		!strings.Contains(read(t, clients), "revoked: true") {
		t.Errorf("%+v", r)
	}
	testfile.Write(t, cfg.SigningKey, key)
	if r = w.run("operator", "add", "bob", pub, "--yes"); r.code != cli.ExitOK || !strings.Contains(r.out, "+bob ") || len(w.signed) != 1 ||
		w.signed[0].Change.File != "trust/allowed_signers" || !strings.HasPrefix(read(t, signers), before) {
		t.Errorf("%+v", r)
	}
	if r = w.run("operator", "revoke", "bob", "--yes"); r.code != cli.ExitOK || !strings.Contains(r.out, "-bob ") || len(w.signed) != 2 || read(t, signers) != before {
		t.Errorf("%+v", r)
	}
	if r = w.run("operator", "revoke", "bob"); r.code != cli.ExitUsage {
		t.Errorf("%+v", r)
	}
	if r = w.run("operator", "revoke", "alice"); r.code != cli.ExitUsage || !strings.Contains(r.err, "last operator") {
		t.Errorf("%+v", r)
	}
	if r = w.run("client", "revoke", "two", "--yes"); r.code != cli.ExitOK || len(w.signed) != 3 || !strings.Contains(r.out, "it is in force") {
		t.Errorf("%+v", r)
	}
	if r = w.run("operator", "add", "bob", pub, "--yes"); r.code != cli.ExitOK {
		t.Errorf("%+v", r)
	}
	// A pipe, no --yes: the right goes all the same.
	if r = w.run("operator", "revoke", "bob"); r.code != cli.ExitOK || len(w.signed) != 4 || !strings.Contains(r.err, "without a signature") || read(t, signers) != before {
		t.Errorf("%+v", r)
	}
}
