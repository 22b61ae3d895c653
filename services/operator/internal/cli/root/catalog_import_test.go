package root

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/catalog"
	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/platformtest/testfile"
)

// brought is the absolute path of one of package bring's fixtures.
func brought(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "importer", "testdata", name))
	must(t, err)
	return path
}

func TestCatalogImport(t *testing.T) {
	source := brought(t, "llama-swap/full.yaml")
	c := newCatalog(t)
	t.Chdir(t.TempDir())
	got := c.run("", "catalog", "import", "llama-swap", source)
	if got.code != cli.ExitOK || !strings.Contains(got.out, "durward-import-llama-swap.yaml: 6 services") || !strings.Contains(got.out, "left out: apiKeys") {
		t.Fatalf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
	// The id chat is the catalog's already, and its GPUs are simulated.
	if !strings.Contains(got.out, "service chat: the catalogue has a service with this id already") {
		t.Errorf("taken ids are not said\n%s", got.out)
	}
	if c.read() != testCatalog {
		t.Error("the catalogue was changed")
	}
	first, err := os.ReadFile("durward-import-llama-swap.yaml")
	if err != nil || strings.Contains(string(first), "not-a-real") {
		t.Fatalf("%v\n%s", err, first)
	}

	// What is there stays, unless somebody says otherwise.
	const mine = proposal.Heading + "that is mine now"
	testfile.Write(t, "durward-import-llama-swap.yaml", mine)
	if got := c.run("y\n", "catalog", "import", "llama-swap", source); got.code != cli.ExitDenied {
		t.Errorf("nobody was there to ask: exit code %d\n%s%s", got.code, got.out, got.err)
	}
	if now, _ := os.ReadFile("durward-import-llama-swap.yaml"); string(now) != mine {
		t.Errorf("it was overwritten: %.40s", now)
	}
	got = c.run("", "catalog", "import", "llama-swap", source, "--yes", "--json")
	var answer catalog.ProposalJSON
	if err := json.Unmarshal([]byte(got.out), &answer); err != nil || got.code != cli.ExitOK {
		t.Fatalf("exit code %d: %v\n%s%s", got.code, err, got.out, got.err)
	}
	if answer.File != "durward-import-llama-swap.yaml" || len(answer.Services) != 6 || len(answer.Models) != 4 || len(answer.LeftOut) == 0 || answer.LeftOut[0].Why == "" {
		t.Errorf("%+v", answer)
	}
	if now, _ := os.ReadFile(answer.File); string(now) != string(first) {
		t.Error("the same import makes something else")
	}

	// What is no proposal is never overwritten, whoever says yes.
	for _, own := range []string{"", "mine", testCatalog} {
		testfile.Write(t, "own.yaml", own)
		if got := c.run("", "catalog", "import", "llama-swap", source, "--out", "own.yaml", "--yes"); got.code != cli.ExitUsage || !strings.Contains(got.err, "no proposal") {
			t.Errorf("exit code %d\n%s%s", got.code, got.out, got.err)
		}
		if now, _ := os.ReadFile("own.yaml"); string(now) != own {
			t.Errorf("it was overwritten: %.40s", now)
		}
	}

	got = c.run("", "catalog", "import", "llama-swap", source, "--out", "-")
	if got.code != cli.ExitOK || got.out != string(first) {
		t.Errorf("--out -: exit code %d\n%s", got.code, got.err)
	}
}

func TestCatalogImportBesideAFolder(t *testing.T) {
	c := newCatalog(t)
	folder := filepath.Join(t.TempDir(), "catalogue")
	must(t, os.Mkdir(folder, 0o755))
	must(t, os.WriteFile(filepath.Join(folder, "a.yaml"), []byte(testCatalog), 0o644))
	source := brought(t, "compose/gpu.yaml")
	t.Chdir(folder)
	if got := c.run("", "catalog", "import", "compose", source, "--catalogue", folder); got.code != cli.ExitUsage || !strings.Contains(got.err, "the catalogue's folder") {
		t.Errorf("within the folder: exit code %d\n%s%s", got.code, got.out, got.err)
	}
	names, _ := filepath.Glob(filepath.Join(folder, "*"))
	if len(names) != 1 {
		t.Errorf("files %q", names)
	}
	for range 2 { // the second time the proposal itself is in the folder
		got := c.run("", "catalog", "import", "compose", source, "--catalogue", folder, "--out", filepath.Join(folder, "b.yaml"), "--yes")
		if got.code != cli.ExitOK || !strings.Contains(got.out, "10 services") {
			t.Fatalf("exit code %d\n%s%s", got.code, got.out, got.err)
		}
	}
	// Another file of the catalog is never the one to write, by whatever name and whoever says yes.
	for _, own := range []string{filepath.Join(folder, "a.yaml"), "./a.yaml"} {
		got := c.run("", "catalog", "import", "compose", source, "--catalogue", folder, "--out", own, "--yes")
		if got.code != cli.ExitUsage || !strings.Contains(got.err, "own files") {
			t.Errorf("%s: exit code %d\n%s%s", own, got.code, got.out, got.err)
		}
	}
	if got := c.run("", "catalog", "import", "compose", source, "--out", c.path, "--yes"); got.code != cli.ExitUsage || c.read() != testCatalog {
		t.Errorf("the catalogue's file: exit code %d\n%s%s", got.code, got.out, got.err)
	}
	if got := c.run("", "catalog", "check", folder); got.code != cli.ExitOK || !strings.Contains(got.out, "11 services") {
		t.Errorf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
}

// TestCatalogImportOffersWhatAShellTakes: what is offered to be typed means to a shell what it says.
func TestCatalogImportOffersWhatAShellTakes(t *testing.T) {
	c := newCatalog(t)
	folder := filepath.Join(t.TempDir(), "my catalogue")
	must(t, os.Mkdir(folder, 0o755))
	must(t, os.WriteFile(filepath.Join(folder, "a.yaml"), []byte(testCatalog), 0o644))
	source := brought(t, "compose/gpu.yaml")
	t.Chdir(t.TempDir())
	got := c.run("", "catalog", "import", "compose", source, "--catalogue", folder, "--out", "-a;b $c.yaml")
	if got.code != cli.ExitOK || !strings.Contains(got.out, "mv './-a;b $c.yaml' '"+folder+"/' && durward") {
		t.Errorf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
}

func TestCatalogImportRefuses(t *testing.T) {
	c := newCatalog(t)
	source, dir := brought(t, "gpumod"), t.TempDir()
	t.Chdir(dir)
	must(t, syscall.Mkfifo("pipe.yaml", 0o600))
	testfile.Write(t, "none.yaml", "services: {web: {image: x}}")
	must(t, os.Symlink("none.yaml", "link.yaml"))
	for _, r := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"a secret", []string{"gpumod", source, "--set", "HF_TOKEN=x"}, cli.ExitUsage, "secrets are not copied"},
		{"a secret by its shape", []string{"gpumod", source, "--set", "X=hf_abcdefghij"}, cli.ExitUsage, "secrets are not copied"},
		{"no pair", []string{"gpumod", source, "--set", "X"}, cli.ExitUsage, "NAME=VALUE"},
		{"two for standard output", []string{"gpumod", source, "--out", "-", "--json"}, cli.ExitUsage, "standard output"},
		{"a link to write to", []string{"gpumod", source, "--out", "link.yaml"}, cli.ExitUsage, "not a regular file"},
		{"no folder", []string{"gpumod", filepath.Join(dir, "nowhere")}, cli.ExitFailed, "no folder"},
		{"a pipe", []string{"llama-swap", "pipe.yaml"}, cli.ExitFailed, "not a regular file"},
		{"no file", []string{"compose", "nowhere.yaml"}, cli.ExitFailed, "nowhere.yaml cannot be opened: no such file or directory"},
		{"nothing in it", []string{"compose", "none.yaml"}, cli.ExitFailed, "nothing in it"},
		{"another catalogue that is not there", []string{"compose", "none.yaml", "--catalogue", "nowhere"}, cli.ExitFailed, "cannot be read"},
		{"no kind", []string{"kubernetes", "x"}, cli.ExitUsage, ""},
	} {
		got := c.run("", append([]string{"catalog", "import"}, r.args...)...)
		if got.code != r.code || !strings.Contains(got.err, r.want) {
			t.Errorf("%s: exit code %d, want %d\n%s%s", r.name, got.code, r.code, got.out, got.err)
		}
	}
	c.write("version: 7\n")
	if got := c.run("", "catalog", "import", "gpumod", source); got.code != cli.ExitFailed || !strings.Contains(got.err, "not good") {
		t.Errorf("a bad catalogue: exit code %d\n%s%s", got.code, got.out, got.err)
	}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.Contains(path, "durward-import") {
			t.Errorf("%s was written", path)
		}
		return err
	})
	must(t, err)
}

