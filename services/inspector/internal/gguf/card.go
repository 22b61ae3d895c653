package gguf

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	parser "github.com/gpustack/gguf-parser-go"

	cards "durward.internal/services/inspector/internal/card"
	"durward.internal/services/platform/model"
)

// maxLayers is far beyond what is published (126); llama.cpp takes 512.
const maxLayers = 4096

// maxParts is how many files a split model may have.
const maxParts = 256

// maxSize bounds any one number of a header that a size is made of; a product of four is then below 2^80, and products are
// checked.
const maxSize = 1 << 30

// part is how llama-gguf-split names files.
var part = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)

// Parts are the files of the model that path is a part of, in order; path alone where it is none.
func Parts(path string) ([]string, error) {
	m := part.FindStringSubmatch(filepath.Base(path))
	if m == nil {
		return []string{path}, nil
	}
	// The expression lets five digits through, so neither conversion fails.
	n, _ := strconv.Atoi(m[2])
	of, _ := strconv.Atoi(m[3])
	if n < 1 || n > of || of > maxParts {
		return nil, fmt.Errorf("the file's name says that it is one of more than %d parts, or none of them", maxParts)
	}
	parts := make([]string, of)
	for i := range parts {
		parts[i] = filepath.Join(filepath.Dir(path), fmt.Sprintf("%s-%05d-of-%05d.gguf", m[1], i+1, of))
	}
	return parts, nil
}

// Source is one file of a model. It is read from its start.
type Source interface {
	io.Reader
	Stat() (os.FileInfo, error)
}

// Card reads the header of each part, in order, and makes the card of the model. Every error is one sentence.
func Card(parts []Source) (card model.Card, err error) {
	defer func() {
		// The library answers a value of an unexpected type with a panic.
		if r := recover(); r != nil {
			card, err = model.Card{}, errors.New("the file's header has a value of a kind that does not belong there")
		}
	}()
	var whole parser.GGUFFile
	for i, p := range parts {
		info, err := p.Stat()
		if err != nil {
			return model.Card{}, errors.New("the file cannot be read")
		}
		h, err := read(p, info.Size())
		if err != nil {
			if len(parts) > 1 {
				return model.Card{}, fmt.Errorf("part %d of %d: %w", i+1, len(parts), err)
			}
			return model.Card{}, err
		}
		if i == 0 {
			whole.Header.MetadataKV = h.keys // those of further parts only say which part it is
		}
		whole.TensorInfos = append(whole.TensorInfos, h.tensors...)
		if len(whole.TensorInfos) > maxTensors {
			return model.Card{}, fmt.Errorf("the files have more than %d tensors", maxTensors)
		}
		size, err := bytesOf(h.tensors)
		if err != nil {
			return model.Card{}, err
		}
		if size > uint64(max(0, h.size-h.data)) {
			return model.Card{}, errors.New("the file is shorter than the tensors that its header lists")
		}
	}
	if err := sound(whole.Header.MetadataKV); err != nil {
		return model.Card{}, err
	}
	card, err = of(&whole)
	if err != nil {
		return model.Card{}, err
	}
	if err := card.Check(); err != nil {
		return model.Card{}, err
	}
	return card, nil
}

// sizes are the endings of keys whose numbers become sizes or counts of layers. Their arrays are kept.
var sizes = []string{
	".attention.head_count", ".attention.head_count_kv", ".attention.key_length", ".attention.key_length_mla",
	".attention.key_length_swa", ".attention.kv_lora_rank", ".attention.shared_kv_layers", ".attention.sliding_window",
	".attention.sliding_window_pattern", ".attention.value_length", ".attention.value_length_mla",
	".attention.value_length_swa", ".block_count", ".context_length", ".embedding_length", ".expert_count",
	".expert_feed_forward_length", ".expert_used_count", ".feed_forward_length", ".full_attention_interval", ".kda.head_dim",
	".nextn_predict_layers", ".rope.dimension_count", ".shortconv.l_cache", ".ssm.conv_kernel", ".ssm.group_count",
	".ssm.inner_size", ".ssm.state_size", ".ssm.time_step_rank", ".token_shift_count", ".vocab_size", ".wkv.head_size",
}

