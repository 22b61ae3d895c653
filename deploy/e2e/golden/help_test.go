package golden

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// listed finds the commands that a help lists, and groups is what only the help of a command with others below it says.
var listed = regexp.MustCompile(`(?m)^  ([a-z][a-z-]*) +[A-Z]`)

const groups = `[command] --help" for more`

// command is a command of durward, and what its help says.
type command struct {
	path []string
	help string
	leaf bool
}

// commands walks durward's commands as its help lists them, each before those below it.
func commands(t *testing.T) []command {
	t.Helper()
	program := filepath.Join(harness.Binaries(t, harness.Build{}), "durward")
	var all []command
	var walk func(path []string)
	walk = func(path []string) {
		help, stderr, code := execute(t, program, append(slices.Clone(path), "-h")...)
		if code != 0 || stderr != "" {
			t.Fatalf("durward %v -h: exit %d %s", path, code, stderr)
		}
		at := len(all)
		all = append(all, command{path: path, help: help, leaf: true})
		usage, flags := strings.Index(help, "\nUsage:"), strings.LastIndex(help, "\nFlags:")
		if usage < 0 || !strings.Contains(help, groups) {
			return
		}
		for _, m := range listed.FindAllStringSubmatch(help[usage:max(flags, usage)], -1) {
			all[at].leaf = false
			walk(append(slices.Clone(path), m[1]))
		}
	}
	walk(nil)
	if len(all) < 80 {
		t.Fatalf("only %d commands were found", len(all))
	}
	return all
}

// tellHelp writes the help of each command of durward, in one file for each of its first words, and of each other program.
func tellHelp(t *testing.T, s *set) {
	files := map[string]string{}
	all := commands(t)
	for _, c := range all {
		name := "help/durward.txt"
		if len(c.path) > 0 {
			name = "help/" + c.path[0] + ".txt"
		}
		files[name] += "$ durward " + strings.TrimSpace(strings.Join(c.path, " ")+" -h") + "\n" + c.help + "exit 0\n\n"
	}
	w := &world{t: t, set: s, Host: &harness.Host{Bin: harness.Binaries(t, harness.Build{})}}
	for _, program := range harness.Programs() {
		if program == "durward" {
			continue
		}
		f := w.file("help/program-" + program + ".txt")
		f.execute(program, "-h")
		if program != "durward-demo" && program != "durward-inspect" && program != "durward-list" {
			f.execute(program, "-version")
		}
		f.execute(program, "-no-such-flag")
	}
	topic, _, _ := execute(t, filepath.Join(w.Bin, "durward"), "help", "exit-codes")
	files["help/exit-codes.txt"] = "$ durward help exit-codes\n" + topic + "exit 0\n"
	w.done()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commands = all
	maps.Copy(s.got, files)
}

// withoutRun are the commands of which the goldens hold the help alone, and why.
var withoutRun = map[string]string{
	"join":                   "needs a production layout",
	"renew":                  "needs a production layout",
	"tui":                    "draws the whole screen; the golden of the screen is in operator/internal/tui",
	"help":                   "is the help, which the goldens hold of every command",
	"mcp":                    "speaks MCP, which the goldens of the gateway hold",
	"completion bash":        "is made by the library for command lines",
	"completion fish":        "is made by the library for command lines",
	"completion powershell":  "is made by the library for command lines",
	"completion zsh":         "is made by the library for command lines",
	"catalog import docker":  "looks at the machine's containers",
	"catalog import systemd": "looks at the machine's units",
}

// everyCommandRan looks for each command of durward that does something among those that the worlds ran.
func everyCommandRan(t *testing.T, s *set) {
	t.Helper()
	known := map[string]bool{}
	for _, c := range s.commands {
		if !c.leaf {
			continue
		}
		name := strings.Join(c.path, " ")
		known[name] = true
		ran := slices.ContainsFunc(s.runs, func(run string) bool { return run == name || strings.HasPrefix(run, name+" ") })
		if why, excepted := withoutRun[name]; excepted == ran {
			t.Errorf("durward %s: in a transcript: %t; excepted: %t (%s)", name, ran, excepted, why)
		}
	}
	for name := range withoutRun {
		if !known[name] {
			t.Errorf("durward %s is excepted, and there is no such command", name)
		}
	}
}
