package gguf

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	parser "github.com/gpustack/gguf-parser-go"

	"durward.internal/services/inspector/internal/gguftest"
)

func write(t testing.TB, path string, b []byte) {
	t.Helper()
	must(t, os.WriteFile(path, b, 0o600))
}

// same fails the test where the library reads something else of a file than this package does. It is asked only about files that
// passed here.
func same(t testing.TB, path string, b []byte) {
	t.Helper()
	write(t, path, b)
	file, err := os.Open(path)
	must(t, err)
	defer file.Close()
	ours, err := read(file, int64(len(b)))
	must(t, err)
	theirs, err := parser.ParseGGUFFile(path, parser.SkipLargeMetadata())
	if err != nil {
		t.Fatalf("passes here, but the library says %v", err)
	}
	whole := parser.GGUFFile{TensorInfos: ours.tensors}
	whole.Header.MetadataKV = ours.keys
	if diff := cmp.Diff(theirs.Architecture(), whole.Architecture()); diff != "" {
		t.Errorf("the library reads something else (-library +here):\n%s", diff)
	}
	if ours.data != theirs.TensorDataStartOffset {
		t.Errorf("tensors begin at %d here, at %d by the library", ours.data, theirs.TensorDataStartOffset)
	}
	if n, err := bytesOf(ours.tensors); err != nil || n != theirs.TensorInfos.Bytes() {
		t.Errorf("tensors take %d bytes here (%v), %d by the library", n, err, theirs.TensorInfos.Bytes())
	}
}

func sound1() map[string]*gguftest.File {
	big := gguftest.Llama31()
	big.BigEndian = true
	return map[string]*gguftest.File{
		"llama": gguftest.Llama31(), "qwen3": gguftest.Qwen3(), "gemma3": gguftest.Gemma3(), "gemma3n": gguftest.Gemma3n(),
		"deepseek2": gguftest.DeepSeek2(), "latent": gguftest.DeepSeek2Latent(), "qwen3next": gguftest.Qwen3Next(),
		"mamba": gguftest.Mamba(), "deci": gguftest.Deci(), "big-endian": big,
	}
}

func TestSameAsTheLibrary(t *testing.T) {
	t.Parallel()
	for name, f := range sound1() {
		if name == "big-endian" {
			continue // the library knows them by another magic than ggml writes
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			same(t, filepath.Join(t.TempDir(), "model.gguf"), f.Bytes())
		})
	}
}

// FuzzGGUF: no file makes reading it panic, and a card that comes out is a sound one.
func FuzzGGUF(f *testing.F) {
	for _, file := range sound1() {
		file.Tensors = []gguftest.Tensor{{Name: "token_embd.weight", Dims: []uint64{32, 2}, Type: gguftest.Q4_0}}
		f.Add(file.Bytes())
	}
	for _, file := range hostile() {
		if len(file.file) < 1<<14 {
			f.Add(file.file)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		card, err := Card(of1(b))
		if err != nil {
			return
		}
		must(t, card.Check())
	})
}
