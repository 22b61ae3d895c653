package security_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/security"
)

// tree writes files below a new folder; a nil content makes a folder.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "security")
	must(t, os.Mkdir(dir, 0o755))
	for name, text := range files {
		write(t, dir, name, text)
	}
	return dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	// As careful programs write: whole, and then in place.
	must(t, os.WriteFile(path+"~", []byte(text), 0o644))
	must(t, os.Rename(path+"~", path))
}

func sha(text string) string {
	sum := canonical.Digest([]byte(text))
	return canonical.FormatDigest(sum[:])
}

const forbid = "@id(\"no-switches\")\nforbid (principal, action == Action::\"call:switch_mode\", resource);\n"

func TestRefusedAtTheStart(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"unknown setting":      {map[string]string{"security.yaml": "approvals:\n  wait: 60\n"}, `security.yaml:2:3: unknown key "wait" in approvals; did you mean "wait_s"?`},
		"out of range":         {map[string]string{"security.yaml": "approvals:\n  wait_s: 7200\n"}, "security.yaml:2:11: approvals.wait_s must be a whole number from 60 to 1800"},
		"negative":             {map[string]string{"security.yaml": "approvals: {wait_s: -1}\n"}, "security.yaml:1:"},
		"another base":         {map[string]string{"security.yaml": "approvals: {wait_s: 0x3c}\n"}, "must be a whole number"},
		"wrong type":           {map[string]string{"security.yaml": "desktop: {allowed: \"false\"}\n"}, "must be true or false"},
		"no such tier":         {map[string]string{"security.yaml": "tier_ceiling: DENIED\n"}, "must be READ, WRITE or DESTRUCTIVE"},
		"duplicate key":        {map[string]string{"security.yaml": "tier_ceiling: READ\ntier_ceiling: WRITE\n"}, "security.yaml:2:1"},
		"second document":      {map[string]string{"security.yaml": "tier_ceiling: READ\n---\ntier_ceiling: WRITE\n"}, "document"},
		"no YAML":              {map[string]string{"security.yaml": "approvals: [\n"}, "security.yaml:"},
		"no Cedar":             {map[string]string{"policy/a.cedar": "permit (principal"}, "policy/a.cedar:"},
		"unknown tool":         {map[string]string{"tools.yaml": "tools:\n  switch_mod:\n    tier: DENIED\n"}, "switch_mode"},
		"a misspelt file":      {map[string]string{"securty.yaml": "tier_ceiling: READ\n"}, `securty.yaml: durward reads no file of that name here; did you mean "security.yaml"?`},
		"a misspelt folder":    {map[string]string{"polcy/a.cedar": forbid}, `polcy: durward reads no file of that name here; did you mean "policy"?`},
		"a rule in no folder":  {map[string]string{"a.cedar": forbid}, "a.cedar: durward reads no file of that name here"},
		"a user's odd name":    {map[string]string{"users/Alice Cooper/tools.yaml": "tools: {}\n"}, "no folder of a user's"},
		"too large":            {map[string]string{"policy/a.cedar": "//" + strings.Repeat(" ", 300<<10)}, "policy/a.cedar: it is too large"},
		"a copy nobody has":    {map[string]string{"projects.yaml": "projects:\n  - {path: /p/durward.yaml, sha256: " + strings.Repeat("a", 64) + "}\n"}, "is not there"},
		"another copy":         {map[string]string{"projects.yaml": "projects:\n  - {path: /p/durward.yaml, sha256: " + strings.Repeat("a", 64) + "}\n", "projects/" + strings.Repeat("a", 64) + ".yaml": "settings: {}\n"}, "is not what a human trusted"},
		"a relative project":   {map[string]string{"projects.yaml": "projects:\n  - {path: p, sha256: " + strings.Repeat("a", 64) + "}\n"}, "path must be absolute"},
		"an unlisted copy odd": {map[string]string{"projects/x.yaml": "settings: {}\n"}, "projects/x.yaml: durward reads no file"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := security.Open(security.Options{Dir: tree(t, c.files)})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if _, err := security.Open(security.Options{Dir: filepath.Join(t.TempDir(), "none")}); err == nil || !strings.Contains(err.Error(), "it is not there") {
		t.Errorf("a folder that is not there: %v", err)
	}
}

func TestNothingSetIsBuiltIn(t *testing.T) {
	want := security.Values{WaitS: 1800, ScopeMaxS: 28800, ScopeMaxUses: 1000, DangerousMaxS: 28800, DangerousAllowed: true,
		TierCeiling: optionsv1.Tier_TIER_DESTRUCTIVE, MessagingTTLS: 86400, MessagingPerUser: 10, MessagingPerRoom: 20, MessagingInAll: 60}
	for name, dir := range map[string]string{"no folder": "", "an empty folder": tree(t, nil),
		"comments": tree(t, map[string]string{"security.yaml": "# nothing\n\n", "tools.yaml": "# nothing\n", "policy/a.cedar": "// nothing\n", "projects.yaml": "", "README": "x", ".hidden.yaml": "x", "old.yaml~": "x"})} {
		t.Run(name, func(t *testing.T) {
			l, err := security.Open(security.Options{Dir: dir})
			must(t, err)
			defer l.Close()
			if diff := cmp.Diff(want, l.Current().Values("cursor", "alice")); diff != "" {
				t.Error(diff)
			}
			for _, s := range l.Current().Settings("cursor", "alice") {
				known, ok := security.Find(s.Name)
				if !ok || s.Layer != security.LayerBuiltIn || s.Value != known.Default || known.Check(s.Value) != nil {
					t.Errorf("%+v", s)
				}
			}
		})
	}
}

// The user's word goes over the system's; a project counts only where it is tighter, and for its clients alone.
func TestLayers(t *testing.T) {
	project := "settings:\n  approvals: {wait_s: 120, four_eyes: false}\n  tier_ceiling: DESTRUCTIVE\n  desktop: {allowed: true}\n  messaging: {per_minute: 5}\ntools:\n  stop_service: {tier: DENIED}\ndomains: {block: [\"*.example\"]}\n"
	sum := strings.TrimPrefix(sha(project), "sha256:")
	dir := tree(t, map[string]string{
		"security.yaml":                "approvals:\n  wait_s: 300\n  four_eyes: true\ntier_ceiling: WRITE\n",
		"users/alice/security.yaml":    "# hers\napprovals: {wait_s: 600}\n",
		"users/alice/policy/own.cedar": forbid,
		"domains.yaml":                 "allow: [docs.example, {domain: mine.test, clients: [mine]}]\n",
		"users/alice/domains.yaml":     "block: [docs.example]\n",
		"projects.yaml":                "projects:\n  - path: /p/durward.yaml\n    sha256: " + sum + "\n    clients: [cursor]\n",
		"projects/" + sum + ".yaml":    project,
	})
	l, err := security.Open(security.Options{Dir: dir})
	must(t, err)
	defer l.Close()
	show := func(client, user string) map[string]string {
		out := map[string]string{}
		for _, s := range l.Current().Settings(client, user) {
			if s.Layer != security.LayerBuiltIn {
				out[s.Name] = s.Value + " " + s.Layer
			}
		}
		return out
	}
	system := map[string]string{"approvals.wait_s": "300 system", "approvals.four_eyes": "true system", "tier_ceiling": "WRITE system"}
	for _, c := range []struct {
		client, user string
		want         map[string]string
	}{
		{"", "", system},
		{"claude-code", "", system},
		{"claude-code", "bob", system},
		{"claude-code", "alice", map[string]string{"approvals.wait_s": "600 user", "approvals.four_eyes": "true system", "tier_ceiling": "WRITE system"}},
		{"cursor", "alice", map[string]string{"approvals.wait_s": "120 project", "approvals.four_eyes": "true system", "tier_ceiling": "WRITE system", "messaging.per_minute": "5 project"}},
	} {
		if diff := cmp.Diff(c.want, show(c.client, c.user)); diff != "" {
			t.Errorf("%s, %s: %s", c.client, c.user, diff)
		}
	}
	for _, s := range l.Current().Settings("cursor", "alice") {
		if s.Name == "approvals.wait_s" && (s.Line != 2 || s.File != "projects/"+sum+".yaml") {
			t.Errorf("%+v", s)
		}
	}
	if v := l.Current().Values("cursor", "alice"); v.DesktopAllowed || v.WaitS != 120 {
		t.Errorf("a project loosened: %+v", v)
	}
	for _, c := range []struct {
		of         destination.Party
		host, file string
		want       destination.Verdict
	}{
		{destination.Party{Client: "claude-code"}, "docs.example", "domains.yaml", destination.Allowed},
		{destination.Party{Client: "mine"}, "mine.test", "domains.yaml", destination.Allowed},
		{destination.Party{Client: "claude-code"}, "mine.test", "", destination.Unknown},
		{destination.Party{Client: "cursor"}, "docs.example", "projects/" + sum + ".yaml", destination.Blocked},
		{destination.Party{Client: "cursor", User: "alice"}, "docs.example", "users/alice/domains.yaml", destination.Blocked},
		{destination.Party{Client: "mine", User: "bob"}, "docs.example", "domains.yaml", destination.Allowed},
		{destination.Party{Client: "cursor"}, "metadata.goog", "", destination.Blocked},
	} {
		if v, by := l.Current().Domains.Judge(c.of, destination.Destination{Host: c.host, Port: 443}); v != c.want || by.File != c.file {
			t.Errorf("%s for %+v: %d by %+v", c.host, c.of, v, by)
		}
	}
	layers := map[policy.Layer]bool{}
	for _, r := range l.Current().Policies.Rules() {
		layers[r.Layer] = true
	}
	for _, layer := range []policy.Layer{policy.BuiltIn, policy.User, policy.Project} {
		if !layers[layer] {
			t.Errorf("no rule of layer %s", layer)
		}
	}
}

// A project's file that would let more happen is refused, whole: a human who trusted its digest trusted it to tighten.
func TestProjectMayNotLoosen(t *testing.T) {
	for _, project := range []string{"tools:\n  switch_mode: {tier: READ}\n", "domains:\n  allow: [docs.example]\n"} {
		sum := strings.TrimPrefix(sha(project), "sha256:")
		_, err := security.Open(security.Options{Dir: tree(t, map[string]string{
			"projects.yaml":             "projects: [{path: /p/durward.yaml, sha256: " + sum + "}]\n",
			"projects/" + sum + ".yaml": project,
		})})
		if err == nil || !strings.Contains(err.Error(), "projects/"+sum+".yaml:2") {
			t.Errorf("%s: %v", project, err)
		}
	}
}

// changes collects what a Live tells.
type changes struct {
	mu   sync.Mutex
	list []security.Change
}

func (c *changes) add(one security.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, one)
}

