package root

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/platform/platformtest/testfile"
)

// TestEverythingCompletes walks every command: an argument and a flag's value are completed with what they name, or with
// nothing, but never by accident with the files of the current folder.
func TestEverythingCompletes(t *testing.T) {
	root := root(&cli.App{Now: time.Now})
	commands, flags := 0, 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Runnable() && !cmd.HasSubCommands() && cmd.Name() != "help" {
			commands++
			if cmd.ValidArgsFunction == nil && len(cmd.ValidArgs) == 0 {
				t.Errorf("%s: its arguments have no completion", cmd.UseLine())
			}
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "bool" {
				return
			}
			flags++
			if _, ok := cmd.GetFlagCompletionFunc(f.Name); !ok {
				t.Errorf("%s --%s: its value has no completion", cmd.CommandPath(), f.Name)
			}
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
	if commands < 40 || flags < 60 {
		t.Errorf("only %d commands and %d flags were looked at", commands, flags)
	}
}

// complete is what a shell is told for a line.
func complete(t *testing.T, line ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	Main(t.Context(), append([]string{cobra.ShellCompNoDescRequestCmd}, line...), cli.Streams{
		In: strings.NewReader(""), Out: &out, Err: &errs, Getenv: bare,
	})
	var words []string
	for word := range strings.Lines(out.String()) {
		if word = strings.TrimSpace(word); !strings.HasPrefix(word, ":") {
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}

// TestFlagsAreToldPlainly: the backquotes that name a flag's value in help are no part of what a shell shows of it.
func TestFlagsAreToldPlainly(t *testing.T) {
	told := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		var out, errs bytes.Buffer
		line := append([]string{cobra.ShellCompRequestCmd}, strings.Fields(cmd.CommandPath())[1:]...)
		Main(t.Context(), append(line, "--"), cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs, Getenv: bare})
		if strings.Contains(out.String(), "`") {
			t.Errorf("%s:\n%s", cmd.CommandPath(), out.String())
		}
		told += strings.Count(out.String(), "\t")
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root(&cli.App{Streams: cli.Streams{Getenv: bare}}))
	if told < 100 {
		t.Errorf("only %d flags were told", told)
	}
}

// TestCompletions: what names something is completed with it, whatever the processes do, which here do not run.
func TestCompletions(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "none")
	for _, c := range []struct {
		line []string
		want string
	}{
		{[]string{"client", "connect", "c"}, "claude-code claude-desktop cursor cline codex"},
		{[]string{"client", "add", ""}, ""},
		{[]string{"client", "add", "x", "--tier", ""}, "READ WRITE DESTRUCTIVE"},
		{[]string{"client", "add", "x", "--channel", ""}, "cli desktop_ui api messaging:"},
		{[]string{"audit", "search", "--status", ""}, "denied error ok pending timeout unknown"},
		{[]string{"audit", "search", "--writer", ""}, "audit egress executor gateway operator relay vault"},
		{[]string{"--home", empty, "client", "revoke", ""}, ""},
		{[]string{"--home", empty, "approve", ""}, ""},
		{[]string{"--home", empty, "start", ""}, ""},
	} {
		if got := complete(t, c.line...); got != c.want {
			t.Errorf("%q: %q, want %q", c.line, got, c.want)
		}
	}
}

// TestShellsTakeTheScripts: the scripts for bash, zsh and fish are made, and each shell that is here reads its own.
func TestShellsTakeTheScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		var out bytes.Buffer
		code := Main(t.Context(), []string{"completion", shell}, cli.Streams{Out: &out, Err: &out, In: strings.NewReader(""), Getenv: bare})
		if code != cli.ExitOK || !strings.Contains(out.String(), "durward") || out.Len() < 1000 {
			t.Errorf("%s: exit code %d, %d bytes", shell, code, out.Len())
			continue
		}
		program, err := exec.LookPath(shell)
		if err != nil {
			continue // that shell is not here; the script is cobra's
		}
		file := filepath.Join(t.TempDir(), "durward")
		testfile.Write(t, file, out.Bytes())
		if said, err := exec.CommandContext(t.Context(), program, "-n", file).CombinedOutput(); err != nil {
			t.Errorf("%s does not take its script: %v\n%s", shell, err, said)
		}
	}
}

// bare is the environment of a user who has a home folder, with nothing in it, and sets nothing else.
func bare(name string) string {
	if name == "HOME" {
		return "/nonexistent"
	}
	return ""
}

// at is bare, with the installation that commands mean.
func at(dir string) func(string) string {
	return func(name string) string {
		if name == "DURWARD_HOME" {
			return dir
		}
		return bare(name)
	}
}
