package servers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/platform/downstream"
)

// TestAboutSaysWhatIsGiven: before an entry that was changed by hand is signed, it is shown which credentials and variables the server gets
// and which program of a package it is, in a sandbox, without one, and elsewhere.
func TestAboutSaysWhatIsGiven(t *testing.T) {
	t.Parallel()
	env, credentials := map[string]string{"API_BASE": "https://x.example/\n\u202e.js"}, map[string]string{"TOKEN": "github"}
	script := filepath.Join(t.TempDir(), "server.js")
	if err := os.WriteFile(script, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pack := &downstream.Package{Name: "@x/y", Version: "1.0.0", Bin: "dist/other.js", Args: []string{"-v"}}
	for name, c := range map[string]struct {
		e    downstream.Entry
		want []string
	}{
		"in a sandbox": {downstream.Entry{ID: "a", NPM: pack, Env: env, Credentials: credentials}, []string{
			"npm:@x/y@1.0.0 (dist/other.js) -v", "gets the credential github as $TOKEN", "gets $API_BASE: https://x.example/\\u{A}\\u{202E}.js",
		}},
		"without one": {downstream.Entry{ID: "a", NPM: pack, Env: env, Credentials: credentials, Sandbox: downstream.Sandbox{None: true}}, []string{
			"NO SANDBOX", "gets the credential github as $TOKEN", "gets $API_BASE: https://x.example/\\u{A}\\u{202E}.js",
		}},
		"elsewhere": {downstream.Entry{ID: "a", URL: "https://x.example/mcp", Bearer: "other-token"}, []string{
			"https://x.example/mcp", "gets the credential other-token with each call",
		}},
		"a script": {downstream.Entry{ID: "a", Program: &downstream.Program{Path: "/usr/bin/node", Args: []string{script, "--config=" + script, "/usr", "server.js"}}}, []string{
			"\n  " + script + " is not pinned: whoever may write it may change what the server does\n  " + script + " is not pinned: whoever may write it may change what the server does\n",
		}},
		"one of each": {downstream.Entry{ID: "a", NPM: pack, Sandbox: downstream.Sandbox{MemoryMiB: 512, CPU: 1, Processes: 1}}, []string{
			"at most 512 MiB, 1 core, 1 process\n",
		}},
	} {
		core, out, _ := clitest.Printing(false)
		(&app{App: core}).about(c.e)
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: %q does not stand in\n%s", name, want, out)
			}
		}
	}
}

// TestNamesTheFlag: a server whose name or address makes no id is refused with the flag that gives it one.
func TestNamesTheFlag(t *testing.T) {
	t.Parallel()
	found, err := source([]string{"http://127.0.0.1:8080/mcp"}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = adding{}.entry(found.Entry)
	core, _, errs := clitest.Printing(false)
	if core.Explain(err); !strings.Contains(errs.String(), "--id ID") {
		t.Errorf("%q", errs)
	}
	if e, err := (adding{id: "notes"}).entry(found.Entry); err != nil || e.ID != "notes" {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestUpFor: as elsewhere, what runs is shown with how long it does, and what does not with nothing.
func TestUpFor(t *testing.T) {
	t.Parallel()
	core, _, _ := clitest.Printing(false)
	a := &app{App: core}
	up := running{ID: "notes", State: "running", StartedAt: clitest.Now.Add(-90 * time.Second), Sandbox: true}
	if diff := cmp.Diff([]string{"notes", "running", "all", "1:30", "0", ""}, a.row(up)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"idle", "idle", "all", "", "0", ""}, a.row(running{ID: "idle", State: "idle", Sandbox: true})); diff != "" {
		t.Error(diff)
	}
}

// TestWhatIsLeftOutIsNotGone: of a tool that is listed so that nobody can accept it, it is told what is wrong.
func TestWhatIsLeftOutIsNotGone(t *testing.T) {
	t.Parallel()
	was := downstream.Pinned{Entry: downstream.Entry{ID: "a"}, Tools: []downstream.Tool{{Name: "find"}, {Name: "read"}}}
	now, findings := downstream.Pin("a", "", []downstream.Listed{{Name: "find", Problem: "its title is of the wrong type"}, {Name: "other", Problem: "x"}})
	want := []difference{{"find", downstream.Changed, []string{"left out: its title is of the wrong type"}}, {"read", downstream.Gone, []string{"the server lists it no more"}}}
	if diff := cmp.Diff(want, differences(was, now, findings...)); diff != "" {
		t.Error(diff)
	}
}