// kept reports whether an array's values are used.
func kept(key string) bool {
	return slices.ContainsFunc(sizes, func(s string) bool { return strings.HasSuffix(key, s) })
}

// sound checks every number that the library makes sizes of, before it does.
func sound(keys parser.GGUFMetadataKVs) error {
	for _, kv := range keys {
		if !kept(kv.Key) {
			continue
		}
		most := uint64(maxSize)
		if strings.HasSuffix(kv.Key, ".block_count") {
			most = maxLayers
		}
		values := []any{kv.Value}
		if a, ok := kv.Value.(parser.GGUFMetadataKVArrayValue); ok {
			if values = a.Array; len(values) == 0 || len(values) > maxLayers {
				return errMalformed
			}
		}
		for _, v := range values {
			if n, ok := number(v); !ok || n > most {
				return errMalformed
			}
		}
	}
	return nil
}

// number is a value as a size; a boolean is one too, since patterns of layers are lists of them.
func number(v any) (uint64, bool) {
	switch v := v.(type) {
	case uint8:
		return uint64(v), true
	case int8:
		return uint64(v), true
	case uint16:
		return uint64(v), true
	case int16:
		return uint64(v), true
	case uint32:
		return uint64(v), true
	case int32:
		return uint64(v), true
	case uint64:
		return v, true
	case int64:
		return uint64(v), true
	case bool:
		return 0, true
	}
	return 0, false // a fraction or a text is no size
}

// bytesOf is what tensors take in the file. It refuses what overflows.
func bytesOf(tensors parser.GGUFTensorInfos) (uint64, error) {
	var sum uint64
	for _, t := range tensors {
		trait, _ := t.Type.Trait() // read lets only known types through
		n := uint64(1)
		for _, d := range t.Dimensions {
			hi, lo := bits.Mul64(n, d)
			if hi != 0 || lo > math.MaxInt64/trait.TypeSize {
				return 0, errMalformed
			}
			n = lo
		}
		// The first dimension is whole blocks; without that the parts of it still take one.
		sum += (n + trait.BlockSize - 1) / trait.BlockSize * trait.TypeSize
		if sum > math.MaxInt64 {
			return 0, errMalformed
		}
	}
	return sum, nil
}

// of makes the card of what all parts say.
func of(f *parser.GGUFFile) (model.Card, error) {
	kind, _ := f.Header.MetadataKV.Get("general.type")
	name, ok := f.Header.MetadataKV.Get("general.architecture")
	if !ok || name.ValueType != parser.GGUFMetadataValueTypeString {
		return model.Card{}, errors.New("the file does not name an architecture")
	}
	if kind.Value == "adapter" || kind.Value == "imatrix" || kind.Value == "mmproj" || name.Value == "clip" || name.Value == "controlvector" {
		return model.Card{}, errors.New("the file is an adapter, a projector or a matrix for quantising, not a language model of its own")
	}
	a := f.Architecture()
	if a.Type != "model" || a.Architecture == "diffusion" {
		return model.Card{}, errors.New("the file is not of a language model")
	}
	if a.BlockCount == 0 {
		return model.Card{}, errors.New("the file does not say how many layers the model has")
	}
	weights, err := bytesOf(f.TensorInfos)
	if err != nil {
		return model.Card{}, err
	}
	if len(f.TensorInfos) == 0 {
		return model.Card{}, errors.New("the file has no tensors")
	}
	card := model.Card{
		Architecture:   cards.Name(a.Architecture),
		WeightsMiB:     cards.MiB(weights),
		HostWeightsMiB: cards.Narrow(hostBytes(f.TensorInfos) >> 20),
		OutputMiB:      cards.MiB(outputBytes(f.TensorInfos)),
		Context:        cards.Narrow(a.MaximumContextLength),
		Hidden:         cards.Narrow(a.EmbeddingLength),
		FeedForward:    cards.Narrow(feedForward(a)),
		Heads:          cards.Narrow(a.AttentionHeadCount),
		Vocabulary:     cards.Narrow(a.VocabularyLength),
	}
	// Rounding up must not make it more than there is.
	card.OutputMiB = min(card.OutputMiB, card.WeightsMiB-min(card.HostWeightsMiB, card.WeightsMiB))
	experts, from, err := expertBytes(f.TensorInfos)
	if err != nil {
		return model.Card{}, err
	}
	card.ExpertsMiB, card.ExpertsFrom = min(cards.Narrow(experts>>20), card.WeightsMiB-min(card.HostWeightsMiB, card.WeightsMiB)-card.OutputMiB), from
	for i := range a.BlockCount {
		card.Layers = cards.Append(card.Layers, layer(a, i))
	}
	return card, nil
}

