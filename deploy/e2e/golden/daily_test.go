package golden

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// tellDaily tells what an operator sees who sets Durward up, looks after it, and stays to watch.
func tellDaily(t *testing.T, s *set) {
	w := newWorld(t, s, harness.Options{Catalog: harness.ModesCatalog})
	defer w.done()

	tellInstall(w)
	f := w.file("daily/doctor.txt")
	f.says("Nothing runs.")
	f.doctor("doctor")
	f.doctor("doctor", "--json")

	private := w.file("daily/privacy.txt")
	private.says("A text of the operator's own; nothing has to run.")
	w.WriteFile("mail.txt", privateText)
	private.durward("privacy", "detect", w.Path("mail.txt"))
	private.durward("privacy", "detect", w.Path("mail.txt"), "--json")
	private.durward("privacy", "detect", w.Path("none.txt"))

	kept := w.file("daily/backup.txt")
	kept.says("Nobody is named who may read a backup; there is none to restore; a bundle is there already.")
	kept.durward("backup", w.Path("backup"))
	kept.durward("restore", w.Path("backup"), "--key", w.Path("mail.txt"))
	kept.durward("support", "bundle", w.Path("mail.txt"))

	tellUp(w)
	private.says("What the running vault does with it.")
	private.durward("privacy", "policy")
	private.durward("privacy", "sessions")
	private.durward("privacy", "test", w.Path("mail.txt"), "--tool", "start_service", "--argument", "/service_id")
	tellFollowed(w)

	f.says("Everything runs, as one user.")
	f.doctor("doctor")
	f.doctor("doctor", "--json")
	f.says("A file of the installation that others can read, and a program of another name on a port.")
	must(t, os.Chmod(w.Path("config", "vault.yaml"), 0o644))
	f.doctor("doctor")

	f = w.file("daily/down.txt")
	f.durward("down", "--services")
	f.durward("down", "--services", "--yes")
	f.durward("down")

	tellNotify(w)
}

// privateText is nobody's; each value is one of an example's.
const privateText = `Maria Gonzalez <maria@example.org> called from +1 (555) 234-5678.
Card 4111 1111 1111 1111, IBAN GB82 WEST 1234 5698 7654 32, seen from 203.0.113.77 at 1763974800.
request 550e8400-e29b-41d4-a716-446655440000 done, password=hunter2
`

// tellNotify tells how notifications are turned on. Nothing shows them in the world's own session.
func tellNotify(w *world) {
	w.t.Helper()
	f := w.file("daily/notify.txt")
	f.durward("notify")
	f.durward("notify", "install")
	f.durward("notify", "test")
	f.durward("cert", "status")
	f.says("What was edited is kept.")
	good := w.ReadFile("config/notify.yaml")
	w.WriteFile("config/notify.yaml", strings.Replace(good, "kind: desktop", "kind: email", 1))
	f.durward("notify", "install")
	f.durward("notify")

	f = w.file("configuration/notify.txt")
	const desk = "  - name: desk\n    kind: desktop\n"
	w.WriteFile("keys/notify-url", "http://hooks.example.com/x\n")
	for _, m := range []mistake{
		{"an unknown key", "trust_dir: ", "trust_dr: "},
		{"an unknown key deeper", "kind: desktop", "knd: desktop"},
		{"a required key left out", "trust_dir: ", "# trust_dir: "},
		{"nobody to tell", "destinations:\n" + desk, "destinations: []\n"},
		{"no file of the URL", desk, "  - name: phone\n    kind: ntfy\n"},
		{"a file of the URL that is not there", desk, "  - name: phone\n    kind: ntfy\n    url_file: " + w.Path("keys", "none") + "\n"},
		{"a URL that others on the way can read", desk, "  - name: phone\n    kind: ntfy\n    url_file: " + w.Path("keys", "notify-url") + "\n"},
		{"a command by its name alone", desk, "  - name: own\n    kind: command\n    program: [tell-me]\n"},
	} {
		if !strings.Contains(good, m.old) {
			w.t.Errorf("notify.yaml has no %q", m.old)
		}
		w.WriteFile("config/wrong.yaml", strings.Replace(good, m.old, m.new, 1))
		f.says("%s: %q instead of %q", m.what, m.new, m.old)
		f.execute("durward-notify", "-config", w.Path("config", "wrong.yaml"), "-check")
	}
}

