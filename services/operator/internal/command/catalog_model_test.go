package command

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/platform/catalogue"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/model"
	"durward.internal/services/platform/vram"
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

// smallCard is what the inspector's stand-in says: a model of 8 B parameters in 4 bits, by the public config.json of Qwen3-8B (36 layers,
// 8 KV heads of 128), in canonical JSON.
const smallCard = `{"architecture":"qwen3","context":40960,"feed_forward":12288,"heads":32,"hidden":4096,"host_weights_mib":333,` +
	`"layers":[{"count":36,"key_dim":128,"kind":"full","kv_heads":8,"value_dim":128}],"vocabulary":151936,"weights_mib":4789}`

// modelHost is a catalogue, a folder with programs that stand for engines and the inspector, and a model's file.
type modelHost struct {
	catalog
	programs, file string
}

func newModelHost(t *testing.T, text, inspectorSays string) modelHost {
	t.Helper()
	h := modelHost{catalog: newCatalog(t), programs: t.TempDir()}
	h.write(text)
	for name, script := range map[string]string{
		"durward-inspect": inspectorSays, "llama-server": "exit 0", "vllm": "exit 0",
		"llama-fit-params": "echo 'CUDA0 4456 4608 300'; echo 'Host 333 0 20'",
	} {
		if script == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(h.programs, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	config := h.home.Config("executor")
	raw, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(raw), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "programs_dir:") {
			lines[i] = ""
		}
	}
	if err := os.WriteFile(config, []byte(strings.Join(lines, "\n")+"\nprograms_dir: "+h.programs+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.file = filepath.Join(t.TempDir(), "Tiny-8B-Q4_K_M-00001-of-00002.gguf")
	if err := os.WriteFile(h.file, []byte("GGUF"), 0o644); err != nil {
		t.Fatal(err)
	}
	return h
}

func says(card string) string { return "echo '" + card + "'" }

func TestCatalogAddFromModel(t *testing.T) {
	t.Parallel()
	h := newModelHost(t, twoGPUs, says(smallCard))
	got := h.run("", "catalog", "add", h.file, "--yes")
	if got.code != exitOK {
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
	c, err := catalogue.Load(h.path, catalogue.Options{ProgramsDir: h.programs, Development: true})
	if err != nil {
		t.Fatal(err)
	}
	s, ok := c.Lookup("tiny-8b-q4_k_m")
	if !ok || s.Model == nil || s.Model.ID != "Tiny-8B-Q4_K_M" || s.Model.File != h.file || s.Model.Card == nil {
		t.Fatalf("%+v\n%s", s, text)
	}
	var card model.Card
	if err := json.Unmarshal([]byte(smallCard), &card); err != nil {
		t.Fatal(err)
	}
	if a, b := encode(t, card), encode(t, *s.Model.Card); a != b {
		t.Errorf("the card became %s, not %s", b, a)
	}
	if s.Port == 8001 || s.Port < firstPort || len(s.GPUs) != 1 || s.GPUs[0] != 0 || !s.OpenAI || s.ExtraConfig["context_size"] != "32768" {
		t.Errorf("%+v", s)
	}
	// Once more: its id is taken.
	if got := h.run("", "catalog", "add", h.file, "--yes"); got.code != exitUsage || !strings.Contains(got.err, "has a model Tiny-8B-Q4_K_M already") {
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
			Exact   []exactJSON `json:"llama_fit_params"`
		}
	}
	if err := json.Unmarshal([]byte(got.out), &answer); err != nil || got.code != exitOK {
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
		if got := h.run("", args...); got.code != exitOK || strings.Count(h.read(), "driver:") != before {
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
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// A folder of Hugging Face's is vLLM's, with a share of the GPU that it starts with; in the hub's cache it has its name from there.
func TestCatalogAddFromFolder(t *testing.T) {
	t.Parallel()
	h := newModelHost(t, twoGPUs, says(smallCard))
	folder := filepath.Join(t.TempDir(), "models--Qwen--Qwen3-8B", "snapshots", strings.Repeat("0123456789", 4))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "config.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := h.run("", "catalog", "add", folder, "--yes"); got.code != exitOK || strings.Contains(got.out, "does not fit") {
		t.Fatalf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
	c, err := catalogue.Load(h.path, catalogue.Options{ProgramsDir: h.programs, Development: true})
	if err != nil {
		t.Fatal(err)
	}
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
		{"nobody to ask", says(smallCard), nil, exitDenied, "no terminal"},
		{"a file that is none", hostile, []string{"--yes"}, exitFailed, "it is broken"},
		{"a card that is none", says(`{"weights_mib":0}`), []string{"--yes"}, exitFailed, ""},
		{"a card of another shape", says(`[]`), []string{"--yes"}, exitFailed, ""},
		{"a service that is there", says(smallCard), []string{"--service", "chat", "--yes"}, exitUsage, `"chat" is taken`},
		{"an id that is none", says(smallCard), []string{"--id", "../x", "--yes"}, exitUsage, "no model id"},
		{"a GPU that is none", says(smallCard), []string{"--gpus", "7", "--yes"}, exitUsage, "no GPU 7"},
		{"a program that is none", says(smallCard), []string{"--program", "no-such-program", "--yes"}, exitUsage, "no-such-program is neither"},
		{"a shell", says(smallCard), []string{"--program", "/bin/sh", "--yes"}, exitUsage, "a shell"},
		{"a port that is taken", says(smallCard), []string{"--port", "8001", "--yes"}, exitUsage, "chat"},
		{"no oracle", says(smallCard), []string{"--exact", "--llama-fit-params", "/nonexistent", "--yes"}, exitFailed, "/nonexistent"},
		{"both a service and none", says(smallCard), []string{"--service", "x", "--no-service", "--yes"}, exitFailed, "service"},
		{"--from", says(smallCard), []string{"--from", "x", "--yes"}, exitUsage, "--from"},
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
	h := newModelHost(t, bare, says(smallCard))
	if got := h.run("", "catalog", "--development=false", "add", h.file, "--yes"); got.code != exitUsage || !strings.Contains(got.err, "--run-as") || h.read() != bare {
		t.Errorf("nobody to run as: exit code %d\n%s", got.code, got.err)
	}
	for _, args := range [][]string{{"add", "./none.gguf"}, {"add", "nonsense"}, {"add", h.file, h.file}} {
		if got := h.run("", append([]string{"catalog"}, args...)...); got.code == exitOK {
			t.Errorf("%q: %s", args, got.out)
		}
	}
	if got := h.run("", "catalog", "add", "modle", "x"); got.code != exitUsage || !strings.Contains(got.err, "model?") {
		t.Errorf("exit code %d\n%s", got.code, got.err)
	}
}

// In a folder each entry goes to the file that has its kind.
func TestCatalogAddFromModelToAFolder(t *testing.T) {
	t.Parallel()
	h := newModelHost(t, twoGPUs, says(smallCard))
	folder := filepath.Join(h.home.Dir, "catalogue")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"a.yaml": twoGPUs, "b.yaml": "version: 1\nmodels:\n  - id: m   # mine\n"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := h.run("", "catalog", "--catalogue", folder, "add", h.file, "--yes"); got.code != exitOK {
		t.Fatalf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
	for name, want := range map[string]string{"a.yaml": "id: tiny-8b-q4_k_m", "b.yaml": "id: Tiny-8B-Q4_K_M"} {
		raw, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil || !strings.Contains(string(raw), want) {
			t.Errorf("%s: %v\n%s", name, err, raw)
		}
	}
}

// What is chosen fits wherever something does, on as few GPUs as possible and with the longest context that goes on those.
func TestChooseGPUs(t *testing.T) {
	t.Parallel()
	var small model.Card
	if err := json.Unmarshal([]byte(smallCard), &small); err != nil {
		t.Fatal(err)
	}
	large := small
	large.WeightsMiB = 30000
	short := small
	short.Context = 2048
	gpus := func(sizes ...uint32) (out []hostGPU) {
		for i, n := range sizes {
			out = append(out, hostGPU{index: uint32(i), totalMiB: n})
		}
		return out
	}
	for _, tc := range []struct {
		name    string
		card    model.Card
		engine  string
		gpus    []hostGPU
		wanted  uint32
		fits    bool
		on      int
		first   uint32
		context uint32
	}{
		{"room enough", small, enginecmd.LlamaCPP, gpus(24576, 24576), 0, true, 1, 0, 32768},
		{"the second has room", small, enginecmd.LlamaCPP, gpus(2048, 24576), 0, true, 1, 1, 32768},
		{"a shorter context", small, enginecmd.LlamaCPP, gpus(8192), 0, true, 1, 0, 8192},
		{"two at once", large, enginecmd.LlamaCPP, gpus(24576, 24576), 0, true, 2, 0, 32768},
		{"two at once, vLLM", large, enginecmd.VLLM, gpus(24576, 24576), 0, true, 2, 0, 32768},
		{"no two that are alike, vLLM", large, enginecmd.VLLM, gpus(24576, 16384), 0, false, 1, 1, 0},
		{"nowhere", large, enginecmd.LlamaCPP, gpus(8192, 8192), 0, false, 2, 0, 0},
		{"the model's own", short, enginecmd.LlamaCPP, gpus(24576), 0, true, 1, 0, 2048},
		{"as was asked", small, enginecmd.LlamaCPP, gpus(24576), 40960, true, 1, 0, 40960},
		{"not known", small, enginecmd.LlamaCPP, gpus(0), 0, false, 1, 0, 32768},
		{"not known, vLLM", small, enginecmd.VLLM, gpus(0), 0, false, 1, 0, 32768},
		{"none", small, enginecmd.VLLM, nil, 0, false, 0, 0, 32768},
	} {
		c := chooseGPUs(tc.card, tc.engine, tc.gpus, false, tc.wanted)
		if c.fits != tc.fits || len(c.gpus) != tc.on || tc.on > 0 && tc.fits && c.gpus[0].index != tc.first || tc.context > 0 && c.context != tc.context {
			t.Errorf("%s: fits %v on %+v with %d tokens, share %q: %+v", tc.name, c.fits, c.gpus, c.context, c.utilisation, c.estimate)
		}
		if c.fits && !c.room() {
			t.Errorf("%s: it fits and has no room: %+v", tc.name, c)
		}
	}
}

// What vLLM is given fits wherever a share does, and is the smallest that starts or one step more; of two GPUs the one that it fits on is
// taken.
func TestClaim(t *testing.T) {
	t.Parallel()
	var card model.Card
	if err := json.Unmarshal([]byte(smallCard), &card); err != nil {
		t.Fatal(err)
	}
	fitted, tight := 0, 0
	for _, total := range []uint32{8192, 12288, 16384, 24576} {
		for weights := uint32(1000); weights < total; weights += 97 {
			card.WeightsMiB = weights
			at := func(percent int) (vram.Estimate, bool) {
				run, _ := vram.Defaults(enginecmd.VLLM)
				run.Context, run.TensorParallel, run.Utilisation = 8192, 1, float64(percent)/100
				e, err := vram.Of(card, run, []vram.GPU{{TotalMiB: total}})
				return e, err == nil && e.Starts && uint64(e.PerGPU[0])+marginMiB <= uint64(total)
			}
			want := map[string]bool{}
			for percent := 30; percent <= 95; percent += 5 {
				if _, ok := at(percent); ok {
					want[fmt.Sprintf("%.2f", float64(percent)/100)] = true
					if _, ok := at(percent + 5); ok && percent < 95 {
						want = map[string]bool{fmt.Sprintf("%.2f", float64(percent+5)/100): true}
					} else {
						tight++
					}
					break
				}
			}
			c := runOn(card, enginecmd.VLLM, []hostGPU{{totalMiB: total}}, 8192)
			if c.fits != (len(want) > 0) || c.fits && (!want[c.utilisation] || !c.room() || !c.estimate.Starts) {
				t.Errorf("%d MiB on %d: fits %v with %s, want one of %v: %+v", weights, total, c.fits, c.utilisation, want, c.estimate)
			}
			if c.fits {
				fitted++
			}
			if two := chooseGPUs(card, enginecmd.VLLM, []hostGPU{{totalMiB: total}, {index: 1, totalMiB: 4 * total}}, false, 8192); !two.fits || c.fits != (two.gpus[0].index == 0) {
				t.Errorf("%d MiB on %d and a larger one: fits %v on %+v", weights, total, two.fits, two.gpus)
			}
		}
	}
	if fitted < 100 || tight == 0 {
		t.Errorf("%d fit, %d of them without a step more: nothing was tested", fitted, tight)
	}
}

func TestModelNamed(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("0123456789", 4)
	for file, want := range map[string]naming{
		"/srv/m/Qwen3-8B-Q4_K_M.gguf":                             {"Qwen3-8B-Q4_K_M", ""},
		"/srv/m/big-00001-of-00005.gguf":                          {"big", ""},
		"/srv/m/Qwen3-32B":                                        {"Qwen3-32B", ""},
		"/h/models--Qwen--Qwen3-32B/snapshots/" + hash:            {"Qwen/Qwen3-32B", "hf:Qwen/Qwen3-32B"},
		"/h/models--a--b-GGUF/snapshots/" + hash + "/b-Q8_0.gguf": {"b-Q8_0", "hf:a/b-GGUF"},
		"/h/models--Qwen--Qwen3-32B/snapshots/" + hash[:39] + "x": {hash[:39] + "x", ""},
	} {
		if got := modelNamed(file); got != want {
			t.Errorf("%s: %+v, want %+v", file, got, want)
		}
	}
}

// Where the catalogue has no GPUs, those of the host that the service will use come along, by their uuid, and the engine is told to use
// no others.
func TestCatalogAddFromModelOnRealGPUs(t *testing.T) {
	h := newModelHost(t, "version: 1\n", says(smallCard))
	smi := "case \"$1\" in --query-gpu=*) echo '0, GPU-11111111-2222-3333-4444-555555555555, NVIDIA T400, 2048, 2000';" +
		" echo '1, GPU-22222222-2222-3333-4444-555555555555, NVIDIA RTX 4090, 24564, 24000';; esac"
	if err := os.WriteFile(filepath.Join(h.programs, "nvidia-smi"), []byte("#!/bin/sh\n"+smi+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", h.programs+":/usr/bin:/bin")
	if got := h.run("", "catalog", "add", h.file, "--yes"); got.code != exitOK || !strings.Contains(got.out, "of 24564 MiB") {
		t.Fatalf("exit code %d\n%s%s", got.code, got.out, got.err)
	}
	c, err := catalogue.Load(h.path, catalogue.Options{ProgramsDir: h.programs, Development: true})
	if err != nil {
		t.Fatal(err)
	}
	s, ok := c.Lookup("tiny-8b-q4_k_m")
	if !ok || len(c.GPUs) != 1 || c.GPUs[0].UUID != "GPU-22222222-2222-3333-4444-555555555555" || len(s.GPUs) != 1 || s.GPUs[0] != 1 ||
		s.Environment["CUDA_VISIBLE_DEVICES"] != "1" || s.Environment["CUDA_DEVICE_ORDER"] != "PCI_BUS_ID" {
		t.Errorf("%+v\n%s", s, h.read())
	}
}