// expertTensor is one that llama.cpp's --cpu-moe keeps with the host (LLM_FFN_EXPS_REGEX in common/common.h).
var expertTensor = regexp.MustCompile(`^blk\.(\d{1,4})\.ffn_(up|down|gate|gate_up)_(ch|)exps`)

// expertBytes are the experts of a mixture, and the first layer that has some.
func expertBytes(tensors parser.GGUFTensorInfos) (sum uint64, from uint32, err error) {
	from = maxLayers
	for _, t := range tensors {
		m := expertTensor.FindStringSubmatch(t.Name)
		if m == nil {
			continue
		}
		n, err := bytesOf(parser.GGUFTensorInfos{t})
		if err != nil {
			return 0, 0, err
		}
		layer, _ := strconv.ParseUint(m[1], 10, 32) // the expression lets four digits through
		sum, from = sum+n, min(from, uint32(layer))
	}
	if sum == 0 {
		from = 0
	}
	return sum, min(from, model.MaxLayers-1), nil
}

// hostBytes are the weights that llama.cpp leaves in the host's memory whatever is offloaded: the input embeddings, and those of
// each layer (Gemma 3n) (src/llama-model.cpp: the device of LLM_TENSOR_LAYER_INPUT is the CPU). Where the output layer has no
// tensor of its own, the embeddings are loaded once more as that (TENSOR_DUPLICATED), so as much goes to the GPUs as lies in the
// file.
func hostBytes(tensors parser.GGUFTensorInfos) uint64 {
	var sum uint64
	for _, name := range []string{"token_embd.weight", "per_layer_token_embd.weight"} {
		t, ok := tensors.Get(name)
		if !ok {
			continue
		}
		if _, own := tensors.Get("output.weight"); !own && name == "token_embd.weight" {
			continue
		}
		n, err := bytesOf(parser.GGUFTensorInfos{t})
		if err != nil {
			return 0
		}
		sum += n
	}
	return sum
}

