package gguf

import (
	"bytes"
	"encoding/binary"
	"io/fs"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	parser "github.com/gpustack/gguf-parser-go"

	"durward.internal/services/inspector/internal/gguftest"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/model"
)

// buffer is a file that is not on a disk.
type buffer struct {
	*bytes.Reader
	size int64
}

func (m buffer) Stat() (fs.FileInfo, error) { return m, nil }
func (m buffer) Size() int64                { return m.size }
func (buffer) Name() string                 { return "memory" }
func (buffer) Mode() fs.FileMode            { return 0o600 }
func (buffer) ModTime() time.Time           { return time.Time{} }
func (buffer) IsDir() bool                  { return false }
func (buffer) Sys() any                     { return nil }

func of1(b []byte) []Source { return []Source{buffer{bytes.NewReader(b), int64(len(b))}} }

func layersOf(count uint32, kind string, heads, key, value, window uint32) model.Layers {
	return model.Layers{Count: count, Kind: kind, KVHeads: heads, KeyDim: key, ValueDim: value, Window: window}
}

func TestCard(t *testing.T) {
	t.Parallel()
	shared := func(l model.Layers) model.Layers { l.Shared = true; return l }
	repeat := func(n int, ls ...model.Layers) (out []model.Layers) {
		for range n {
			out = append(out, ls...)
		}
		return out
	}
	slide := layersOf(5, model.Sliding, 16, 128, 128, 1024)
	slide2 := slide
	slide2.Count = 2
	delta := model.Layers{Count: 3, Kind: model.Recurrent, StateBytes: 4 * (3*(4096+2*16*128) + 128*4096)}
	n4 := layersOf(4, model.Sliding, 2, 256, 256, 512)
	n1 := layersOf(1, model.Full, 2, 256, 256, 0)
	// 2 MiB of embeddings, 2 of output, 4.25 of Q8_0.
	const weights, host, output = 9, 2, 2
	for name, test := range map[string]struct {
		file *gguftest.File
		want model.Card
	}{
		"llama": {gguftest.Llama31(), model.Card{
			Architecture: "llama", Context: 131072, Hidden: 4096, FeedForward: 14336, Heads: 32, Vocabulary: 128256,
			Layers: []model.Layers{layersOf(32, model.Full, 8, 128, 128, 0)},
		}},
		"big-endian": {func() *gguftest.File { f := gguftest.Llama31(); f.BigEndian = true; return f }(), model.Card{
			Architecture: "llama", Context: 131072, Hidden: 4096, FeedForward: 14336, Heads: 32, Vocabulary: 128256,
			Layers: []model.Layers{layersOf(32, model.Full, 8, 128, 128, 0)},
		}},
		"qwen3: the published width of heads": {gguftest.Qwen3(), model.Card{
			Architecture: "qwen3", Context: 40960, Hidden: 1024, FeedForward: 3072, Heads: 16, Vocabulary: 151936,
			Layers: []model.Layers{layersOf(28, model.Full, 8, 128, 128, 0)},
		}},
		"gemma3: five of six slide": {gguftest.Gemma3(), model.Card{
			Architecture: "gemma3", Context: 131072, Hidden: 5376, FeedForward: 21504, Heads: 32, Vocabulary: 262208,
			Layers: append(repeat(10, slide, layersOf(1, model.Full, 16, 128, 128, 0)), slide2),
		}},
		"deepseek2, all heads": {gguftest.DeepSeek2(), model.Card{
			Architecture: "deepseek2", Context: 163840, Hidden: 2048, FeedForward: 10944, Heads: 16, Vocabulary: 102400,
			Layers: []model.Layers{layersOf(27, model.Full, 16, 192, 128, 0)},
		}},
		"deepseek2, latent": {gguftest.DeepSeek2Latent(), model.Card{
			Architecture: "deepseek2", Context: 163840, Hidden: 2048, FeedForward: 10944, Heads: 16, Vocabulary: 102400,
			Layers: []model.Layers{layersOf(27, model.Latent, 1, 576, 0, 0)},
		}},
		"qwen3next: three of four keep a state": {gguftest.Qwen3Next(), model.Card{
			Architecture: "qwen3next", Context: 262144, Hidden: 2048, FeedForward: 5120, Heads: 16, Vocabulary: 151936,
			Layers: repeat(12, delta, layersOf(1, model.Full, 2, 256, 256, 0)),
		}},
		"mamba": {gguftest.Mamba(), model.Card{
			Architecture: "mamba", Context: 1 << 20, Hidden: 768, Vocabulary: 50280,
			Layers: []model.Layers{{Count: 24, Kind: model.Recurrent, StateBytes: 4 * (3*1536 + 16*1536)}},
		}},
		"gemma3n: the last 15 share": {gguftest.Gemma3n(), model.Card{
			Architecture: "gemma3n", Context: 32768, Hidden: 2048, FeedForward: 16384, Heads: 8, Vocabulary: 262400,
			Layers: append(repeat(4, n4, n1), repeat(3, shared(n4), shared(n1))...),
		}},
		"deci: each layer its own": {gguftest.Deci(), model.Card{
			Architecture: "deci", Context: 131072, Hidden: 8192, FeedForward: 28672, Heads: 64, Vocabulary: 128256,
			Layers: []model.Layers{
				layersOf(1, model.Full, 8, 128, 128, 0),
				{Count: 1, Kind: model.Full, KVHeads: 1, KeyDim: 1, ValueDim: 1, Shared: true},
				layersOf(1, model.Full, 8, 128, 128, 0), layersOf(1, model.Full, 4, 128, 128, 0),
			},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.want.WeightsMiB, test.want.HostWeightsMiB, test.want.OutputMiB = weights, host, output
			got, err := Card(of1(test.file.Bytes()))
			must(t, err)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Without an output layer of its own, the embeddings are loaded to the GPU as well: nothing of the file stays away from it.
func TestTiedEmbeddings(t *testing.T) {
	t.Parallel()
	f := gguftest.Llama31()
	f.Tensors = append(f.Tensors[:1], f.Tensors[2:]...)
	card, err := Card(of1(f.Bytes()))
	must(t, err)
	if card.WeightsMiB != 7 || card.HostWeightsMiB != 0 || card.OutputMiB != 2 {
		t.Errorf("weights %d MiB, %d of them in the host's memory, %d the output; want 7, 0 and 2", card.WeightsMiB, card.HostWeightsMiB, card.OutputMiB)
	}
}

// The experts of a mixture are counted apart, from the first layer that has some; what is shared by all tokens is none of them.
func TestExperts(t *testing.T) {
	t.Parallel()
	f := gguftest.Qwen3Next()
	for _, name := range []string{
		"blk.3.ffn_up_exps.weight", "blk.3.ffn_down_exps.weight", "blk.12.ffn_gate_up_exps.weight", "blk.3.ffn_gate_chexps.weight",
		"blk.0.ffn_up_shexp.weight", "blk.1.ffn_gate.weight", "blk.2.ffn_gate_inp.weight", "v.blk.0.ffn_up_exps.weight",
	} {
		f.Tensors = append(f.Tensors, gguftest.Tensor{Name: name, Dims: []uint64{1024, 1024}, Type: gguftest.F16})
	}
	card, err := Card(of1(f.Bytes()))
	must(t, err)
	if card.ExpertsMiB != 4*2 || card.ExpertsFrom != 3 {
		t.Errorf("%d MiB of experts from layer %d on; want 8, and 3", card.ExpertsMiB, card.ExpertsFrom)
	}
}

func TestParts(t *testing.T) {
	t.Parallel()
	first := gguftest.Llama31()
	second := &gguftest.File{
		KVs:     []gguftest.KV{{Key: "split.no", Value: uint16(1)}, {Key: "split.count", Value: uint16(2)}},
		Tensors: []gguftest.Tensor{{Name: "blk.1.attn_q.weight", Dims: []uint64{1024, 2048}, Type: gguftest.F16}},
	}
	card, err := Card(append(of1(first.Bytes()), of1(second.Bytes())...))
	must(t, err)
	if card.WeightsMiB != 13 {
		t.Errorf("weights of both parts: %d MiB, want 13", card.WeightsMiB)
	}
	short := second.Bytes()
	if _, err := Card(append(of1(first.Bytes()), of1(short[:len(short)/2])...)); err == nil {
		t.Error("a part that is cut short passes")
	}

	for path, want := range map[string]int{
		"/models/a.gguf": 1, "/models/a-00002-of-00003.gguf": 3, "/models/a-00001-of-00001.gguf": 1,
		"/models/a-00004-of-00003.gguf": 0, "/models/a-00000-of-00003.gguf": 0, "/models/a-00001-of-99999.gguf": 0,
	} {
		parts, err := Parts(path)
		if len(parts) != want || (err != nil) != (want == 0) {
			t.Errorf("%s: %d parts, %v; want %d", path, len(parts), err, want)
		}
	}
	parts, _ := Parts("/models/a-00002-of-00003.gguf")
	if want := []string{"/models/a-00001-of-00003.gguf", "/models/a-00002-of-00003.gguf", "/models/a-00003-of-00003.gguf"}; !cmp.Equal(parts, want) {
		t.Errorf("parts %v", parts)
	}
}

// le appends 64-bit numbers as the format has them.
func le(ns ...uint64) (b []byte) {
	for _, n := range ns {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

// nested is an array of arrays, n deep, in so few bytes a level.
func nested(n int) gguftest.Raw {
	var b []byte
	for range n {
		b = binary.LittleEndian.AppendUint32(b, gguftest.Array)
		b = append(b, le(1)...)
	}
	b = binary.LittleEndian.AppendUint32(b, gguftest.Uint8)
	return gguftest.Raw{Type: gguftest.Array, Bytes: append(b, le(0)...)}
}

func hostile() map[string]struct {
	file []byte
	says string
} {
	type file = gguftest.File
	made := func(change func(*file)) []byte {
		f := gguftest.Llama31()
		change(f)
		return f.Bytes()
	}
	set := func(key string, v any) []byte { return made(func(f *file) { f.Set(key, v) }) }
	huge := uint64(1) << 63
	million := uint64(1_000_000)
	text := func(length uint64) gguftest.Raw { return gguftest.Raw{Type: gguftest.String, Bytes: le(length)} }
	array := func(kind uint32, length uint64) gguftest.Raw {
		return gguftest.Raw{Type: gguftest.Array, Bytes: append(binary.LittleEndian.AppendUint32(nil, kind), le(length)...)}
	}
	const heads = "llama.attention.head_count_kv"
	return map[string]struct {
		file []byte
		says string
	}{
		"empty":                       {nil, "not a GGUF file"},
		"another format":              {[]byte("\x7fELF and so on, for quite a while"), "not a GGUF file"},
		"version 1":                   {made(func(f *file) { f.Version = 1 }), "version of GGUF"},
		"version 4":                   {made(func(f *file) { f.Version = 4 }), "version of GGUF"},
		"2^63 keys":                   {made(func(f *file) { f.KVCount = &huge }), "more than 4096 keys"},
		"a million keys":              {made(func(f *file) { f.KVCount = &million }), "more than 4096 keys"},
		"2^63 tensors":                {made(func(f *file) { f.TensorCount = &huge }), "more than 131072 tensors"},
		"tensors that are not":        {made(func(f *file) { n := uint64(100_000); f.TensorCount = &n; f.Tensors = nil }), "ends within its header"},
		"a text beyond the end":       {set("general.name", text(huge)), "ends within its header"},
		"a text of 2^64-1":            {set("general.name", text(math.MaxUint64)), "ends within its header"},
		"an array beyond":             {set("tokenizer.ggml.scores", array(gguftest.Float32, huge)), "items in one array"},
		"an array of texts":           {set("tokenizer.ggml.merges", array(gguftest.String, 1<<21)), "ends within its header"},
		"an array of a big one":       {set(heads, array(gguftest.Uint8, 1<<20)), "malformed"},
		"arrays in arrays":            {set(heads, nested(100_000)), "malformed"},
		"arrays in others":            {set("tokenizer.ggml.x", nested(2)), "malformed"},
		"a type of no kind":           {set("general.name", gguftest.Raw{Type: 99}), "malformed"},
		"an array of no kind":         {set(heads, array(77, 1)), "malformed"},
		"a key twice":                 {made(func(f *file) { f.KVs = append(f.KVs, f.KVs[0]) }), "malformed"},
		"a key with a space":          {set("llama.block_count ", uint32(1)), "malformed"},
		"a key without a name":        {set("", uint32(1)), "malformed"},
		"a long key":                  {set(strings.Repeat("k", 300), uint32(1)), "malformed"},
		"alignment 0":                 {set("general.alignment", uint32(0)), "malformed"},
		"alignment 7":                 {set("general.alignment", uint32(7)), "malformed"},
		"alignment, a text":           {set("general.alignment", "32"), "malformed"},
		"no architecture":             {made(func(f *file) { f.KVs = f.KVs[1:] }), "does not name an architecture"},
		"architecture, a number":      {set("general.architecture", uint32(1)), "does not name an architecture"},
		"no layers":                   {set("llama.block_count", uint32(0)), "how many layers"},
		"2^32-1 layers":               {set("llama.block_count", uint32(math.MaxUint32)), "malformed"},
		"2^63 layers":                 {set("llama.block_count", huge), "malformed"},
		"layers, a text":              {set("llama.block_count", "many"), "malformed"},
		"layers, a truth":             {set("llama.block_count", true), "does not belong there"},
		"heads, an empty list":        {set(heads, []int32{}), "malformed"},
		"heads, a list of texts":      {set(heads, []string{"8"}), "malformed"},
		"heads, 5,000 of them":        {set(heads, make([]int32, 5000)), "malformed"},
		"heads, 70,000 of them":       {set(heads, make([]int32, 70_000)), "malformed"},
		"heads, a huge number":        {set(heads, uint32(1<<31)), "malformed"},
		"heads, more than a card has": {set(heads, uint32(1<<20)), "kv_heads must be at most"},
		"no heads at all":             {set("llama.attention.head_count", uint32(0)), "need kv_heads and key_dim"},
		"a context beyond":            {set("llama.context_length", uint64(1)<<40), "malformed"},
		"a dimension too many":        {made(func(f *file) { f.Tensors[0].Dims = []uint64{1, 1, 1, 1, 1} }), "malformed"},
		"no dimension":                {made(func(f *file) { f.Tensors[0].Dims = nil }), "malformed"},
		"dimensions that overflow":    {made(func(f *file) { f.Data = 64; f.Tensors[0].Dims = []uint64{1 << 40, 1 << 40} }), "malformed"},
		"dimensions beyond the file":  {made(func(f *file) { f.Data = 64; f.Tensors[0].Dims = []uint64{1 << 20, 1 << 20} }), "shorter than the tensors"},
		"a tensor of no type":         {made(func(f *file) { f.Tensors[0].Type = 9999 }), "type that is not known"},
		"a tensor of a type gone":     {made(func(f *file) { f.Tensors[0].Type = 4 }), "type that is not known"},
		"no tensors":                  {made(func(f *file) { f.Tensors = nil }), "no tensors"},
		"a projector":                 {set("general.architecture", "clip"), "not a language model of its own"},
		"an adapter":                  {set("general.type", "adapter"), "not a language model of its own"},
		"pictures":                    {made(func(f *file) { f.Tensors[0].Name = "model.diffusion_model.input_blocks.0.0.weight" }), "not of a language model"},
	}
}

// Whatever a file claims, the answer is a sentence of our own that names nothing of it, and memory is taken only for bytes that
// are there.
func TestHostile(t *testing.T) {
	for name, test := range hostile() {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			card, err := Card(of1(test.file))
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Fatalf("no error, but %+v", card)
			}
			if !strings.Contains(err.Error(), test.says) {
				t.Errorf("says %q, not %q", err, test.says)
			}
			if s := clean.Sentence(err.Error(), 400); s != err.Error() {
				t.Errorf("the sentence %q would be shown as %q", err, s)
			}
			if took, most := after.TotalAlloc-before.TotalAlloc, uint64(1<<20+16*len(test.file)); took > most {
				t.Errorf("%d bytes of memory for a file of %d", took, len(test.file))
			}
		})
	}
}

// The library's own reader, which is not used, is what some of these files are made for: it ends the process or panics. The test
// keeps the list of hostile files honest.
func TestHostileToTheLibrary(t *testing.T) {
	t.Parallel()
	files := hostile()
	for _, name := range []string{"alignment 0", "layers, a truth", "2^63 layers", "arrays in others"} {
		path := filepath.Join(t.TempDir(), "model.gguf")
		write(t, path, files[name].file)
		panicked := func() (p any) {
			defer func() { p = recover() }()
			f, err := parser.ParseGGUFFile(path, parser.SkipLargeMetadata())
			if err == nil {
				f.Architecture()
			}
			return nil
		}()
		if panicked == nil {
			t.Errorf("%s: the library no longer panics", name)
		}
	}
}

// A download that ended early, at each hundredth of the header and on to the end of the file.
func TestTruncated(t *testing.T) {
	t.Parallel()
	f := gguftest.Gemma3()
	whole, header := f.Bytes(), len(f.Header())
	if _, err := Card(of1(whole)); err != nil {
		t.Fatal(err)
	}
	for percent := range 100 {
		for _, n := range []int{header * percent / 100, len(whole) * percent / 100} {
			if card, err := Card(of1(whole[:n])); err == nil {
				t.Errorf("%d bytes of %d pass as %+v", n, len(whole), card)
			}
		}
	}
}

func TestArchitectureIsCleaned(t *testing.T) {
	t.Parallel()
	const name = "lla\x1b[31mma\u202e\n/etc/passwd" + "!"
	f := gguftest.Llama31()
	for i := range f.KVs {
		f.KVs[i].Key = strings.Replace(f.KVs[i].Key, "llama.", "x.", 1)
	}
	f.Set("general.architecture", name)
	card, err := Card(of1(f.Bytes()))
	if err == nil {
		t.Fatalf("keys of another architecture pass: %+v", card)
	}
	if strings.Contains(err.Error(), "etc") {
		t.Errorf("the error repeats the file: %q", err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