func (c *changes) take() []security.Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.list
	c.list = nil
	return out
}

// What is broken never loads: the last good stays, file by file, loudly, and is told once.
func TestLastGoodStays(t *testing.T) {
	first, good := "approvals: {wait_s: 300}\n", "tools:\n  switch_mode: {tier: DENIED}\n"
	dir := tree(t, map[string]string{"security.yaml": first, "tools.yaml": good, "policy/a.cedar": forbid})
	var told changes
	l, err := security.Open(security.Options{Dir: dir, OnChange: told.add})
	must(t, err)
	defer l.Close()
	if diff := cmp.Diff([]security.Change{
		{File: "policy/a.cedar", Layer: "system", After: sha(forbid)},
		{File: "security.yaml", Layer: "system", After: sha(first)},
		{File: "tools.yaml", Layer: "system", After: sha(good)},
	}, told.take()); diff != "" {
		t.Error(diff)
	}
	before := l.Current().Policies.Digest()

	broken := "tools:\n  switch_mode: {teir: DENIED}\n"
	write(t, dir, "tools.yaml", broken)
	write(t, dir, "security.yaml", "approvals: {wait_s: 120}\n")
	l.Reload()
	l.Reload()
	got := told.take()
	if len(got) != 2 || got[0].File != "security.yaml" || got[0].Problem != "" || got[0].Before != sha(first) ||
		got[1].File != "tools.yaml" || got[1].Before != sha(good) || got[1].After != sha(broken) || !strings.Contains(got[1].Problem, "teir") {
		t.Errorf("told %+v", got)
	}
	if v := l.Current().Values("", ""); v.WaitS != 120 {
		t.Errorf("the good file beside it is not in force: %+v", v)
	}
	if l.Current().Policies.Digest() != before || l.Err() == nil || !strings.Contains(l.Err().Error(), "tools.yaml:2") {
		t.Errorf("rules changed, or nothing is said: %v", l.Err())
	}
	for _, f := range l.Current().Files {
		if f.Name == "tools.yaml" && (f.Digest != sha(good) || f.Problem == "") {
			t.Errorf("%+v", f)
		}
	}

	// A new broken file beside it, a folder in a file's place, and a link.
	write(t, dir, "policy/b.cedar", "permit (")
	must(t, os.Remove(filepath.Join(dir, "policy/a.cedar")))
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "policy/a.cedar")))
	l.Reload()
	if l.Current().Policies.Digest() != before {
		t.Error("rules changed by a broken file and a link")
	}
	if err := l.Err(); err == nil || !strings.Contains(err.Error(), "policy/a.cedar: it is a symbolic link") || !strings.Contains(err.Error(), "policy/b.cedar") {
		t.Errorf("got %v", err)
	}

	// The whole folder goes: nothing is loosened.
	must(t, os.Rename(dir, dir+".away"))
	l.Reload()
	if l.Current().Policies.Digest() != before || l.Current().Values("", "").WaitS != 120 || l.Err() == nil {
		t.Errorf("the folder is gone, and so are its rules: %v", l.Err())
	}
	must(t, os.Rename(dir+".away", dir))

	// A human takes files away: that is a change.
	for _, name := range []string{"policy/a.cedar", "policy/b.cedar", "tools.yaml"} {
		must(t, os.Remove(filepath.Join(dir, name)))
	}
	told.take()
	l.Reload()
	if err := l.Err(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]security.Change{
		{File: "policy/a.cedar", Layer: "system", Before: sha(forbid)},
		{File: "tools.yaml", Layer: "system", Before: sha(good)},
	}, told.take()); diff != "" {
		t.Error(diff)
	}
}