// TestCatalogImportForNobody: without an installation and without a user the proposal runs programs as nobody, and says so.
func TestCatalogImportForNobody(t *testing.T) {
	c := newCatalog(t)
	source := brought(t, "llama-swap/matrix.yaml")
	t.Chdir(t.TempDir())
	for _, run := range []struct {
		args  []string
		noted bool
	}{{nil, true}, {[]string{"--run-as", "nobody"}, false}, {[]string{"--development"}, false}} {
		got := c.run("", append([]string{"catalog", "import", "llama-swap", source, "--out", "-", "--home", t.TempDir()}, run.args...)...)
		if got.code != cli.ExitOK || strings.Contains(strings.ReplaceAll(got.out, "\n# ", " "), "--run-as USER") != run.noted {
			t.Errorf("%q: exit code %d\n%.900s%s", run.args, got.code, got.out, got.err)
		}
	}
}

// TestCatalogImportInProduction: programs get a user of their own there, which somebody must name.
func TestCatalogImportInProduction(t *testing.T) {
	c := newCatalog(t)
	c.write("version: 1\nmodels: [{id: a}]\n")
	source := brought(t, "llama-swap/matrix.yaml")
	t.Chdir(t.TempDir())
	got := c.run("", "catalog", "import", "llama-swap", source, "--development=false", "--out", "-")
	if got.code != cli.ExitOK || !strings.Contains(got.out, "run_as: nobody") {
		t.Errorf("nobody: exit code %d\n%s%s", got.code, got.out, got.err)
	}
	got = c.run("", "catalog", "import", "llama-swap", source, "--development=false", "--run-as", "nobody")
	if got.code != cli.ExitOK || !strings.Contains(got.out, "6 services") {
		t.Errorf("somebody: exit code %d\n%s%s", got.code, got.out, got.err)
	}
}

