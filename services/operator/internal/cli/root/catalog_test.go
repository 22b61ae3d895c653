package root

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/platformtest/testfile"
)

const testCatalog = `# mine
version: 1

gpus:
  - {index: 0, name: Test GPU, memory_mib: 24576, simulated: true}   # the only one

models:
  - id: durward/demo-1b

services:
  # the first
  - id: chat
    driver: process
    argv: [/bin/true, -x]
    port: 7450
    model: durward/demo-1b
    gpus: [0]
    vram_mib: 6144
    network: none

# how it is used
modes:
  - {id: chatting, services: [chat]}
`

// catalogWorld runs durward in a home with a catalog, and nothing else running.
type catalogWorld struct {
	t    *testing.T
	home installdir.Home
	path string
}

func newCatalog(t *testing.T) catalogWorld {
	t.Helper()
	h, err := installdir.At(filepath.Join(t.TempDir(), "h"))
	must(t, err)
	if _, err := h.Init(installdir.Options{Development: true, Operator: "alice"}); err != nil {
		t.Fatal(err)
	}
	c := catalogWorld{t, h, h.Config("catalogue")}
	must(t, os.Chmod(c.path, 0o640))
	c.write(testCatalog)
	return c
}

func (c catalogWorld) write(text string) {
	c.t.Helper()
	must(c.t, os.WriteFile(c.path, []byte(text), 0o640))
}

func (c catalogWorld) read() string {
	c.t.Helper()
	return string(testfile.Read(c.t, c.path))
}

func (c catalogWorld) run(stdin string, args ...string) ran {
	c.t.Helper()
	var out, errs bytes.Buffer
	code := Main(context.Background(), args, cli.Streams{
		In: strings.NewReader(stdin), Out: &out, Err: &errs, Getenv: at(c.home.Dir), Version: "test",
	})
	return ran{code, out.String(), errs.String()}
}

