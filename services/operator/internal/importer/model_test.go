package importer

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/importer/proposal"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/platformtest/testfile"
)

// TestModelsAlike: services of two quantizations of one model name two models, whichever tool they come from.
func TestModelsAlike(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, quant := range map[string]string{"a": "q4", "d": "q8"} {
		text := fmt.Sprintf("id: %s\ndriver: llamacpp\nmodel_id: Qwen/Qwen3-32B\nmodel_path: /srv/%s.gguf\n", name, quant)
		testfile.Write(t, filepath.Join(dir, name+".yaml"), text)
	}
	swap := filepath.Join(dir, "swap.yml.txt")
	text := "models:\n  \"qwen:Q4\": {cmd: /x/llama-server --port 81 -m /srv/q4.gguf}\n  \"qwen-Q4\": {cmd: /x/llama-server --port 82 -m /srv/q8.gguf}\n"
	testfile.Write(t, swap, text)
	for kind, from := range map[string]string{"gpumod": filepath.Join(dir, "a.yaml"), "llama-swap": swap} {
		p := proposal.New(kind, nil, "x")
		must(t, read(p, kind, from))
		out, err := p.Settle(context.Background(), nil, host())
		must(t, err)
		c, err := catalog.Parse("x", out, host())
		must(t, err)
		files := map[string]bool{}
		for _, s := range c.Services {
			files[s.Model.File] = true
		}
		if len(files) != 2 || !files["/srv/q4.gguf"] || !files["/srv/q8.gguf"] {
			t.Errorf("%s: files %v\n%s", kind, files, out)
		}
	}
}

// TestPortsGivenBack: what is left out has no port.
func TestPortsGivenBack(t *testing.T) {
	t.Parallel()
	text := "services:\n  a: {image: x, gpus: all, ports: [\"9000:80\"], volumes: [\"/etc:/x\"]}\n  b: {image: x, gpus: all, ports: [\"9000:80\"]}\n"
	p := proposal.New("compose", nil, "x")
	must(t, composeData(context.Background(), newBuilder(p, Given{}), map[string]bool{}, "x", "/base", []byte(text)))
	out, err := p.Settle(context.Background(), nil, host())
	if err != nil || !strings.Contains(string(out), "\n    port: 9000\n") || strings.Contains(string(out), "another service") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestHomeOfMounts: ~ is the HOME that a human gave, and nobody else's.
func TestHomeOfMounts(t *testing.T) {
	t.Parallel()
	for home, want := range map[string]string{"/home/ai": "source: /home/ai/models", "": "write out which folder"} {
		p := proposal.New("compose", nil, "x")
		b := newBuilder(p, Given{Variables: map[string]string{"HOME": home}})
		must(t, composeData(context.Background(), b, map[string]bool{}, "x", "/base", []byte(composeOf("volumes: [\"~/models:/m\"]"))))
		if out, err := p.Settle(context.Background(), nil, host()); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v\n%s", home, err, out)
		}
	}
}

// TestWhatSetIsOfferedFor: a hint that would be refused is none.
func TestWhatSetIsOfferedFor(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"$MODELS/x": true, "${A}": true, "${}": false, "${1}$B": true, "${HF_TOKEN}": false, "${HF_TOKEN} $A": true} {
		why := unusable(expand(text, nil))
		if strings.Contains(why, "--set") != want || !strings.Contains(why, "no variable of the environment is read") || strings.Contains(why, "--set $") {
			t.Errorf("%s: %q", text, why)
		}
	}
}

// TestVariablesMeanWhatTheyDoInComposeFiles: a value that was given wins, where a colon stands an empty one is none, and behind a plus stands
// what is put in its place.
func TestVariablesMeanWhatTheyDoInComposeFiles(t *testing.T) {
	given := map[string]string{"FULL": "x", "EMPTY": ""}
	for text, want := range map[string]string{
		"${FULL}": "x", "$FULL": "x", "$$FULL": "$FULL", "${FULL:-d}": "x", "${FULL-d}": "x", "${FULL:?say}": "x",
		"${EMPTY}": "", "${EMPTY:-d}": "d", "${EMPTY-d}": "", "${NONE:-d}": "d", "${NONE-d}": "d", "${NONE:-}": "",
		"${FULL:+--flag}": "--flag", "${FULL+--flag}": "--flag", "${EMPTY:+--flag}": "", "${EMPTY+--flag}": "--flag",
		"${NONE:+--flag}": placeholder("NONE"), "${NONE}": placeholder("NONE"), "${NONE:?say}": placeholder("NONE"),
	} {
		if got := expand(text, given); got != want {
			t.Errorf("%s is %q, want %q", text, got, want)
		}
	}
}

