package e2e

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"durward.internal/deploy/e2e/golden"
	"durward.internal/deploy/e2e/harness"
	"durward.internal/services/platform/platformtest/input"
)

//go:embed testdata/script
var scripts embed.FS

// TestTranscripts runs the transcripts of commands over running processes, each over an installation of its own.
func TestTranscripts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.CopyFS(dir, scripts))
	files, err := filepath.Glob(filepath.Join(dir, "testdata/script/*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			if raw, err := os.ReadFile(file); err != nil || strings.Contains(string(raw), "\nstop") {
				t.Fatalf("it stops before its end, or cannot be read: %v", err)
			}
			h := harness.Start(t, harness.Options{Catalog: harness.ModesCatalog, Egress: filepath.Base(file) == "server.txtar"})
			testscript.Run(t, testscript.Params{
				Files: []string{file}, ContinueOnError: true,
				Setup: func(env *testscript.Env) error {
					env.Vars = append(env.Vars, h.Environment()...)
					env.Setenv("HOME", env.WorkDir)
					env.Setenv("H", h.Dir)
					return nil
				},
				Cmds: (&transcript{t, h, map[string]*harness.Client{}}).commands(),
			})
		})
	}
}

// transcript is what a script can do beside what scripts can.
type transcript struct {
	t      *testing.T
	h      *harness.Host
	agents map[string]*harness.Client
}

func (x *transcript) commands() map[string]func(*testscript.TestScript, bool, []string) {
	return map[string]func(*testscript.TestScript, bool, []string){
		// durward ARGS runs durward on the installation, without a terminal.
		"durward": func(ts *testscript.TestScript, neg bool, args []string) {
			run := func() error {
				return ts.Exec(filepath.Join(x.h.Bin, "durward"), append([]string{"--home", x.h.Dir}, args...)...)
			}
			err := run()
			var exit *exec.ExitError
			if !neg && errors.As(err, &exit) && (harness.Output{Code: exit.ExitCode()}).NotNow() {
				err = harness.Poll(run) // a busy machine puts it off
			}
			if neg == (err == nil) {
				ts.Fatalf("durward %s: %v", strings.Join(args, " "), err)
			}
		},
		// person FILE durward ARGS runs it at a terminal. FILE is the dialogue, line by line: "waits TEXT", "types TEXT" (and
		// enter), "key TEXT" (without), and last "ends CODE".
		"person": func(ts *testscript.TestScript, _ bool, args []string) {
			x := x.h.AtTerminal(ts, 120, args[2:]...)
			defer x.Close()
			for line := range strings.Lines(ts.ReadFile(args[0])) {
				x.Says(strings.TrimSpace(line))
			}
		},
		// client NAME lets a key-bound client in and connects it.
		"agent": func(ts *testscript.TestScript, _ bool, args []string) {
			x.agents[args[0]] = bound(x.h, args[0])
			ts.Setenv("SESSION", sessionOf(x.t, x.h, args[0]))
		},
		// asks NAME TOOL SERVICE STATUS has a client call a tool about a service; what is to wait sets NUMBER to its number.
		"asks": func(ts *testscript.TestScript, _ bool, args []string) {
			e := x.agents[args[0]].Ask(args[1], map[string]any{"service_id": args[2], "reason": "because \x1b[31mI\u202e say so"})
			if e.Status != args[3] {
				ts.Fatalf("status %s, want %s: %s", e.Status, args[3], e.Raw)
			}
			ts.Setenv("REQUEST", e.RequestID)
			for _, a := range x.h.Approvals() {
				if a.OperationID == e.OperationID {
					ts.Setenv("NUMBER", a.Number)
				}
			}
		},
		// halt PROCESS and begin PROCESS end a process and start it again; stop is testscript's own, and ends the script.
		"halt": func(_ *testscript.TestScript, _ bool, args []string) { x.h.Process(args[0]).Stop() },
		// eventually TEXT ARGS runs durward until its standard output holds TEXT, for what takes the executor a moment.
		"eventually": func(ts *testscript.TestScript, _ bool, args []string) {
			err := harness.Poll(func() error {
				// A failure shows in what it says.
				out, _ := x.h.Command(append([]string{filepath.Join(x.h.Bin, "durward"), "--home", x.h.Dir}, args[1:]...)...).Output()
				if !strings.Contains(string(out), args[0]) {
					return fmt.Errorf("%q is not in what durward %s says:\n%s", args[0], strings.Join(args[1:], " "), out)
				}
				return nil
			})
			if err != nil {
				ts.Fatalf("%v", err)
			}
		},
		"begin": func(_ *testscript.TestScript, _ bool, args []string) { x.h.StartProcess(args[0]) },
	}
}

// withoutTranscript are the commands that no transcript runs, and why.
var withoutTranscript = map[string]string{
	"durward join":  "needs a production layout and two Unix users: scripts/real-layout.sh",
	"durward renew": "needs a production layout: scripts/real-layout.sh",
}

// TestEveryCommandHasATranscript takes durward's commands from the goldens of their help, which list each, and looks for each in a
// transcript: here, or in the operator's own module, where those are that need no process.
func TestEveryCommandHasATranscript(t *testing.T) {
	t.Parallel()
	input.Transcripts(t)
	accepted, err := golden.Accepted()
	must(t, err)
	var said []string
	for i, module := range []fs.FS{scripts, os.DirFS("../../services/operator/cmd/durward")} {
		files, err := fs.Glob(module, "testdata/script/*.txtar")
		if err != nil || len(files) == 0 {
			t.Fatalf("module %d: no transcripts: %v", i, err)
		}
		for _, file := range files {
			raw, err := fs.ReadFile(module, file)
			must(t, err)
			for line := range strings.Lines(string(raw)) {
				if !strings.HasPrefix(line, "#") {
					said = append(said, line)
				}
			}
		}
	}
	leaves := 0
	begins := regexp.MustCompile(`(?m)^\$ (durward .+) -h$`)
	for file, text := range accepted {
		at := begins.FindAllStringSubmatchIndex(text, -1)
		if !strings.HasPrefix(file, "help/") {
			continue
		}
		for i, m := range at {
			name, help := text[m[2]:m[3]], text[m[1]:]
			if i+1 < len(at) {
				help = text[m[1]:at[i+1][0]]
			}
			if strings.Contains(help, `[command] --help" for more`) {
				continue // others are below it
			}
			leaves++
			ran := regexp.MustCompile(`\bdurward (--home \S+ )?` + regexp.QuoteMeta(strings.TrimPrefix(name, "durward ")) + `(\s|$|')`)
			has := slices.ContainsFunc(said, ran.MatchString)
			if why, excepted := withoutTranscript[name]; excepted == has {
				t.Errorf("%s: in a transcript: %t; excepted: %t (%s)", name, has, excepted, why)
			}
		}
	}
	if leaves < 60 {
		t.Errorf("only %d commands were found", leaves)
	}
}