func tellInstall(w *world) {
	w.t.Helper()
	f := w.file("daily/install.txt")
	f.says("Into an image's root, where alice has a Unix user.")
	image := filepath.Join(filepath.Dir(w.Dir), "image")
	if err := os.MkdirAll(filepath.Join(image, "etc"), 0o755); err != nil {
		w.t.Fatal(err)
	}
	w.WriteFile("../image/etc/passwd", "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n")
	f.both("install", "--dry-run", "--root", image, "--operator", "alice")
	f.durward("install", "--dry-run", "--root", image, "--operator", "alice", "--docker", "--process-driver", "--health-on-loopback", "--port", "9000")
	for _, args := range [][]string{
		{}, {"--dry-run", "--apply"}, {"--dry-run"}, {"--dry-run", "--operator", "nobody-at-all"}, {"--dry-run", "--operator", "root"},
		{"--dry-run", "--operator", "alice", "--signing-key", "id_ed25519"}, {"--dry-run", "--operator", "alice", "--programs", w.Path("none")}, {"--dry-run", "--operator", "alice", "--port", "99999"},
	} {
		f.durward(append([]string{"install", "--root", image}, args...)...)
	}
}

func tellUp(w *world) {
	w.t.Helper()
	f := w.file("daily/up.txt")
	f.says("The installation's signing key has no passphrase; --development allows that.")
	f.durward("up")
	f.says("What the installation is made of is not changed by starting it.")
	f.durward("up", "--development", "--operator", "eve")
	f.durward("up", "--development", "--base-port", "9000")
	for _, m := range []mistake{
		{"an address left out", "health_listen: ", "# health_listen: "},
		{"an unknown key", "log_level: info", "log_levl: info"},
		{"no YAML", "log_level: info", "log_level: [info"},
	} {
		good := w.ReadFile("config/audit.yaml")
		w.WriteFile("config/audit.yaml", strings.Replace(good, m.old, m.new, 1))
		f.says("audit.yaml, %s: %q instead of %q", m.what, m.new, m.old)
		f.durward("up", "--development")
		w.WriteFile("config/audit.yaml", good)
	}
	goesOn := func() *harness.Process {
		up := w.Up()
		harness.Eventually(w.t, "the screen is whole", func() error {
			if !strings.Contains(up.Log(), "on your PATH yet") {
				return fmt.Errorf("%s", up.Log())
			}
			return nil
		})
		fmt.Fprintf(&f.text, "$ durward up --development (it goes on)\n%s\n\n", up.Log())
		return up
	}
	f.says("There is nothing to run yet.")
	example := w.ReadFile("config/catalogue.yaml")
	w.WriteFile("config/catalogue.yaml", "version: 1\ngpus:\n  - {index: 0, name: A GPU, memory_mib: 24576, simulated: true}\nservices: []\n")
	goesOn().Stop()
	w.WriteFile("config/catalogue.yaml", example)
	f.says("It runs.")
	goesOn()
	f.says("A second start.")
	f.durward("up", "--development")
	f.durward("status")
}

// tellFollowed tells of the reads that stay and write what comes.
func tellFollowed(w *world) {
	w.t.Helper()
	cursor := w.agent("cursor")
	unseen := &transcript{w: w} // what the agent is told is in other transcripts
	for _, form := range []struct {
		file, asked, approved, runs, uses, logged string
		args                                      []string
	}{
		{"daily/watch.txt", `waits for you`, `approved`, `(?s)demo-chat +running\n.*: ended\n|: ended\n.*demo-chat +running\n`, `GPU 0: 8192`, `"demo service"`, nil},
		{"daily/watch-json.txt", `"state":"waits"`, `"state":"approved"`,
			`(?s)"state":"running","initial":false.*"state":"ended"|"state":"ended".*"state":"running","initial":false`, `"memory_used_mib":8192`, `(?s)demo service.*demo service`, []string{"--json"}},
	} {
		f := w.file(form.file)
		f.says("An agent asks, a person approves, and the service starts while somebody watches. The lines are sorted, since which comes first is a")
		f.says("matter of time, and what lasts for a moment only is left out.")
		approvals := w.follow(append([]string{"approvals", "--watch"}, form.args...)...)
		watch := w.follow(append([]string{"watch"}, form.args...)...)
		watch.waits("demo-sleepy")
		id := cursor.call(unseen, "pending_approval", "start_service", `{"service_id":"demo-chat","reason":"the user asked for it"}`).OperationID
		w.number(id)
		approvals.waits("the user asked for it")
		watch.waits(form.asked)
		w.Approve(id)
		approvals.waits("approved")
		watch.waits(form.approved)
		cursor.call(unseen, "ok", "wait_operation", fmt.Sprintf(`{"operation_id":%q}`, id))
		watch.waits(form.runs)
		watch.waits(form.uses)
		watch.ends(f, settled)
		approvals.waits(`done`)
		approvals.ends(f, settled)
		logs := w.follow(append([]string{"logs", "demo-chat", "-f"}, form.args...)...)
		logs.waits(form.logged)
		logs.ends(f, nil)
		w.Durward("stop", "demo-chat", "--yes")
	}
	f := w.file("daily/audit-tail.txt")
	f.says("A person starts a service while somebody reads the log's tail: the records from the intent on, without those of reads.")
	tail := w.follow("audit", "tail")
	tail.waits("outcome")
	w.Durward("start", "demo-sleepy", "--yes")
	tail.waits("outcome .*demo-sleepy")
	tail.ends(f, func(text string) string {
		text = told.ReplaceAllString(text, "")
		at := strings.LastIndex(text[:strings.LastIndex(text, "intent")], "\n")
		return text[at+1:]
	})
}

