package root

import (
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/platform/platformtest/testfile"
)

// TestRulesAtATerminal: at a real terminal, with a protected key: no is no, a wrong passphrase is none, and then it is changed.
func TestRulesAtATerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := w.withClients(t)
	path := filepath.Join(folder, "security/security.yaml")
	before := read(t, path)
	x := openTerminal(t, 120, 60)
	code := w.runAt(t.Context(), x, "config", "set", "tier_ceiling", "WRITE")
	x.waitFor("Sign and change it? [y/N]")
	x.types("n\n")
	x.ends(code, cli.ExitDenied)
	if read(t, path) != before || len(w.signed) > 0 {
		t.Fatal("a no was a yes")
	}
	x = openTerminal(t, 120, 60)
	code = w.runAt(t.Context(), x, "config", "set", "tier_ceiling", "WRITE")
	x.waitFor("Sign and change it? [y/N]")
	x.types("y\n")
	x.ends(code, cli.ExitOK)
	if !strings.HasSuffix(read(t, path), "tier_ceiling: WRITE\n") || len(w.signed) != 1 {
		t.Errorf("%q", read(t, path))
	}
}

// TestImportAsksForVariables: at a terminal a person is asked once for each variable for lack of which something is left out; what looks
// like a secret is not taken, and no answer leaves it out as before.
func TestImportAsksForVariables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	file, out := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "p.yaml")
	const text = "models:\n  a: {cmd: \"/opt/llama-server -m ${folder}/x.gguf --port 81\"}\n  b: {cmd: \"docker run -p 82:80 ${image}\"}\n" +
		"  c: {cmd: \"/bin/true ${extra} --port 83\"}\n  d: {cmd: \"/bin/true ${HF_TOKEN} --port 84\"}\n"
	testfile.Write(t, file, text)
	x := openTerminal(t, 120, 60)
	code := w.runAt(t.Context(), x, "catalog", "import", "llama-swap", file, "--out", out, "--home", filepath.Join(dir, "none"))
	for _, answer := range []struct{ name, value string }{{"folder", "/srv/models"}, {"image", "hf_abcdefghijklmnop"}, {"extra", ""}} {
		x.waitFor("The value of " + answer.name)
		x.types(answer.value + "\n")
	}
	x.ends(code, cli.ExitOK)
	said, got := x.drawn.String(), read(t, out)
	if !strings.Contains(said, "looks like a secret") || strings.Contains(said, "The value of HF_TOKEN") || strings.Count(said, "The value of folder") != 1 {
		t.Errorf("said %q", said)
	}
	if !strings.Contains(got, "/srv/models/x.gguf") || strings.Contains(got, "hf_abcdefghijklmnop") || !strings.Contains(got, "model b: its image") || !strings.Contains(got, "model c: its command names extra") {
		t.Errorf("%s", got)
	}
	x = openTerminal(t, 120, 60)
	x.ends(w.runAt(t.Context(), x, "catalog", "import", "llama-swap", file, "--out", filepath.Join(dir, "q.yaml"), "--yes", "--home", filepath.Join(dir, "none")), cli.ExitFailed)
	if strings.Contains(x.drawn.String(), "The value of") {
		t.Error("--yes asks all the same")
	}
}