// Files that are good one by one and not together leave everything as it was.
func TestRulesThatDoNotGoTogether(t *testing.T) {
	dir := tree(t, map[string]string{"policy/a.cedar": forbid})
	l, err := security.Open(security.Options{Dir: dir})
	must(t, err)
	defer l.Close()
	before := l.Current().Policies.Digest()
	huge := strings.Repeat("// a comment that takes room, line by line\n", 6000)
	for _, name := range []string{"b", "c", "d", "e", "f"} { // each within bounds, all together over them
		write(t, dir, "policy/"+name+".cedar", huge)
	}
	l.Reload()
	if l.Current().Policies.Digest() != before || l.Err() == nil {
		t.Errorf("got %v", l.Err())
	}
}

func TestWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := tree(t, map[string]string{"security.yaml": "approvals: {wait_s: 300}\n"})
		clients := filepath.Join(t.TempDir(), "clients.yaml")
		must(t, os.WriteFile(clients, []byte("clients: []\n"), 0o600))
		seen := make(chan security.Change, 16)
		l, err := security.Open(security.Options{Dir: dir, Also: map[string]string{"clients.yaml": clients}, OnChange: func(c security.Change) { seen <- c }})
		must(t, err)
		defer l.Close()
		<-seen
		<-seen
		for _, c := range []struct{ folder, name string }{{dir, "security.yaml"}, {dir, "users/alice/security.yaml"}, {filepath.Dir(clients), "clients.yaml"}} {
			begun := time.Now()
			write(t, c.folder, c.name, "approvals: {wait_s: 90}\n")
			select {
			case got := <-seen:
				if got.File != c.name || got.Problem != "" || time.Since(begun) > time.Second {
					t.Errorf("%s: %+v after %v", c.name, got, time.Since(begun))
				}
			case <-time.After(5 * time.Second):
				t.Fatalf("%s: nothing was seen", c.name)
			}
		}
	})
}

