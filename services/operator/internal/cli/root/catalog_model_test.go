package root

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/catalog"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/sizing"
	platform "durward.internal/services/platform/catalog"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/model"
	"durward.internal/services/platform/platformtest/testfile"
)

const twoGPUs = `# mine
version: 1

gpus:
  - {index: 0, name: Test GPU, memory_mib: 24576, simulated: true}   # small
  - {index: 1, name: Test GPU, memory_mib: 24576, simulated: true}

services:
  - id: chat
    driver: process
    argv: [/bin/true, -x]
    port: 8001
`

// modelHost is a catalog, a folder with programs that stand for engines and the inspector, and a model's file.
type modelHost struct {
	catalogWorld
	programs, file string
}

func newModelHost(t *testing.T, text, inspectorSays string) modelHost {
	t.Helper()
	h := modelHost{catalogWorld: newCatalog(t), programs: t.TempDir()}
	h.write(text)
	for name, script := range map[string]string{
		"durward-inspect": inspectorSays, "llama-server": "exit 0", "vllm": "exit 0",
		"llama-fit-params": "echo 'CUDA0 4456 4608 300'; echo 'Host 333 0 20'",
	} {
		if script == "" {
			continue
		}
		must(t, os.WriteFile(filepath.Join(h.programs, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	config := h.home.Config("executor")
	raw := testfile.Read(t, config)
	lines := strings.Split(string(raw), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "programs_dir:") {
			lines[i] = ""
		}
	}
	testfile.Write(t, config, strings.Join(lines, "\n")+"\nprograms_dir: "+h.programs+"\n")
	h.file = filepath.Join(t.TempDir(), "Tiny-8B-Q4_K_M-00001-of-00002.gguf")
	must(t, os.WriteFile(h.file, []byte("GGUF"), 0o644))
	return h
}

func says(card string) string { return "echo '" + card + "'" }

func TestCatalogAddFromModel(t *testing.T) {
	t.Parallel()
	h := newModelHost(t, twoGPUs, says(clitest.SmallCard))
	got := h.run("", "catalog", "add", h.file, "--yes")
	if got.code != cli.ExitOK {
		t.Fatalf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
	for _, want := range []string{"KV cache", "4608 MiB", "room for 32768 tokens", "GPU 0: ", "of 24576 MiB", "written"} {
		if !strings.Contains(got.out, want) {
			t.Errorf("%q is not in\n%s", want, got.out)
		}
	}
	text := h.read()
	if !strings.HasPrefix(text, twoGPUs) {
		t.Errorf("what was there changed:\n%s", text)
	}
	c, err := platform.Load(h.path, platform.Options{ProgramsDir: h.programs, Development: true})
	must(t, err)
	s, ok := c.Lookup("tiny-8b-q4_k_m")
	if !ok || s.Model == nil || s.Model.ID != "Tiny-8B-Q4_K_M" || s.Model.File != h.file || s.Model.Card == nil {
		t.Fatalf("%+v\n%s", s, text)
	}
	var card model.Card
	must(t, json.Unmarshal([]byte(clitest.SmallCard), &card))
	if a, b := encode(t, card), encode(t, *s.Model.Card); a != b {
		t.Errorf("the card became %s, not %s", b, a)
	}
	if s.Port == 8001 || s.Port < sizing.FirstPort || len(s.GPUs) != 1 || s.GPUs[0] != 0 || !s.OpenAI || s.ExtraConfig["context_size"] != "32768" {
		t.Errorf("%+v", s)
	}
	// Once more: its id is taken.
	if got := h.run("", "catalog", "add", h.file, "--yes"); got.code != cli.ExitUsage || !strings.Contains(got.err, "has a model Tiny-8B-Q4_K_M already") {
		t.Errorf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
	// By another name, on both GPUs, with a context of one's own, as JSON.
	got = h.run("", "catalog", "add", h.file, "--yes", "--json", "--id", "other", "--service", "both", "--gpus", "0,1", "--context", "4096", "--exact",
		"--llama-fit-params", filepath.Join(h.programs, "llama-fit-params"))
	var answer struct {
		Files    []string
		Added    map[string]string
		Estimate struct {
			Source  string
			Context uint32
			PerGPU  map[string]uint32 `json:"per_gpu_mib"`
			Fits    *bool
			Exact   []catalog.ExactJSON `json:"llama_fit_params"`
		}
	}
	if err := json.Unmarshal([]byte(got.out), &answer); err != nil || got.code != cli.ExitOK {
		t.Fatalf("exit code %d, %v\n%s%s", got.code, err, got.out, got.err)
	}
	if e := answer.Estimate; e.Source != "estimated" || e.Context != 4096 || len(e.PerGPU) != 2 || e.Fits == nil || !*e.Fits || len(e.Exact) != 2 || e.Exact[0].Context != 4608 {
		t.Errorf("%+v", answer)
	}
	if answer.Added["service"] != "both" || answer.Added["model"] != "other" || len(answer.Files) != 1 {
		t.Errorf("%+v", answer)
	}
	// The model alone, in either way of saying it.
	for _, args := range [][]string{{h.file, "--no-service", "--id", "alone"}, {"model", "--file", h.file}} {
		before := strings.Count(h.read(), "driver:")
		args = append([]string{"catalog", "add", "--yes"}, args...)
		if args[3] == "model" {
			args = append(args, "again")
		}
		if got := h.run("", args...); got.code != cli.ExitOK || strings.Count(h.read(), "driver:") != before {
			t.Errorf("%q: exit code %d\n%s%s", args, got.code, got.out, got.err)
		}
	}
	if n := strings.Count(h.read(), "architecture: qwen3"); n != 4 {
		t.Errorf("%d cards in\n%s", n, h.read())
	}
}

func encode(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	must(t, err)
	return string(raw)
}

// A folder of Hugging Face's is vLLM's, with a share of the GPU that it starts with; in the hub's cache it has its name from there.
func TestCatalogAddFromFolder(t *testing.T) {
	t.Parallel()
	h := newModelHost(t, twoGPUs, says(clitest.SmallCard))
	folder := filepath.Join(t.TempDir(), "models--Qwen--Qwen3-8B", "snapshots", strings.Repeat("0123456789", 4))
	must(t, os.MkdirAll(folder, 0o755))
	must(t, os.WriteFile(filepath.Join(folder, "config.json"), []byte("{}"), 0o644))
	if got := h.run("", "catalog", "add", folder, "--yes"); got.code != cli.ExitOK || strings.Contains(got.out, "does not fit") {
		t.Fatalf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
	c, err := platform.Load(h.path, platform.Options{ProgramsDir: h.programs, Development: true})
	must(t, err)
	s, ok := c.Lookup("qwen3-8b")
	if !ok || s.Model.ID != "Qwen/Qwen3-8B" || s.Model.Source != "hf:Qwen/Qwen3-8B" || s.ExtraConfig["engine"] != enginecmd.VLLM {
		t.Fatalf("%+v", s)
	}
	command, ok := enginecmd.Read(s.Argv, s.Environment)
	if !ok || command.Port != s.Port || command.Context != 32768 || command.ServedName != "Qwen/Qwen3-8B" || command.Utilisation == "" || command.Host != "127.0.0.1" {
		t.Errorf("%+v of %q", command, s.Argv)
	}
}

func TestCatalogAddFromModelRefuses(t *testing.T) {
	t.Parallel()
	hostile := "printf 'it is \\033[31mbroken\\n' >&2; exit 1"
	for _, tc := range []struct {
		name, inspector string
		args            []string
		code            int
		want            string
	}{
		{"nobody to ask", says(clitest.SmallCard), nil, cli.ExitDenied, "no terminal"},
		{"a file that is none", hostile, []string{"--yes"}, cli.ExitFailed, "it is broken"},
		{"a card that is none", says(`{"weights_mib":0}`), []string{"--yes"}, cli.ExitFailed, ""},
		{"a card of another shape", says(`[]`), []string{"--yes"}, cli.ExitFailed, ""},
		{"a service that is there", says(clitest.SmallCard), []string{"--service", "chat", "--yes"}, cli.ExitUsage, `"chat" is taken`},
		{"an id that is none", says(clitest.SmallCard), []string{"--id", "../x", "--yes"}, cli.ExitUsage, "no model id"},
		{"a GPU that is none", says(clitest.SmallCard), []string{"--gpus", "7", "--yes"}, cli.ExitUsage, "no GPU 7"},
		{"a program that is none", says(clitest.SmallCard), []string{"--program", "no-such-program", "--yes"}, cli.ExitUsage, "no-such-program is neither"},
		{"a shell", says(clitest.SmallCard), []string{"--program", "/bin/sh", "--yes"}, cli.ExitUsage, "a shell"},
		{"no oracle", says(clitest.SmallCard), []string{"--exact", "--llama-fit-params", "/nonexistent", "--yes"}, cli.ExitFailed, "/nonexistent"},
		{"both a service and none", says(clitest.SmallCard), []string{"--service", "x", "--no-service", "--yes"}, cli.ExitUsage, "--service and --no-service exclude each other"},
		{"--from", says(clitest.SmallCard), []string{"--from", "x", "--yes"}, cli.ExitUsage, "--from"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := newModelHost(t, twoGPUs, tc.inspector)
			got := h.run("", append([]string{"catalog", "add", h.file}, tc.args...)...)
			if got.code != tc.code || !strings.Contains(got.err, tc.want) || strings.Contains(got.err+got.out, "\x1b") {
				t.Errorf("exit code %d, want %d, and %q in\n%s%s", got.code, tc.code, tc.want, got.out, got.err)
			}
			if h.read() != twoGPUs {
				t.Errorf("the catalogue became\n%s", h.read())
			}
		})
	}
	bare, _, _ := strings.Cut(twoGPUs, "\nservices:")
	h := newModelHost(t, bare, says(clitest.SmallCard))
	if got := h.run("", "catalog", "--development=false", "add", h.file, "--yes"); got.code != cli.ExitUsage || !strings.Contains(got.err, "--run-as") || h.read() != bare {
		t.Errorf("nobody to run as: exit code %d\n%s", got.code, got.err)
	}
	for _, args := range [][]string{{"add", "./none.gguf"}, {"add", "nonsense"}, {"add", h.file, h.file}} {
		if got := h.run("", append([]string{"catalog"}, args...)...); got.code == cli.ExitOK {
			t.Errorf("%q: %s", args, got.out)
		}
	}
	if got := h.run("", "catalog", "add", "modle", "x"); got.code != cli.ExitUsage || !strings.Contains(got.err, "model?") {
		t.Errorf("exit code %d\n%s", got.code, got.err)
	}
}

// In a folder each entry goes to the file that has its kind.
func TestCatalogAddFromModelToAFolder(t *testing.T) {
	t.Parallel()
	h := newModelHost(t, twoGPUs, says(clitest.SmallCard))
	folder := filepath.Join(h.home.Dir, "catalogue")
	must(t, os.Mkdir(folder, 0o700))
	for name, text := range map[string]string{"a.yaml": twoGPUs, "b.yaml": "version: 1\nmodels:\n  - id: m   # mine\n"} {
		testfile.Write(t, filepath.Join(folder, name), text)
	}
	if got := h.run("", "catalog", "--catalogue", folder, "add", h.file, "--yes"); got.code != cli.ExitOK {
		t.Fatalf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
	for name, want := range map[string]string{"a.yaml": "id: tiny-8b-q4_k_m", "b.yaml": "id: Tiny-8B-Q4_K_M"} {
		raw, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil || !strings.Contains(string(raw), want) {
			t.Errorf("%s: %v\n%s", name, err, raw)
		}
	}
}

// Where the catalog has no GPUs, those of the host that the service will use come along, by their uuid, and the engine is told to use
// no others.
func TestCatalogAddFromModelOnRealGPUs(t *testing.T) {
	h := newModelHost(t, "version: 1\n", says(clitest.SmallCard))
	smi := "case \"$1\" in --query-gpu=*) echo '0, GPU-11111111-2222-3333-4444-555555555555, NVIDIA T400, 2048, 2000';" +
		" echo '1, GPU-22222222-2222-3333-4444-555555555555, NVIDIA RTX 4090, 24564, 24000';; esac"
	must(t, os.WriteFile(filepath.Join(h.programs, "nvidia-smi"), []byte("#!/bin/sh\n"+smi+"\n"), 0o755))
	t.Setenv("PATH", h.programs+":/usr/bin:/bin")
	if got := h.run("", "catalog", "add", h.file, "--yes"); got.code != cli.ExitOK || !strings.Contains(got.out, "of 24564 MiB") {
		t.Fatalf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
	c, err := platform.Load(h.path, platform.Options{ProgramsDir: h.programs, Development: true})
	must(t, err)
	s, ok := c.Lookup("tiny-8b-q4_k_m")
	if !ok || len(c.GPUs) != 1 || c.GPUs[0].UUID != "GPU-22222222-2222-3333-4444-555555555555" || len(s.GPUs) != 1 || s.GPUs[0] != 1 ||
		s.Environment["CUDA_VISIBLE_DEVICES"] != "1" || s.Environment["CUDA_DEVICE_ORDER"] != "PCI_BUS_ID" {
		t.Errorf("%+v\n%s", s, h.read())
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
