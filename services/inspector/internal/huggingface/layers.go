package huggingface

import (
	"errors"
	"slices"
	"strings"

	cards "durward.internal/services/inspector/internal/card"
	"durward.internal/services/platform/model"
)

func (c *config) hidden() uint64 { return first(c.HiddenSize, c.NEmbd, c.DModel) }
func (c *config) heads() uint64  { return first(c.NumAttentionHeads, c.NHead, c.NumHeads) }

func (c *config) feedForward() uint64 {
	experts := max(first(c.NumExpertsPerTok, c.NumExpertsUsed, c.MoEK, 1), c.MoETopK.most())
	return max(uint64(c.NInner), uint64(c.FFNHiddenSize), c.MoEIntermediateSize.most()*experts, c.IntermediateSize.most())
}

// headDim is the published one; hidden / heads is right only where none is published.
func (c *config) headDim() uint64 {
	if c.HeadDim > 0 {
		return uint64(c.HeadDim)
	}
	h := c.heads()
	switch {
	case h == 0:
		return 0
	case c.zamba(): // attention sees the hidden state beside the embedding, twice as wide (transformers' configuration_zamba2.py)
		return first(c.AttnHeadDim, size(2*c.hidden()/h))
	}
	return c.hidden() / h
}

func (c *config) zamba() bool { return c.ModelType == "zamba" || c.ModelType == "zamba2" }

// thinned reports whether layers are listed one by one, with how many heads share keys and values in each.
func (c *config) thinned() bool { return c.ModelType == "nemotron-nas" && len(c.BlockConfigs) > 0 }

// kvHeads is in vLLM's order (get_total_num_kv_heads in vllm/transformers_utils/model_arch_config_convertor.py).
func (c *config) kvHeads(i uint64) uint64 {
	switch {
	case c.thinned():
		return c.heads() / max(1, uint64(c.BlockConfigs[i].Attention.HeadsInGroup))
	case c.MultiQuery && !c.NewDecoder: // Falcon 7B says num_kv_heads beside it, which its class passes over
		return 1
	}
	for _, said := range []list{c.NHeadKV, c.NumKVHeads, c.NumKeyValueHeads, c.MultiQueryGroups, c.AttentionGroups} {
		if len(said) > 0 {
			return said.at(i)
		}
	}
	return c.heads()
}

// Words for layers, as kinds of this file.
const (
	full      = "full"
	sliding   = "sliding"
	chunked   = "chunked"
	linear    = "linear"
	mamba     = "mamba"
	both      = "both"
	shortConv = "short convolution"
	lightning = "lightning"
	none      = "none"
)

// words are what layer_types and layers_block_type say.
var words = map[string]string{
	"full_attention": full, "attention": full, "global_attention": full, "self_attention": full,
	"sliding_attention": sliding, "local_attention": sliding, "sliding_window_attention": sliding,
	"chunked_attention": chunked,
	"linear_attention":  linear,
	"mamba":             mamba, "mamba2": mamba, "ssm": mamba,
	"hybrid": both,
	"conv":   shortConv,
	"mlp":    none, "moe": none,
}