var (
	// momentary are the lines of what lasts for a moment only: a person may be told or not.
	momentary = regexp.MustCompile(`(?m)^.*(?:● |demo-chat +starting|: running|running by|"ended":false|"state":"starting"|"kind":"operation".*"state":"running"|"number":.*"state":"running").*\n`)
	// waiters are how many calls wait for an operation: one that waits for it to end may come before or after it is approved.
	waiters = regexp.MustCompile(`"waiters":\d+`)
	// clock is when a line was written.
	clock = regexp.MustCompile(`^\d\d:\d\d:\d\d `)
)

// settled are the lines of a text that stay the same from run to run, sorted.
func settled(text string) string {
	lines := slices.Collect(strings.Lines(waiters.ReplaceAllString(momentary.ReplaceAllString(text, ""), `"waiters":<N>`)))
	slices.SortFunc(lines, func(a, b string) int {
		return strings.Compare(clock.ReplaceAllString(a, ""), clock.ReplaceAllString(b, ""))
	})
	return strings.Join(slices.Compact(lines), "")
}

// followed is a command that stays.
type followed struct {
	w    *world
	args []string
	cmd  *exec.Cmd
	mu   sync.Mutex
	out  bytes.Buffer
}

func (o *followed) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.out.Write(b)
}

func (o *followed) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.out.String()
}

// follow starts a command that stays until it is interrupted.
func (w *world) follow(args ...string) *followed {
	w.t.Helper()
	o := &followed{w: w, args: args, cmd: w.CLI(args...)}
	o.cmd.Stdout, o.cmd.Stderr = o, o
	if err := o.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = o.cmd.Process.Kill() }) // it has ended, unless the test failed
	return o
}

// waits waits until the command has written what a pattern matches.
func (o *followed) waits(pattern string) {
	o.w.t.Helper()
	harness.Eventually(o.w.t, fmt.Sprintf("durward %v shows %q", o.args, pattern), func() error {
		if shown := o.text(); !regexp.MustCompile(pattern).MatchString(shown) {
			return fmt.Errorf("it shows:\n%s", shown)
		}
		return nil
	})
}

// ends interrupts the command and writes down what it wrote, or what shown makes of that.
func (o *followed) ends(f *transcript, shown func(string) string) {
	o.w.t.Helper()
	if err := o.cmd.Process.Signal(syscall.SIGINT); err != nil {
		o.w.t.Fatal(err)
	}
	_ = o.cmd.Wait() // its exit code is written down
	text := o.text()
	if shown != nil {
		text = shown(text)
	}
	f.wrote(harness.Output{Stdout: text, Code: o.cmd.ProcessState.ExitCode()}, " (until Ctrl-C)", o.args)
}

// ofTheMachine are doctor's findings about the machine and what else runs on it.
var ofTheMachine = regexp.MustCompile(`(?m)^. (?:(?:groups|drivers|gpu) |users +(?:an agent's|no process)).*\n(?:  +→ .*\n)?|` +
	`    \{\n[^}]*"name": "(?:(?:groups|drivers|gpu)"|users",\n +"text": "(?:an agent's|no process))[^}]*\},?\n`)

// doctor runs durward doctor and writes down what it finds of the installation.
func (f *transcript) doctor(args ...string) {
	f.w.t.Helper()
	out := f.w.Run("", args...)
	out.Stdout = ofTheMachine.ReplaceAllString(out.Stdout, "")
	f.wrote(out, "", args)
}