// TestGPUsOfAnEngine: an engine takes as many of the host's GPUs as all that it is told to be spread over.
func TestGPUsOfAnEngine(t *testing.T) {
	t.Parallel()
	for options, want := range map[string]string{"": "gpus: [0]\n", "-tp 2": "gpus: [0, 1]\n", "-dp 2": "gpus: [0, 1]\n", "-pp 3": "gpus: [0, 1, 2]\n",
		"-tp 2 -dp 2": "gpus: [0, 1, 2, 3]\n", "-tp 4 -pp 2 --nnodes 4": "gpus: [0, 1]\n"} {
		if text := onFour(t, "llama-swap", swapOf("/x/vllm serve a/b --host 127.0.0.1 --port ${PORT} "+options)); !strings.Contains(text, want) {
			t.Errorf("%s: want %s\n%s", options, want, text)
		}
	}
}

// TestGPUsThatAVariableNarrows: CUDA_VISIBLE_DEVICES counts the GPUs that the container was given, and is not needed where it gets those alone.
func TestGPUsThatAVariableNarrows(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]string{
		"gpus: all, environment: {CUDA_VISIBLE_DEVICES: \"2\"}":                                                 "gpus: [2]\n",
		"gpus: all, environment: {CUDA_VISIBLE_DEVICES: \"3,1\"}":                                               "environment: {CUDA_VISIBLE_DEVICES: \"1,0\"}\n    gpus: [3, 1]\n",
		"gpus: all, environment: {CUDA_VISIBLE_DEVICES: GPU-00000001-2222-3333-4444-555555555555}":              "gpus: [1]\n",
		"gpus: [{device_ids: [\"2\", \"3\"], capabilities: [gpu]}], environment: {CUDA_VISIBLE_DEVICES: \"1\"}": "gpus: [3]\n",
		"runtime: nvidia, environment: {NVIDIA_VISIBLE_DEVICES: \"1,2\", CUDA_VISIBLE_DEVICES: \"0\"}":          "gpus: [1]\n",
		"gpus: all, environment: {CUDA_VISIBLE_DEVICES: all}":                                                   "gpus: [0, 1, 2, 3]\n",
		"gpus: all, environment: {CUDA_VISIBLE_DEVICES: \"\"}":                                                  "gpus: [0, 1, 2, 3]\n",
		"gpus: all, environment: {CUDA_VISIBLE_DEVICES: \"9\"}":                                                 "gpus: [0, 1, 2, 3]\n",
		"gpus: all, environment: {CUDA_VISIBLE_DEVICES: \"0\", CUDA_DEVICE_ORDER: PCI_BUS_ID}":                  "gpus: [0]\n",
	} {
		text := onFour(t, "compose", "services: {s: {image: \"x:1\", "+said+"}}")
		if !strings.Contains(text, want) {
			t.Errorf("%s: want %s\n%s", said, want, text)
		}
	}
}

// onFour is what an import proposes for a host of four GPUs.
func onFour(t *testing.T, kind, text string) string {
	t.Helper()
	file := "version: 1\ngpus:\n"
	for i := range 4 {
		file += fmt.Sprintf("  - {index: %d, uuid: GPU-0000000%d-2222-3333-4444-555555555555}\n", i, i)
	}
	files := []catalog.File{{Name: "present.yaml", Data: []byte(file)}}
	present, err := catalog.ParseFiles(files, host())
	must(t, err)
	p := proposal.New(kind, present, "x")
	must(t, importText(t, p, kind, text, Given{Find: func(string) error { return nil }}))
	out, err := p.Settle(t.Context(), files, host())
	must(t, err)
	return string(out)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