func TestCatalogCheck(t *testing.T) {
	c := newCatalog(t)
	got := c.run("", "catalog", "check")
	if got.code != cli.ExitOK || !strings.Contains(got.out, "1 GPU, 1 model, 1 service, 1 mode") || !strings.Contains(got.out, `network "none"`) {
		t.Errorf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
	c.write(strings.ReplaceAll(testCatalog, "vram_mib: 6144", "vram_mib: 30000"))
	if got := c.run("", "catalog", "check"); got.code != cli.ExitOK || !strings.Contains(got.out, "mode chatting declares 30000 MiB on GPU 0, which has 24576") {
		t.Errorf("a mode that cannot fit: exit code %d\n%s%s", got.code, got.out, got.err)
	}
	c.write(strings.ReplaceAll(testCatalog, "network: none", "network: host"))
	if got := c.run("", "catalog", "check", "--json"); got.code != cli.ExitOK || !strings.Contains(got.out, `"remarks": []`) {
		t.Errorf("nothing to remark: exit code %d\n%s%s", got.code, got.out, got.err)
	}
	// Everything that is wrong is said, with its line.
	c.write(strings.NewReplacer("port: 7450", "port: 99999", "version: 1", "version: 7").Replace(testCatalog))
	got = c.run("", "catalogue", "check")
	if got.code != cli.ExitFailed || !strings.Contains(got.out, "catalogue.yaml:2:") ||
		!strings.Contains(got.out, "catalogue.yaml:15:") || !strings.Contains(got.err, "2 mistakes") {
		t.Errorf("two mistakes: exit code %d\n%s%s", got.code, got.out, got.err)
	}
	got = c.run("", "catalog", "check", "--json")
	var answer struct {
		Good     bool
		Problems []struct{ Line int }
	}
	if err := json.Unmarshal([]byte(got.out), &answer); err != nil || answer.Good || len(answer.Problems) != 2 || answer.Problems[0].Line != 2 {
		t.Errorf("--json: %v\n%s", err, got.out)
	}
	// Production has no services of the executor's own user.
	c.write(testCatalog)
	if got := c.run("", "catalog", "check", "--development=false"); got.code != cli.ExitFailed || !strings.Contains(got.out, "run_as") {
		t.Errorf("production: exit code %d\n%s%s", got.code, got.out, got.err)
	}
	if got := c.run("", "catalog", "check", filepath.Join(c.home.Dir, "none.yaml")); got.code != cli.ExitFailed || !strings.Contains(got.err, "none.yaml: there is no such catalogue\n  Name a file or a folder") {
		t.Errorf("no file: exit code %d\n%s%s", got.code, got.out, got.err)
	}
	if got := c.run("", "catalog", "check", "--home", t.TempDir()+"/none"); got.code != cli.ExitFailed || !strings.Contains(got.err, "there is no Durward installation in") {
		t.Errorf("no installation: exit code %d\n%s%s", got.code, got.out, got.err)
	}
}

// TestCatalogChangesAtOnce: what a command says that it wrote is in the catalogue, whichever others write at the same time.
func TestCatalogChangesAtOnce(t *testing.T) {
	c := newCatalog(t)
	c.write(testCatalog)
	for round := range 10 {
		codes := make([]int, 6)
		var all sync.WaitGroup
		for i := range codes {
			all.Go(func() {
				codes[i] = c.run("", "catalog", "add", "mode", fmt.Sprintf("m%d-%d", round, i), "chat", "--yes").code
			})
		}
		all.Wait()
		after := c.run("", "catalog", "show", "--json").out
		for i, code := range codes {
			if id := fmt.Sprintf(`"m%d-%d"`, round, i); (code == cli.ExitOK) != strings.Contains(after, id) {
				t.Errorf("%s: exit code %d, in the catalogue: %t", id, code, strings.Contains(after, id))
			}
		}
	}
}

func TestCatalogShow(t *testing.T) {
	c := newCatalog(t)
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"Test GPU", "durward/demo-1b", "chat ", "process", "7450", "chatting", "at boot: none"}},
		{[]string{"chat"}, []string{"service chat", `"/bin/true"`, `"start_timeout_s": 60`}},
		{[]string{"chatting"}, []string{"mode chatting"}},
		{[]string{"durward/demo-1b"}, []string{"model durward/demo-1b", `"served_name"`}},
	} {
		got := c.run("", append([]string{"catalog", "show"}, tc.args...)...)
		for _, want := range tc.want {
			if got.code != cli.ExitOK || !strings.Contains(got.out, want) {
				t.Errorf("%v: exit code %d, %q is not in\n%s%s", tc.args, got.code, want, got.out, got.err)
			}
		}
		got = c.run("", append([]string{"catalog", "show", "--json"}, tc.args...)...)
		if !json.Valid([]byte(got.out)) {
			t.Errorf("%v --json:\n%s", tc.args, got.out)
		}
	}
	if got := c.run("", "catalog", "show", "caht"); got.code != cli.ExitFailed || !strings.Contains(got.err, "Did you mean chat") {
		t.Errorf("exit code %d\n%s", got.code, got.err)
	}
	if got := c.run("", "__complete", "catalog", "show", ""); !strings.Contains(got.out, "chat\tservice: chat") || !strings.Contains(got.out, "chatting") {
		t.Errorf("completion:\n%s", got.out)
	}
}