// outputBytes is the output layer: its own tensor, else the embeddings, which are loaded as that.
func outputBytes(tensors parser.GGUFTensorInfos) uint64 {
	for _, name := range []string{"output.weight", "token_embd.weight"} {
		if t, ok := tensors.Get(name); ok {
			n, err := bytesOf(parser.GGUFTensorInfos{t})
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}

// feedForward is the widest that a token's activations get in a feed-forward layer.
func feedForward(a parser.GGUFArchitecture) uint64 {
	widest := a.ExpertFeedForwardLength * uint64(a.ExpertUsedCount)
	for _, n := range a.FeedForwardLength {
		widest = max(widest, n)
	}
	return widest
}

// layer is what layer i keeps, attention and a recurrent state at once in some models (Falcon-H1). It follows llama.cpp's
// llama_kv_cache and llama_memory_recurrent, as the library's own estimate does, but for latent layers.
func layer(a parser.GGUFArchitecture, i uint64) model.Layers {
	attention, recurrent := memory(a, i)
	l := model.Layers{Count: 1, Kind: model.Recurrent}
	if attention {
		l = attentionLayer(a, i)
	}
	if recurrent {
		l.StateBytes = stateBytes(a)
	}
	return l
}

// memory says which kinds of memory layer i has. The rules are the library's memoryKindOfLayer, which it does not export.
func memory(a parser.GGUFArchitecture, i uint64) (attention, recurrent bool) {
	switch {
	case a.AttentionHybrid && slices.Contains(a.AttentionHeadCountKVs, 0):
		attention = i < uint64(len(a.AttentionHeadCountKVs)) && a.AttentionHeadCountKVs[i] > 0
		return attention, !attention
	case a.AttentionHybrid && a.FullAttentionInterval > 1:
		attention = (i+1)%uint64(a.FullAttentionInterval) == 0
		return attention, !attention
	case a.AttentionHybrid:
		return true, true
	case a.AttentionRecurrent:
		return false, true
	}
	return true, false
}

func attentionLayer(a parser.GGUFArchitecture, i uint64) model.Layers {
	heads := a.AttentionHeadCountKV
	if i < uint64(len(a.AttentionHeadCountKVs)) {
		heads = a.AttentionHeadCountKVs[i]
	}
	l := model.Layers{
		Count: 1, Kind: model.Full,
		KVHeads: cards.Narrow(heads), KeyDim: a.AttentionKeyLength, ValueDim: a.AttentionValueLength,
	}
	switch {
	case a.AttentionKeyLengthMLA > 0 && a.AttentionValueLengthMLA > 0:
		// The file's key_length is then the width of the compressed vector, kv_lora_rank + rope.dimension_count, and that is all
		// that is kept (llama.cpp PR 12801 and, without a second copy as values, PR 19067). The *_mla lengths are those of the
		// heads that are computed from it; the library's estimate takes them for what is kept.
		l.Kind, l.KVHeads, l.ValueDim = model.Latent, 1, 0
	case i < uint64(len(a.AttentionSlidingWindowLayers)) && a.AttentionSlidingWindowLayers[i] && a.AttentionSlidingWindow > 0:
		l.Kind, l.Window = model.Sliding, cards.Narrow(a.AttentionSlidingWindow)
		if a.AttentionKeyLengthSWA > 0 {
			l.KeyDim = a.AttentionKeyLengthSWA
		}
		if a.AttentionValueLengthSWA > 0 {
			l.ValueDim = a.AttentionValueLengthSWA
		}
	}
	if first := uint64(a.AttentionKVFromStartLayerCount); first > 0 && i >= first || unused(a, i) {
		l.Shared = true
	}
	if heads == 0 {
		return cards.None() // a layer without attention (Deci's dummy blocks)
	}
	return l
}

// unused reports whether layer i is one of those that predict further tokens and have no part in the cache of the model itself
// (the library's nextNWithoutKV).
func unused(a parser.GGUFArchitecture, i uint64) bool {
	if a.NextNPredictLayers == 0 || i+uint64(a.NextNPredictLayers) < a.BlockCount {
		return false
	}
	interleaves := a.AttentionHybrid && (a.FullAttentionInterval > 1 || slices.Contains(a.AttentionHeadCountKVs, 0))
	return interleaves || slices.Contains([]string{"step35", "hy-v3", "glm-dsa", "mimo2", "deepseek32"}, a.Architecture)
}

// stateBytes is what a recurrent layer keeps for one sequence, in F32 (llama.cpp: llama_hparams::n_embd_r and n_embd_s).
func stateBytes(a parser.GGUFArchitecture) uint64 {
	var r, s uint64
	hidden, heads := cards.Bounded(a.EmbeddingLength), cards.Bounded(a.AttentionHeadCount)
	switch {
	case a.RWKVHeadSize > 0:
		r = cards.Product(uint64(a.RWKVTokenShiftCount), hidden)
		s = cards.Product(uint64(a.RWKVHeadSize), hidden)
	case a.ShortConvLCache > 0:
		r = cards.Product(uint64(a.ShortConvLCache)-1, hidden)
	case a.KDAHeadDim > 0:
		kernel := uint64(3)
		if a.SSMConvolutionKernel > 0 {
			kernel = uint64(a.SSMConvolutionKernel)
		}
		r = cards.Product(3, kernel-1, heads, uint64(a.KDAHeadDim))
		s = cards.Product(uint64(a.KDAHeadDim), uint64(a.KDAHeadDim), heads)
	default:
		if a.SSMConvolutionKernel > 0 {
			groups := cards.Product(2, uint64(a.SSMGroupCount), uint64(a.SSMStateSize))
			r = cards.Product(uint64(a.SSMConvolutionKernel)-1, groups+uint64(a.SSMInnerSize))
		}
		s = cards.Product(uint64(a.SSMStateSize), uint64(a.SSMInnerSize))
	}
	return cards.Product(4, cards.Bounded(r+s))
}