// TestAFileIsInForceOnceItsReaderHasIt: until its reader has read a file nobody hears of it, and what the reader finds wrong is refused:
// what was good before stays in force, and the file says why.
func TestAFileIsInForceOnceItsReaderHasIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the watch does not look meanwhile
		dir, clients := tree(t, nil), filepath.Join(t.TempDir(), "clients.yaml")
		must(t, os.WriteFile(clients, []byte("clients: []\n"), 0o600))
		var l *security.Live
		var read, told []security.Change
		l, err := security.Open(security.Options{
			Dir: dir, Also: map[string]string{"clients.yaml": clients},
			Adopt: func(c security.Change) security.Change {
				if l != nil && l.Current().Files[0].Digest != c.Before {
					t.Errorf("%+v is in force, and its reader is asked now: %+v", l.Current().Files, c)
				}
				read = append(read, c)
				if data, err := os.ReadFile(clients); err != nil || string(data) == "no good" {
					c.Problem = "no good"
				}
				return c
			},
			OnChange: func(c security.Change) {
				if l == nil {
					return
				}
				if in := l.Current().Files[0]; c.Problem == "" && in.Digest != c.After || c.Problem != "" && in.Digest != c.Before {
					t.Errorf("told of %+v, and in force is %+v", c, in)
				}
				told = append(told, c)
			},
		})
		must(t, err)
		defer l.Close()
		for _, change := range []struct{ text, inForce, problem string }{
			{"clients: []\n\n", "clients: []\n\n", ""},
			{"no good", "clients: []\n\n", "no good"},
			{"clients: [] # mended\n", "clients: [] # mended\n", ""},
		} {
			read, told = nil, nil
			write(t, filepath.Dir(clients), "clients.yaml", change.text)
			l.Reload()
			l.Reload() // what is refused is told once
			if len(told) != 1 || told[0].Problem != change.problem || told[0].After != sha(change.text) || len(read) == 0 || read[0].Problem != "" {
				t.Errorf("%q: read %+v, told %+v", change.text, read, told)
			}
			if in := l.Current().Files[0]; in.Digest != sha(change.inForce) || in.Problem != change.problem || (l.Err() != nil) != (change.problem != "") {
				t.Errorf("%q: in force is %+v, %v", change.text, in, l.Err())
			}
		}
	})
}