// TestCatalogAddRefuses: nothing is written, and the exit code and the sentence say why.
func TestCatalogAddRefuses(t *testing.T) {
	c := newCatalog(t)
	entry := filepath.Join(c.home.Dir, "entry.yaml")
	for _, tc := range []struct {
		name, stdin string
		args        []string
		code        int
		want        string
	}{
		{"nobody to ask", "", []string{"service", "b", "--port", "7451", "--", "/bin/true"}, cli.ExitDenied, "no terminal"},
		{"no program", "", []string{"service", "b", "--port", "7451", "--yes"}, cli.ExitUsage, "say what it runs"},
		{"two programs", "", []string{"service", "b", "--unit", "b.service", "--yes", "--", "/bin/true"}, cli.ExitUsage, "say what it runs"},
		{"no id", "", []string{"service", "--yes", "--", "/bin/true"}, cli.ExitUsage, "name one service id"},
		{"defined twice", "", []string{"service", "chat", "--port", "7451", "--yes", "--", "/bin/true"}, cli.ExitUsage,
			`line 1 of the entry: service "chat" is defined twice`},
		{"a shell", "", []string{"service", "b", "--port", "7451", "--yes", "--", "/bin/sh", "-c", "true"}, cli.ExitUsage, "line 3 of the entry"},
		{"an unknown service in a mode", "", []string{"mode", "m", "caht", "--yes"}, cli.ExitUsage, "caht"},
		{"a mode of nothing", "", []string{"mode", "m", "--yes"}, cli.ExitUsage, "name the mode and its services"},
		{"an index that is none", "", []string{"gpu", "x", "--yes"}, cli.ExitUsage, "not an index"},
		{"no entry", "- a", []string{"service", "--from", "-", "--yes"}, cli.ExitUsage, "one mapping"},
		{"an unknown key", "id: b\ndriver: process\nprot: 1\n", []string{"service", "--from", "-", "--yes"}, cli.ExitUsage, "prot"},
		{"--from and arguments", "", []string{"service", "b", "--from", "-", "--yes"}, cli.ExitUsage, "leave the arguments out"},
		{"--from a file that is not there", "", []string{"service", "--from", entry, "--yes"}, cli.ExitUsage, "no such file or directory\n  Name a file that holds the entry"},
		{"--to without a folder", "", []string{"model", "m", "--to", "x.yaml", "--yes"}, cli.ExitUsage, "--to is for"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := c.run(tc.stdin, append([]string{"catalog", "add"}, tc.args...)...)
			if got.code != tc.code || !strings.Contains(got.err, tc.want) {
				t.Errorf("exit code %d, want %d, and %q in\n%s%s", got.code, tc.code, tc.want, got.out, got.err)
			}
			if c.read() != testCatalog {
				t.Errorf("the catalogue became\n%s", c.read())
			}
		})
	}
	c.write("version: 3\n")
	if got := c.run("", "catalog", "add", "model", "m", "--yes"); got.code != cli.ExitFailed || !strings.Contains(got.out, "version") {
		t.Errorf("a catalogue that is not good: exit code %d\n%s%s", got.code, got.out, got.err)
	}
}

// TestCatalogAdd: each kind, by flags and by a file; every other byte stays.
func TestCatalogAdd(t *testing.T) {
	c := newCatalog(t)
	for _, tc := range []struct {
		stdin string
		args  []string
		shown string
	}{
		{"", []string{"gpu", "1", "--simulated", "--name", "Second GPU", "--memory", "81920"}, `name: "Second GPU"`},
		{"", []string{"model", "Qwen/Qwen3-32B", "--served-name", "qwen3", "--source", "hf:Qwen/Qwen3-32B"}, "served_name: qwen3"},
		{"", []string{"service", "coder", "--port", "8001", "--gpus", "0,1", "--vram", "40000", "--model", "Qwen/Qwen3-32B", "--sleep", "vllm-l1",
			"--depends-on", "chat", "--start-timeout", "900", "--", "/bin/true", "serve", "Qwen/Qwen3-32B", "--port", "8001", "a b", "$HOME"},
			`argv: [/bin/true, serve, Qwen/Qwen3-32B, --port, "8001", "a b", "$HOME"]`},
		{"id: embed   # small\ndriver: process\nargv: [/bin/true]\nport: 8002\n", []string{"service", "--from", "-"}, "- id: embed   # small"},
		{`{"id": "null-one", "driver": "null"}`, []string{"service", "--from", "-"}, `driver: "null"`},
		{"", []string{"mode", "coding", "chat", "coder", "--description", "Both: chat and code"}, "services: [chat, coder]"},
	} {
		got := c.run(tc.stdin, append(append([]string{"catalog", "add"}, tc.args[0]), append([]string{"--yes"}, tc.args[1:]...)...)...)
		if got.code != cli.ExitOK || !strings.Contains(got.out, tc.shown) {
			t.Fatalf("%v: exit code %d, %q in\n%s%s", tc.args, got.code, tc.shown, got.out, got.err)
		}
	}
	text := c.read()
	rest := text
	for line := range strings.Lines(testCatalog) {
		_, after, found := strings.Cut(rest, line)
		if !found {
			t.Fatalf("%q is gone from\n%s", line, text)
		}
		rest = after
	}
	if got := c.run("", "catalog", "check"); got.code != cli.ExitOK || !strings.Contains(got.out, "2 GPUs, 2 models, 4 services, 2 modes") {
		t.Errorf("exit code %d\n%s%s\n%s", got.code, got.out, got.err, text)
	}
	info, err := os.Stat(c.path)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("its mode is %v now, %v", info.Mode(), err)
	}
}

