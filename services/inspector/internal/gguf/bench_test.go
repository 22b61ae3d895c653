package gguf

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	parser "github.com/gpustack/gguf-parser-go"

	"durward.internal/services/inspector/internal/gguftest"
)

// BenchmarkCard reads a header with a tokenizer of the usual size, here and with the library's reader.
func BenchmarkCard(b *testing.B) {
	f := gguftest.Llama31()
	tokens := make([]string, 150_000)
	for i := range tokens {
		tokens[i] = fmt.Sprintf("token%d", i)
	}
	f.Set("tokenizer.ggml.tokens", tokens).Set("tokenizer.ggml.merges", tokens)
	path := filepath.Join(b.TempDir(), "model.gguf")
	f.Write(b, path)
	b.Run("here", func(b *testing.B) {
		for b.Loop() {
			file, err := os.Open(path)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := Card([]Source{file}); err != nil {
				b.Fatal(err)
			}
			if err := file.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("library", func(b *testing.B) {
		for b.Loop() {
			file, err := parser.ParseGGUFFile(path, parser.SkipLargeMetadata())
			if err != nil {
				b.Fatal(err)
			}
			file.Architecture()
		}
	})
}