// A file that is being written is not read: it counts once it looked the same twice.
func TestHalfWrittenIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := tree(t, map[string]string{"policy/a.cedar": forbid + forbid[:0]})
		var told changes
		l, err := security.Open(security.Options{Dir: dir, OnChange: told.add})
		must(t, err)
		defer l.Close()
		told.take()
		path := filepath.Join(dir, "policy/a.cedar")
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
		must(t, err)
		defer f.Close()
		for range 30 {
			if _, err := f.WriteString("// a slow editor\n"); err != nil {
				t.Fatal(err)
			}
			if got := told.take(); len(got) > 0 {
				t.Fatalf("read while it was written: %+v", got)
			}
			time.Sleep(50 * time.Millisecond)
			synctest.Wait()
		}
		// And it counts once the writer is done.
		time.Sleep(time.Second)
		synctest.Wait()
		if got := told.take(); len(got) != 1 || got[0].File != "policy/a.cedar" {
			t.Errorf("after it was written: %+v", got)
		}
	})
}

func TestTry(t *testing.T) {
	dir := tree(t, map[string]string{"security.yaml": "approvals: {wait_s: 300}\n"})
	options := security.Options{Dir: dir}
	s, err := security.Try(options, map[string][]byte{"security.yaml": []byte("approvals: {wait_s: 60}\n"), "tools.yaml": []byte("tools: {}\n")})
	if err != nil || s.Values("", "").WaitS != 60 {
		t.Errorf("%v", err)
	}
	if s, err = security.Try(options, map[string][]byte{"security.yaml": nil}); err != nil || s.Values("", "").WaitS != 1800 {
		t.Errorf("without the file: %v", err)
	}
	if _, err = security.Try(options, map[string][]byte{"policy/x.cedar": []byte("permit")}); err == nil {
		t.Error("a broken file passes the trial")
	}
	if _, err := os.Stat(filepath.Join(dir, "tools.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a trial wrote")
	}
	write(t, dir, "tools.yaml", "tools: [")
	state, files := security.Look(options, nil)
	if state == nil || state.Values("", "").WaitS != 300 || len(files) != 2 || files[1].Problem == "" || files[1].Digest != "" {
		t.Errorf("%+v", files)
	}
}

func TestTighter(t *testing.T) {
	for _, c := range []struct {
		name, a, b string
		want       bool
	}{
		{"approvals.wait_s", "60", "1800", true}, {"approvals.wait_s", "1800", "60", false}, {"approvals.wait_s", "60", "60", false},
		{"approvals.four_eyes", "true", "false", true}, {"approvals.four_eyes", "false", "true", false},
		{"tier_ceiling", "READ", "WRITE", true}, {"tier_ceiling", "DESTRUCTIVE", "WRITE", false}, {"tier_ceiling", "READ", "none", false},
		{"desktop.allowed", "false", "true", true}, {"desktop.allowed", "true", "false", false}, {"dangerous.allowed", "false", "true", true},
	} {
		s, ok := security.Find(c.name)
		if !ok || s.Tighter(c.a, c.b) != c.want {
			t.Errorf("%+v", c)
		}
	}
	if got := security.Suggest("wait_s"); len(got) == 0 || got[0] != "approvals.wait_s" {
		t.Errorf("%v", got)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
