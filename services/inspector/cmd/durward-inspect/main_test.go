package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"durward.internal/services/inspector/internal/gguftest"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/inspect"
	"durward.internal/services/platform/model"
	"durward.internal/services/platform/platformtest"
)

// built is the program, where any user may start it.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "durward-inspect")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "durward-inspect")
	return path, build(path)
})

// TestMain makes this test's own program the one that is tested, where it is started without a test's flags.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || !strings.HasPrefix(os.Args[1], "-test.") {
		main()
	}
	code := m.Run()
	if path, err := built(); err == nil {
		// The result of the tests is what the exit status says.
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

func program(t *testing.T) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// start runs the program and returns what it said.
func start(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program(t), args...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), complaint.String()
}

func put(t *testing.T, path string, b []byte) string {
	t.Helper()
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

const config = `{"architectures":["LlamaForCausalLM"],"num_hidden_layers":2,"hidden_size":64,"num_attention_heads":4,"vocab_size":100}`

func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	put(t, filepath.Join(dir, "config.json"), []byte(config))
	header := `{"a":{"data_offsets":[0,2097152]}}`
	put(t, filepath.Join(dir, "model.safetensors"), append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...))
	if err := os.Truncate(filepath.Join(dir, "model.safetensors"), int64(8+len(header)+2<<20)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	gguf := filepath.Join(dir, "model.gguf")
	gguftest.Llama31().Write(t, gguf)

	code, out, complaint := start(t, "gguf", gguf)
	line, ended := strings.CutSuffix(out, "\n")
	var card model.Card
	if code != exitOK || complaint != "" || !ended || canonical.Unmarshal([]byte(line), &card) != nil || card.Architecture != "llama" {
		t.Errorf("gguf: %d, %q, %q", code, out, complaint)
	}
	code, out, complaint = start(t, "huggingface", folder(t))
	if code != exitOK || complaint != "" || !strings.Contains(out, `"architecture":"LlamaForCausalLM"`) || !strings.Contains(out, `"weights_mib":2`) {
		t.Errorf("huggingface: %d, %q, %q", code, out, complaint)
	}

	fifo := filepath.Join(dir, "fifo.gguf")
	if err := syscall.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	split := filepath.Join(dir, "split-00001-of-00002.gguf")
	gguftest.Llama31().Write(t, split)
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{nil, exitUsage, usage},
		{[]string{"gguf"}, exitUsage, usage},
		{[]string{"pickle", gguf}, exitUsage, usage},
		{[]string{"gguf", filepath.Join(dir, "none")}, exitFailure, "there is no such file"},
		{[]string{"gguf", dir}, exitFailure, "it is not a regular file"},
		{[]string{"gguf", fifo}, exitFailure, "it is not a regular file"},
		{[]string{"gguf", "/dev/zero"}, exitFailure, "it is not a regular file"},
		{[]string{"gguf", os.Args[0]}, exitFailure, "the file is not a GGUF file"},
		{[]string{"gguf", split}, exitFailure, "part 2 of 2: there is no such file"},
		{[]string{"huggingface", dir}, exitFailure, "the folder's config.json: there is no such file"},
		{[]string{"huggingface", gguf}, exitFailure, "the folder's config.json: the file cannot be opened"},
	} {
		code, out, complaint := start(t, test.args...)
		if code != test.code || out != "" || complaint != test.says+"\n" {
			t.Errorf("%v: %d, %q, %q; want %d and %q", test.args, code, out, complaint, test.code, test.says)
		}
	}
	if code, out, _ := start(t, "-version"); code != exitOK || !strings.HasPrefix(out, "durward-inspect ") {
		t.Errorf("-version: %d, %q", code, out)
	}
}

// Caches of Hugging Face are folders of links.
func TestLinks(t *testing.T) {
	t.Parallel()
	blobs, links := folder(t), t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors"} {
		if err := os.Symlink(filepath.Join(blobs, name), filepath.Join(links, name)); err != nil {
			t.Fatal(err)
		}
	}
	if code, out, complaint := start(t, "huggingface", links); code != exitOK {
		t.Errorf("%d, %q, %q", code, out, complaint)
	}
}

// The largest headers that are read at all stay within the limits on memory and time: each of these files has what its counts
// say.
func TestLargestHeaders(t *testing.T) {
	t.Parallel()
	many := gguftest.Llama31()
	many.Set("tokenizer.ggml.merges", strings.Fields(strings.Repeat("merge ", 3_000_000)))
	tensors := gguftest.Llama31()
	for i := range 131_000 {
		tensors.Tensors = append(tensors.Tensors, gguftest.Tensor{Name: fmt.Sprintf("blk.%d.%s", i, strings.Repeat("x", 200)), Dims: []uint64{32, 1, 1, 1}, Type: gguftest.Q4_0})
	}
	keys := gguftest.Llama31()
	for i := range 4000 {
		keys.Set(fmt.Sprintf("general.text.%d", i), strings.Repeat("y", 15_000))
	}
	files := map[string]*gguftest.File{"a tokenizer": many, "tensors": tensors, "texts": keys}
	if !platformtest.Full() { // they take seconds of processor time each: one of them, which the subtest's name tells
		one := slices.Sorted(maps.Keys(files))[rand.IntN(len(files))]
		files = map[string]*gguftest.File{one: files[one]}
	}
	for name, file := range files {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "model.gguf")
			file.Write(t, path)
			began := time.Now()
			code, _, complaint := start(t, "gguf", path)
			t.Logf("a header of %d MiB took %v", len(file.Header())>>20, time.Since(began).Round(time.Millisecond))
			if code != exitOK {
				t.Errorf("%d, %s", code, complaint)
			}
		})
	}
	t.Run("one byte too long", func(t *testing.T) {
		file := gguftest.Llama31()
		for i := range 17 {
			file.Set(fmt.Sprintf("general.text.%d", i), strings.Repeat("y", 4<<20))
		}
		path := filepath.Join(t.TempDir(), "model.gguf")
		file.Write(t, path)
		if code, _, complaint := start(t, "gguf", path); code != exitFailure || complaint != "the file's header is longer than 64 MiB\n" {
			t.Errorf("%d, %q", code, complaint)
		}
	})
}

// The program and the package that runs it, as services do.
func TestInspector(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "model.gguf")
	gguftest.Qwen3().Write(t, path)
	i := &inspect.Inspector{Program: program(t)}
	card, err := i.Card(t.Context(), path)
	if err != nil || card.Architecture != "qwen3" || card.Layers[0].KeyDim != 128 {
		t.Fatalf("%+v, %v", card, err)
	}
	if card, err = i.Card(t.Context(), folder(t)); err != nil || card.Architecture != "LlamaForCausalLM" {
		t.Errorf("%+v, %v", card, err)
	}
	put(t, path, []byte("GGUF"))
	if _, err = i.Card(t.Context(), path); err == nil || err.Error() != "the file's version of GGUF is not 2 or 3" && !strings.Contains(err.Error(), "ends within") {
		t.Errorf("a file that changed: %v", err)
	}
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		// Nobody may not read it; root may.
		private := filepath.Join(dir, "private.gguf")
		gguftest.Qwen3().Write(t, private)
		if err := os.Chmod(private, 0o600); err != nil {
			t.Fatal(err)
		}
		if card, err := i.Card(t.Context(), private); err != nil || card.Architecture != "qwen3" {
			t.Errorf("a file that only root may read: %+v, %v", card, err)
		}
	} else if _, err := i.Card(t.Context(), path); err == nil || !strings.Contains(err.Error(), "may not be read") {
		t.Errorf("a file that may not be read: %v", err)
	}
}