// TestCatalogAddToAFolder: the file that has such entries, or the one that is named.
func TestCatalogAddToAFolder(t *testing.T) {
	c := newCatalog(t)
	folder := filepath.Join(c.home.Dir, "catalogue")
	must(t, os.Mkdir(folder, 0o700))
	before, modes, _ := strings.Cut(testCatalog, "# how it is used\n")
	for name, text := range map[string]string{"a.yaml": before, "b.yaml": "version: 1\n" + modes, ".c.yaml": "nonsense", "d.txt": "nonsense"} {
		testfile.Write(t, filepath.Join(folder, name), text)
	}
	add := func(args ...string) ran {
		return c.run("", append([]string{"catalog", "--catalogue", folder, "add"}, args...)...)
	}
	for _, args := range [][]string{
		{"service", "b", "--port", "7451", "--yes", "--", "/bin/true"}, {"mode", "both", "chat", "b", "--yes"},
		{"model", "new", "--to", "new.yaml", "--yes"},
	} {
		if got := add(args...); got.code != cli.ExitOK {
			t.Fatalf("%v: exit code %d\n%s%s", args, got.code, got.out, got.err)
		}
	}
	for name, want := range map[string]string{"a.yaml": "- id: b", "b.yaml": "- id: both", "new.yaml": "version: 1\n\nmodels:\n  - id: new\n"} {
		b, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %v\n%s", name, err, b)
		}
	}
	for _, to := range []string{"../x.yaml", "x.txt", ".x.yaml", "/tmp/x.yaml"} {
		if got := add("model", "m", "--to", to, "--yes"); got.code != cli.ExitUsage {
			t.Errorf("--to %s: exit code %d\n%s", to, got.code, got.err)
		}
	}
	if got := c.run("", "catalog", "--catalogue", folder, "check"); got.code != cli.ExitOK {
		t.Errorf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
}

// TestAFileThatIsNoCatalogHasItsPlace: a program that reads --json finds file and line in their members, whatever is wrong.
func TestAFileThatIsNoCatalogHasItsPlace(t *testing.T) {
	for text, want := range map[string]string{
		"version: 1\nservces: []\n":              `"line":2,"column":1,"what":"unknown key`,
		"version: 1\nservices:\n  - {id: chat\n": `"line":3,"column":5,"what":"could not find`,
		"version: 1\nservices: [{id: -}]\n":      `"line":2,`,
	} {
		c := newCatalog(t)
		c.write(text)
		got := c.run("", "catalog", "check", "--json")
		flat := strings.Join(strings.Fields(strings.ReplaceAll(got.out, `": `, `":`)), "")
		if got.code != 1 || !strings.Contains(flat, strings.ReplaceAll(want, " ", "")) || !strings.Contains(flat, `"file":"`+c.path+`"`) {
			t.Errorf("%q: %d, %s", text, got.code, got.out)
		}
	}
}

// TestCheckTellsWhatTheExecutorHasDisabled: what this program finds good, the executor may have found wrong before a user or a program was
// there.
func TestCheckTellsWhatTheExecutorHasDisabled(t *testing.T) {
	w := newWorld(t)
	testfile.Write(t, w.home.Config("catalogue"), testCatalog)
	w.catalogue = canonical.DigestText([]byte(testCatalog))
	w.disabled = []*executorv1.DisabledEntry{{Kind: "service", Id: "chat", Problem: "user \"llm\" does not exist on this host"}}
	const said = "the executor has service chat disabled, which was wrong when it looked; it looks again each minute"
	for _, format := range []string{"text", "json"} {
		if r := w.run("catalog", "check", "-o", format); r.code != 0 || !strings.Contains(r.out, said) {
			t.Errorf("%s: %d, %s%s", format, r.code, r.out, r.err)
		}
	}
}