// TestProposalsPassTheCheck: what an import wrote passes durward catalog check FILE as it stands, with a catalogue and without one, for a
// host in development and for one that is installed; and every command that it names exists.
func TestProposalsPassTheCheck(t *testing.T) {
	c := newCatalog(t)
	fixtures := brought(t, "")
	t.Chdir(t.TempDir())
	commands := regexp.MustCompile(`durward ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)*)`)
	for kind, sources := range map[string][]string{
		"llama-swap": {"llama-swap/full.yaml", "llama-swap/containers.yaml", "llama-swap/matrix.yaml"},
		"compose":    {"compose/gpu.yaml", "compose/more.yaml"}, "gpumod": {"gpumod"},
	} {
		for _, source := range sources {
			for _, home := range [][]string{nil, {"--home", t.TempDir()}, {"--home", t.TempDir(), "--development=false"}} {
				got := c.run("", append([]string{"catalog", "import", kind, filepath.Join(fixtures, source), "--out", "p.yaml", "--yes"}, home...)...)
				check := c.run("", append([]string{"catalog", "check", "p.yaml"}, home...)...)
				if got.code != cli.ExitOK || check.code != cli.ExitOK {
					t.Errorf("%s %q: %d, %d\n%s%s%s", source, home, got.code, check.code, got.err, check.out, check.err)
				}
				text := testfile.Read(t, "p.yaml")
				if len(home) > 0 && home[0] == "--home" && strings.Contains(string(text), "gpus:") && !strings.Contains(string(text), "the GPUs are simulated") {
					t.Errorf("%s: nothing says that its GPUs are simulated", source)
				}
				said := strings.ReplaceAll(string(text), "\n#", "") + got.out
				for _, m := range commands.FindAllStringSubmatch(said, -1) {
					words := strings.Fields(m[1])
					if found, _, err := root(&cli.App{}).Find(words); err != nil || found == found.Root() {
						t.Errorf("%s names a command that there is not: %s: %v", source, m[0], err)
					}
				}
			}
		}
	}
}
