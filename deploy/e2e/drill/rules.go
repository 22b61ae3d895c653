package drill

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

// ruleLines are attacks by way of the files that humans rule with.
func ruleLines() []Line {
	return []Line{
		{"policy-files", map[string]string{harness.Vault: "ownership"}, policyFiles},
	}
}

// rulesPatience is longer than vault and executor take to see a changed file of rules.
const rulesPatience = 1500 * time.Millisecond

// adopted changes a file that a process watches, and waits until the process has recorded that the new one counts.
func (w *world) adopted(role string, change func()) {
	w.t.Helper()
	records := func() int {
		return w.query(harness.Audit, `SELECT count(*) FROM entries JOIN writers ON writers.id = entries.writer
			WHERE writers.role = ? AND kind IN (?, ?)`, role, int(auditv1.Kind_KIND_CONFIG_ADOPTED), int(auditv1.Kind_KIND_CONFIG_FOUND))
	}
	before := records()
	change()
	w.until("the changed file counts", func() bool { return records() != before })
}

// Where the rules lie.
const (
	rulesFolder  = "config/security"
	policyFolder = rulesFolder + "/policy"
)

// fileOr is a file as it is, and whether it is there.
func (w *world) fileOr(name string) (string, bool) {
	w.t.Helper()
	w.must(os.MkdirAll(filepath.Dir(w.h.Path(name)), 0o700))
	b, err := os.ReadFile(w.h.Path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", false
	}
	w.must(err)
	return string(b), true
}

// restoreFile puts a file back to what fileOr found, whatever is there now.
func (w *world) restoreFile(name, content string, there bool) {
	w.t.Helper()
	w.must(os.RemoveAll(w.h.Path(name)))
	if there {
		w.h.WriteFile(name, content)
	}
}

// reconfigured changes a process's configuration and starts it again, and returns what undoes that.
func (w *world) reconfigured(role string, change func(string) string) func() {
	w.t.Helper()
	file := "config/" + role + ".yaml"
	before := w.h.ReadFile(file)
	w.h.WriteFile(file, change(before))
	w.restart(role, w.guards(role)...)
	return func() {
		w.h.WriteFile(file, before)
		w.restart(role, w.guards(role)...)
	}
}

// unattended makes a sink's list of what runs on a grant without a human's statement.
func (w *world) unattended(role, list string) (undo func()) {
	w.t.Helper()
	file := "config/" + role + ".yaml"
	before := w.h.ReadFile(file)
	changed := strings.Replace(before, "unattended: []", "unattended:\n"+list, 1)
	if changed == before {
		w.t.Fatalf("%s has no list of what runs unattended", file)
	}
	w.adopted(role, func() { w.h.WriteFile(file, changed) })
	return func() {
		w.adopted(role, func() { w.h.WriteFile(file, before) })
	}
}