// periods are architectures whose older configurations say nothing of which layers slide: every nth does not (transformers'
// configuration_*.py, where layer_types is filled in).
var periods = map[string]uint64{"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2}

// stateOnly are architectures of state spaces throughout.
var stateOnly = []string{"mamba", "mamba2", "falcon_mamba"}

// kind says which kind layer i of n is.
func (c *config) kind(i, n uint64) (string, error) {
	types := c.LayerTypes
	if len(types) == 0 {
		types = c.LayersBlockType
	}
	switch {
	case c.thinned():
		if uint64(len(c.BlockConfigs)) < n {
			return "", errors.New("config.json names the kinds of fewer layers than it has")
		}
		if a := c.BlockConfigs[i].Attention; a.NoOp || a.Linear {
			return none, nil
		}
		return full, nil
	case len(types) > 0:
		if uint64(len(types)) < n {
			return "", errors.New("config.json names the kinds of fewer layers than it has")
		}
		k, ok := words[types[i]]
		switch {
		case k == linear && strings.HasPrefix(c.ModelType, "minimax"):
			return lightning, nil // transformers' word for what attn_type_list calls 0
		case ok:
			return k, nil
		}
		return "", errors.New("config.json has a layer of a kind that is not known")
	case c.HybridOverridePattern != "":
		if uint64(len(c.HybridOverridePattern)) < n {
			return "", errors.New("config.json names the kinds of fewer layers than it has")
		}
		switch c.HybridOverridePattern[i] {
		case 'M':
			return mamba, nil
		case '*':
			return full, nil
		case '-', 'E':
			return none, nil
		}
		return "", errors.New("config.json has a layer of a kind that is not known")
	case c.pattern() != nil:
		switch p := c.pattern(); {
		case uint64(len(p)) < n:
			return "", errors.New("config.json names the kinds of fewer layers than it has")
		case p[i] == 1.0:
			return sliding, nil
		}
		return full, nil
	case c.LinearAttn != nil:
		// Layers are counted from 1 there.
		if slices.Contains(c.LinearAttn.KDALayers, i+1) {
			return linear, nil
		}
		return full, nil
	case len(c.AttnTypeList) > 0:
		if c.AttnTypeList.at(i) == 0 {
			return lightning, nil
		}
		return full, nil
	case len(c.AttnIndices) > 0:
		if slices.Contains(c.AttnIndices, i) {
			return full, nil
		}
		return mamba, nil
	case slices.Contains(stateOnly, c.ModelType):
		return mamba, nil
	case c.ModelType == "falcon_h1":
		return both, nil
	case c.AttnPeriod > 0 && c.MambaDState > 0: // Jamba
		if i%uint64(c.AttnPeriod) == uint64(c.AttnOffset) {
			return full, nil
		}
		return mamba, nil
	case c.LinearNumValueHeads > 0:
		every := first(c.FullAttentionInterval, 4)
		if (i+1)%every == 0 {
			return full, nil
		}
		return linear, nil
	case c.AttentionChunkSize > 0:
		// Llama 4: a layer without rotary positions sees everything. 0 in the list is one of those; without a list it is every 4th.
		if len(c.NoRopeLayers) > 0 && c.NoRopeLayers.at(i) == 0 || len(c.NoRopeLayers) == 0 && (i+1)%4 == 0 {
			return full, nil
		}
		return chunked, nil
	case c.slides(i):
		return sliding, nil
	}
	return full, nil
}

// pattern says layer by layer which ones slide; their heads and widths are their own (vllm/model_executor/models/mimo_v2.py).
func (c *config) pattern() []any {
	p, _ := c.HybridLayerPattern.([]any)
	return p
}

// slides reports whether layer i sees only a window, where no list says so.
func (c *config) slides(i uint64) bool {
	if c.SlidingWindow.at(i) == 0 || c.UseSlidingWindow != nil && !*c.UseSlidingWindow {
		return false
	}
	if c.MaxWindowLayers > 0 {
		// Qwen2: the layers below see everything, and all of them unless use_sliding_window says so.
		return c.UseSlidingWindow != nil && i >= uint64(c.MaxWindowLayers)
	}
	every := periods[c.ModelType]
	switch p := c.SlidingWindowPattern.(type) {
	case float64:
		if p >= 1 && p <= maxLayers {
			every = uint64(p)
		}
	case string: // EXAONE 4: "LLLG"
		if p != "" {
			return p[i%uint64(len(p))] != 'G'
		}
	}
	return every == 0 || (i+1)%every != 0
}

// attentions is how many times a layer attends, and keeps what it saw: LongCat-Flash's twice (vllm/model_executor/models/longcat_flash.py).
// transformers counts each of those in num_hidden_layers, which the published configurations do not say.
func (c *config) attentions() int {
	if strings.HasPrefix(c.ModelType, "longcat") && (c.NumHiddenLayers == 0 || c.NumHiddenLayers == c.NumLayers) {
		return 2
	}
	return 1
}

// layer is what layer i of n keeps.
func (c *config) layer(i, n uint64) (model.Layers, error) {
	kind, err := c.kind(i, n)
	if err != nil {
		return model.Layers{}, err
	}
	l := model.Layers{Count: 1, Kind: model.Full, KVHeads: uint32(c.kvHeads(i)), KeyDim: uint32(c.headDim()), ValueDim: uint32(c.headDim())}
	if c.VHeadDim > 0 && c.KVLoraRank == 0 {
		l.ValueDim = uint32(c.VHeadDim)
	}
	l.Shared = c.NumKVSharedLayers > 0 && i+uint64(c.NumKVSharedLayers) >= n
	switch kind {
	case full, both:
		switch {
		case c.KVLoraRank > 0 && c.ModelType == "minicpm3":
			// vLLM keeps what is computed of the compressed vector, values as wide as keys (vllm/model_executor/models/minicpm3.py).
			wide := uint32(c.QKNopeHeadDim + c.QKRopeHeadDim)
			l.KVHeads, l.KeyDim, l.ValueDim = uint32(c.heads()), wide, wide
		case c.KVLoraRank > 0:
			l.Kind, l.KVHeads, l.KeyDim, l.ValueDim = model.Latent, 1, uint32(c.KVLoraRank+c.QKRopeHeadDim), 0
		case c.GlobalHeadDim > 0:
			l.KeyDim, l.ValueDim = uint32(c.GlobalHeadDim), uint32(c.GlobalHeadDim)
			if c.NumGlobalKeyValueHeads > 0 {
				l.KVHeads = uint32(c.NumGlobalKeyValueHeads)
			}
		}
	case sliding, chunked:
		l.Kind, l.Window = model.Sliding, uint32(first(size(c.SlidingWindow.at(i)), c.SlidingWindowSize))
		if c.pattern() != nil {
			l.KVHeads = uint32(first(c.SWANumKeyValueHeads, size(l.KVHeads)))
			l.KeyDim, l.ValueDim = uint32(first(c.SWAHeadDim, size(l.KeyDim))), uint32(first(c.SWAVHeadDim, c.SWAHeadDim, size(l.ValueDim)))
		}
		if kind == chunked {
			l.Window = uint32(c.AttentionChunkSize)
		}
		if l.Window == 0 {
			return model.Layers{}, errors.New("config.json has layers that see a window, and does not say how wide it is")
		}
	}
	var state uint64
	switch kind {
	case none:
		return cards.None(), nil
	case full, sliding, chunked, both:
		switch {
		case l.KVHeads == 0 && len(c.NumKeyValueHeads) > 1:
			l = cards.None() // the list has 0 for layers without attention
		case l.KVHeads == 0 || l.KeyDim == 0:
			return model.Layers{}, errors.New("config.json does not say how many heads attention has, or how wide they are")
		}
		if kind != both {
			return l, nil
		}
		state = c.mambaState()
	case linear:
		state = c.linearState()
	case lightning:
		state = cards.Product(c.heads(), c.headDim(), c.headDim())
	case shortConv:
		state = cards.Product(first(c.ConvLCache, 1)-1, c.hidden())
	case mamba:
		state = c.mambaState()
	}
	if state == 0 {
		return model.Layers{}, errors.New("config.json does not say how large the state of its recurrent layers is")
	}
	// In F32, as llama.cpp keeps it; vLLM keeps it so, or smaller.
	if kind != both {
		l = model.Layers{Count: 1, Kind: model.Recurrent}
	}
	l.StateBytes = cards.Product(4, state)
	return l, nil
}

// linearState is the elements of a gated delta net's state: its convolution's past inputs, and one matrix for each head
// (vLLM: MambaStateShapeCalculator.gated_delta_net_state_shape, kda_state_shape).
func (c *config) linearState() uint64 {
	if a := c.LinearAttn; a != nil {
		heads, dim := uint64(a.NumHeads), uint64(a.HeadDim)
		return cards.Bounded(cards.Product(3, heads, dim, first(a.ShortConvKernelSize, 4)-1) + cards.Product(heads, dim, dim))
	}
	keys := cards.Product(uint64(c.LinearNumKeyHeads), uint64(c.LinearKeyHeadDim))
	values := cards.Product(uint64(c.LinearNumValueHeads), uint64(c.LinearValueHeadDim))
	return cards.Bounded(cards.Product(2*keys+values, first(c.LinearConvKernelDim, 4)-1) + cards.Product(values, uint64(c.LinearKeyHeadDim)))
}

// mambaState is the elements of a state space's state (vLLM: MambaStateShapeCalculator.mamba1_state_shape, mamba2_state_shape).
func (c *config) mambaState() uint64 {
	state := first(c.MambaDState, c.SSMStateSize, c.StateSize)
	kernel := first(c.MambaDConv, c.ConvKernel, 4)
	expand := first(c.MambaExpand, c.Expand, 2)
	heads := first(c.MambaNHeads, c.MambaNumHeads)
	switch {
	case heads > 0:
	case c.ModelType == "mamba2":
		heads = uint64(c.NumHeads)
	case c.ModelType == "zamba2":
		heads = uint64(c.NMambaHeads)
	}
	dim := first(c.MambaHeadDim, c.MambaHeaddim)
	if d, ok := c.MambaDHead.(float64); ok && d > 0 && d < maxSize {
		dim = uint64(d)
	}
	if dim == 0 && heads > 0 {
		dim = cards.Product(expand, c.hidden()) / heads
		if c.ModelType == "mamba2" && c.HeadDim > 0 {
			dim = uint64(c.HeadDim)
		}
	}
	inner := first(c.MambaDSSM)
	if inner == 0 {
		inner = cards.Product(heads, dim)
	}
	if inner == 0 { // Mamba 1 has no heads
		inner = cards.Product(expand, c.hidden())
		return cards.Bounded(cards.Product(inner, kernel-1) + cards.Product(inner, state))
	}
	groups := first(c.MambaNGroups, c.MambaNgroups, c.NGroups, 1)
	return cards.Bounded(cards.Product(inner+cards.Product(2, groups, state), kernel-1) + cards.Product(inner, state))
}