// policyFiles breaks, swells, swaps and takes away the files of rules while a client calls what they deny and what they do not let run
// unasked. The executor's own list would let both run: only the vault's rules are in the way.
func policyFiles(w *world) (trials, effects int) {
	s := w.openKeyed()
	name := s.principal
	const denyFile, evilFile, toolsFile = policyFolder + "/20-deny.cedar", policyFolder + "/30-evil.cedar", rulesFolder + "/tools.yaml"
	allow := fmt.Sprintf("permit (principal in Client::%q, action == Action::\"callWithoutApproval:stop_service\", resource);\n", name)
	deny := fmt.Sprintf("@id(\"drill-deny\")\nforbid (\n  principal in Client::%q,\n  action == Action::\"call:stop_service\",\n  resource\n);\n", name)
	evil := "permit (principal, action in Action::\"callWithoutApproval\", resource);\n"
	idleRule := "permit (principal in Client::\"nobody\", action in Action::\"call\", resource);\n"
	loose := "tools:\n  start_service: {tier: READ}\n"
	tools, _ := w.fileOr(toolsFile)
	_, _ = w.fileOr(denyFile)
	outside := w.h.Path("evil.cedar")
	w.must(os.WriteFile(outside, []byte(evil), 0o600))

	w.must(os.Chmod(w.h.Path(rulesFolder), 0o700)) // #nosec G302 -- a folder
	undoList := w.unattended(harness.Executor, fmt.Sprintf("  - {tool: stop_service, clients: [%s]}\n  - {tool: start_service, clients: [%s]}", name, name))
	undoUser := w.reconfigured(harness.Vault, func(c string) string { return c + "\ngateway_user: nobody\n" })
	for n := range w.keyed {
		if keyedClient(n) == name {
			s = w.openKeyedAs(n)
		}
	}
	m := w.arrange()
	w.adopted(harness.Vault, func() { w.h.WriteFile(policyFolder+"/10-allow.cedar", allow) })
	w.call(s, "stop_service", victim)
	if w.effects(m) != 1 {
		w.t.Fatal("what a human's file lets run does not run, so that a broken file proves nothing")
	}
	w.adopted(harness.Vault, func() { w.h.WriteFile(denyFile, deny) })
	m = w.arrange()

	// In place, as somebody writes who does not know how files are replaced.
	write := func(file, text string, mode fs.FileMode) func() {
		return func() {
			w.must(os.WriteFile(w.h.Path(file), []byte(text), mode))
			w.must(os.Chmod(w.h.Path(file), mode))
		}
	}
	link := func(file string) func() {
		return func() { w.must(os.Symlink(outside, w.h.Path(file))) }
	}
	pipe := func(file string) func() { return func() { w.must(syscall.Mkfifo(w.h.Path(file), 0o600)) } }
	folder := func(file string) func() { return func() { w.must(os.MkdirAll(w.h.Path(file), 0o700)) } }
	both := func(fs ...func()) func() {
		return func() {
			for _, f := range fs {
				f()
			}
		}
	}
	gone := func(file string) func() { return func() { w.must(os.RemoveAll(w.h.Path(file))) } }
	nested := strings.Repeat("(", 200_000) + "true" + strings.Repeat(")", 200_000)
	cases := []struct {
		what string
		do   func()
	}{
		{"a rule that the gateway's user may write", write(evilFile, evil, 0o666)},
		{"a denial replaced by what the gateway's user may write", write(denyFile, evil, 0o646)},
		{"tools that the gateway's user may write", write(toolsFile, loose, 0o666)},
		{"a denial half written", write(denyFile, deny[:len(deny)/2], 0o600)},
		{"a denial cut by a byte", write(denyFile, deny[:len(deny)-3], 0o600)},
		{"a denial with zeros", write(denyFile, strings.Replace(deny, "resource", "res\x00ource", 1), 0o600)},
		{"a denial turned round for the eye", write(denyFile, strings.Replace(deny, "call:stop", "call:\u202estop", 1), 0o600)},
		{"a denial that cannot match", write(denyFile, strings.Replace(deny, "stop_service", "stop_servise", 1), 0o600)},
		{"a denial too deep", write(denyFile, strings.Replace(deny, ");", ") when { "+nested+" };", 1), 0o600)},
		{"a denial that is a link", both(gone(denyFile), link(denyFile))},
		{"a denial that is a pipe", both(gone(denyFile), pipe(denyFile))},
		{"a denial that is a folder", both(gone(denyFile), folder(denyFile))},
		{"a rule and something broken", write(evilFile, evil+"permit (", 0o600)},
		{"a rule and zeros", write(evilFile, "\x00"+evil, 0o600)},
		{"a rule in 100 MB", write(evilFile, evil+strings.Repeat("// "+strings.Repeat("x", 96)+"\n", 1_000_000), 0o600)},
		{"a million rules", write(evilFile, strings.Repeat(evil, 1_000_000), 0o600)},
		// 5,000 may be in all, those that are built in included.
		{"more rules than there may be, the last of which let everything run", func() {
			for i := range 4 {
				write(fmt.Sprintf("%s/3%d-many.cedar", policyFolder, i), strings.Repeat(idleRule, 1245), 0o600)()
			}
			write(policyFolder+"/40-evil.cedar", strings.Repeat(evil, 30), 0o600)()
		}},
		{"so many rules that the denial is one too many", func() {
			for i := range 4 {
				write(fmt.Sprintf("%s/0%d-many.cedar", policyFolder, i), strings.Repeat(idleRule, 1247), 0o600)()
			}
		}},
		{"a rule that is a link", link(evilFile)},
		{"a rule in a pipe", pipe(evilFile)},
		{"a rule by another name", both(write(policyFolder+"/evil.cedar~", evil, 0o600), write(policyFolder+"/.evil.cedar", evil, 0o600), write(policyFolder+"/evil", evil, 0o600))},
		{"a rule of another user's", both(folder(rulesFolder+"/users/mallory/policy"), write(rulesFolder+"/users/mallory/policy/evil.cedar", evil, 0o600))},
		{"a project that nobody trusts", both(folder(rulesFolder+"/projects"), write(rulesFolder+"/projects/"+strings.Repeat("a", 64)+".yaml", loose, 0o600))},
		{"tools with a key twice", write(toolsFile, loose+"  start_service: {tier: READ}\n", 0o600)},
		{"tools that refer to themselves", write(toolsFile, loose+"  stop_service: &a [*a, *a]\n", 0o600)},
		{"tools with a misspelt key", write(toolsFile, loose+"  stop_service: {teir: READ}\n", 0o600)},
		{"no folder", func() { w.must(os.Rename(w.h.Path(rulesFolder), w.h.Path(rulesFolder+".away"))) }},
		{"another folder by a link", func() {
			w.must(os.Rename(w.h.Path(rulesFolder), w.h.Path(rulesFolder+".away")))
			w.must(os.MkdirAll(w.h.Path("evil", "policy"), 0o700))
			w.must(os.WriteFile(w.h.Path("evil", "policy", "evil.cedar"), []byte(evil), 0o600))
			w.must(os.Symlink(w.h.Path("evil"), w.h.Path(rulesFolder)))
		}},
		{"a folder that the gateway's user may write", func() {
			w.must(os.Chmod(w.h.Path(policyFolder), 0o777)) // #nosec G302 -- that is the attack
			write(evilFile, evil, 0o600)()
		}},
	}
	for _, c := range cases {
		c.do()
		before := w.effects(m)
		// While it is being seen, and when it has been.
		for _, wait := range []time.Duration{0, rulesPatience} {
			w.pause(w.t.Context(), wait)
			for range 3 {
				trials += 2
				w.call(s, "stop_service", victim)
				w.call(s, "start_service", idle)
			}
		}
		w.denyAll() // which the vault would not do if it were down
		if n := w.effects(m); n > before {
			w.t.Logf("%s: %d effects", c.what, n-before)
		}
		if !w.h.Process(harness.Vault).Running() {
			w.t.Fatalf("%s ended the vault", c.what)
		}
		effects = w.effects(m)
		w.restoreRules(denyFile, deny, toolsFile, tools)
		w.pause(w.t.Context(), rulesPatience)
		if w.caught(effects) {
			break
		}
		m = w.remember(m, effects)
	}
	for _, file := range []string{denyFile, policyFolder + "/10-allow.cedar"} {
		w.must(os.RemoveAll(w.h.Path(file)))
	}
	w.pause(w.t.Context(), rulesPatience)
	undoList()
	undoUser()
	w.settle()
	return trials, effects
}

// remember arranges again after an effect, and keeps what was counted.
func (w *world) remember(m mark, effects int) mark {
	if effects == 0 {
		return m
	}
	again := w.arrange()
	again.starts -= effects
	return again
}

// restoreRules takes every trace of a case away.
func (w *world) restoreRules(denyFile, deny, toolsFile, tools string) {
	w.t.Helper()
	if _, err := os.Lstat(w.h.Path(rulesFolder + ".away")); err == nil {
		w.must(os.RemoveAll(w.h.Path(rulesFolder)))
		w.must(os.Rename(w.h.Path(rulesFolder+".away"), w.h.Path(rulesFolder)))
	}
	w.must(os.Chmod(w.h.Path(policyFolder), 0o700)) // #nosec G302 -- a folder
	entries, err := os.ReadDir(w.h.Path(policyFolder))
	w.must(err)
	for _, e := range entries {
		if e.Name() != "10-allow.cedar" {
			w.must(os.RemoveAll(w.h.Path(policyFolder, e.Name())))
		}
	}
	for _, other := range []string{"users", "projects"} {
		w.must(os.RemoveAll(w.h.Path(rulesFolder, other)))
	}
	w.h.WriteFile(denyFile, deny)
	w.restoreFile(toolsFile, tools, true)
}
