package huggingface

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	cards "durward.internal/services/inspector/internal/card"
	"durward.internal/services/platform/model"
)

// Bounds of what a configuration says. What is published stays far below.
const (
	maxLayers = 4096
	maxSize   = 1 << 30
)

// config is what of config.json decides how much memory a model takes. Names are those of transformers' configuration classes;
// where these differ, all of them are listed and the first that is there counts.
type config struct {
	Architectures []string `json:"architectures"`
	ModelType     string   `json:"model_type"`

	// The part that is the language model, where a model has others.
	Text     json.RawMessage `json:"text_config"`
	LLM      json.RawMessage `json:"llm_config"`
	Language json.RawMessage `json:"language_config"`
	Thinker  json.RawMessage `json:"thinker_config"`

	NumHiddenLayers size `json:"num_hidden_layers"`
	NLayer          size `json:"n_layer"`
	NLayers         size `json:"n_layers"`
	NumLayers       size `json:"num_layers"`

	HiddenSize size `json:"hidden_size"`
	NEmbd      size `json:"n_embd"`
	DModel     size `json:"d_model"`

	NumAttentionHeads size `json:"num_attention_heads"`
	NHead             size `json:"n_head"`

	NumKeyValueHeads list `json:"num_key_value_heads"`
	NumKVHeads       list `json:"num_kv_heads"`
	NHeadKV          list `json:"n_head_kv"`             // Falcon's first configurations
	MultiQueryGroups list `json:"multi_query_group_num"` // ChatGLM and GLM-4
	AttentionGroups  list `json:"num_attention_groups"`  // Step 3.5
	MultiQuery       bool `json:"multi_query"`
	// NewDecoder: Falcon 40B and later have more than one head for keys and values, whatever multi_query says.
	NewDecoder bool `json:"new_decoder_architecture"`
	// BlockConfigs are Nemotron's layers that a search has thinned out, one by one (nemotron-nas).
	BlockConfigs blocks `json:"block_configs"`

	HeadDim     size `json:"head_dim"`
	VHeadDim    size `json:"v_head_dim"`
	VocabSize   size `json:"vocab_size"`
	PaddedVocab size `json:"padded_vocab_size"`

	IntermediateSize    list `json:"intermediate_size"`
	NInner              size `json:"n_inner"`
	FFNHiddenSize       size `json:"ffn_hidden_size"`
	MoEIntermediateSize list `json:"moe_intermediate_size"` // ERNIE's by what a token is of, Hunyuan's by layer
	NumExpertsPerTok    size `json:"num_experts_per_tok"`
	MoETopK             list `json:"moe_topk"`
	MoEK                size `json:"moe_k"`

	MaxPositionEmbeddings size `json:"max_position_embeddings"`
	NPositions            size `json:"n_positions"`
	SeqLength             size `json:"seq_length"`
	RopeScaling           rope `json:"rope_scaling"`
	RopeParameters        rope `json:"rope_parameters"`

	LayerTypes             []string `json:"layer_types"`
	LayersBlockType        []string `json:"layers_block_type"`
	HybridOverridePattern  string   `json:"hybrid_override_pattern"`
	HybridLayerPattern     any      `json:"hybrid_layer_pattern"` // MiMo-V2: 1 slides, 0 does not
	SlidingWindow          list     `json:"sliding_window"`
	SlidingWindowSize      size     `json:"sliding_window_size"`
	SWANumKeyValueHeads    size     `json:"swa_num_key_value_heads"`
	SWAHeadDim             size     `json:"swa_head_dim"`
	SWAVHeadDim            size     `json:"swa_v_head_dim"`
	SlidingWindowPattern   any      `json:"sliding_window_pattern"`
	UseSlidingWindow       *bool    `json:"use_sliding_window"`
	MaxWindowLayers        size     `json:"max_window_layers"`
	AttentionChunkSize     size     `json:"attention_chunk_size"`
	NoRopeLayers           list     `json:"no_rope_layers"`
	NumKVSharedLayers      size     `json:"num_kv_shared_layers"`
	GlobalHeadDim          size     `json:"global_head_dim"`
	NumGlobalKeyValueHeads size     `json:"num_global_key_value_heads"`

	KVLoraRank    size `json:"kv_lora_rank"`
	QKRopeHeadDim size `json:"qk_rope_head_dim"`
	QKNopeHeadDim size `json:"qk_nope_head_dim"`

	// Linear attention (Qwen3-Next and later).
	FullAttentionInterval size `json:"full_attention_interval"`
	LinearNumKeyHeads     size `json:"linear_num_key_heads"`
	LinearNumValueHeads   size `json:"linear_num_value_heads"`
	LinearKeyHeadDim      size `json:"linear_key_head_dim"`
	LinearValueHeadDim    size `json:"linear_value_head_dim"`
	LinearConvKernelDim   size `json:"linear_conv_kernel_dim"`
	// Kimi Linear.
	LinearAttn *struct {
		KDALayers           list `json:"kda_layers"`
		FullAttnLayers      list `json:"full_attn_layers"`
		HeadDim             size `json:"head_dim"`
		NumHeads            size `json:"num_heads"`
		ShortConvKernelSize size `json:"short_conv_kernel_size"`
	} `json:"linear_attn_config"`
	// MiniMax: 0 is linear attention, 1 full.
	AttnTypeList list `json:"attn_type_list"`

	// State spaces. Mamba, Mamba-2 and their hybrids name the same things differently.
	MambaDState    size `json:"mamba_d_state"`
	SSMStateSize   size `json:"ssm_state_size"`
	StateSize      size `json:"state_size"`
	MambaDConv     size `json:"mamba_d_conv"`
	ConvKernel     size `json:"conv_kernel"`
	MambaExpand    size `json:"mamba_expand"`
	Expand         size `json:"expand"`
	MambaDSSM      size `json:"mamba_d_ssm"`
	MambaNHeads    size `json:"mamba_n_heads"`
	MambaNumHeads  size `json:"mamba_num_heads"`
	MambaDHead     any  `json:"mamba_d_head"` // a number, or "auto"
	MambaHeadDim   size `json:"mamba_head_dim"`
	MambaNGroups   size `json:"mamba_n_groups"`
	NGroups        size `json:"n_groups"`
	AttnPeriod     size `json:"attn_layer_period"`
	AttnOffset     size `json:"attn_layer_offset"`
	AttnIndices    list `json:"attn_layer_indices"` // Bamba: these attend, the others are state spaces
	NMambaHeads    size `json:"n_mamba_heads"`      // Zamba2
	MambaHeaddim   size `json:"mamba_headdim"`
	MambaNgroups   size `json:"mamba_ngroups"`
	AttnHeadDim    size `json:"attention_head_dim"`
	ConvLCache     size `json:"conv_L_cache"`
	NumHeads       size `json:"num_heads"`
	MambaHeadDim2  size `json:"mamba2_head_dim"`
	NumExpertsUsed size `json:"num_experts_per_token"`
}

// size is a number of things. null and what is below zero are none; a fraction, a text or a number beyond the bound is an error.
type size uint64

func (s *size) UnmarshalJSON(b []byte) error {
	*s = 0
	if bytes.Equal(b, []byte("null")) {
		return nil
	}
	var n float64 // Python writes 2.0 for some
	if err := json.Unmarshal(b, &n); err != nil || n != math.Trunc(n) || n > maxSize {
		return errNumber
	}
	*s = size(max(0, n))
	return nil
}

// list is a number for all layers, or one for each.
type list []uint64

func (l *list) UnmarshalJSON(b []byte) error {
	*l = nil
	if len(b) > 0 && b[0] != '[' {
		var n size
		if err := n.UnmarshalJSON(b); err != nil {
			return err
		}
		if !bytes.Equal(b, []byte("null")) {
			*l = list{uint64(n)}
		}
		return nil
	}
	var all []size
	if err := json.Unmarshal(b, &all); err != nil {
		return errNumber
	}
	if len(all) > maxLayers {
		return errLayers
	}
	for _, n := range all {
		*l = append(*l, uint64(n))
	}
	return nil
}

// most is the largest number for any layer.
func (l list) most() (n uint64) {
	for _, one := range l {
		n = max(n, one)
	}
	return n
}

// blocks are layers as a configuration lists them one by one. Other models have a list of that name with other things in it.
type blocks []struct {
	Attention struct {
		HeadsInGroup size `json:"n_heads_in_group"`
		NoOp         bool `json:"no_op"`
		Linear       bool `json:"replace_with_linear"`
	} `json:"attention"`
}

func (b *blocks) UnmarshalJSON(text []byte) error {
	var all []json.RawMessage
	if json.Unmarshal(text, &all) == nil && len(all) > maxLayers {
		return errLayers
	}
	type plain blocks
	if json.Unmarshal(text, (*plain)(b)) != nil {
		*b = nil
	}
	return nil
}

// at is the number for layer i; the last one holds for what follows.
func (l list) at(i uint64) uint64 {
	if len(l) == 0 {
		return 0
	}
	return l[min(i, uint64(len(l)-1))]
}

var (
	errNumber = errors.New("config.json has a size that is not a whole number, or is larger than any model's")
	errLayers = fmt.Errorf("config.json has more than %d layers", maxLayers)
	errJSON   = errors.New("config.json is not valid JSON, or has a value of a kind that does not belong there")
)

// first is the first of the numbers that is not zero.
func first(all ...size) uint64 {
	for _, n := range all {
		if n != 0 {
			return uint64(n)
		}
	}
	return 0
}

// parse makes a card, without weights, of config.json.
func parse(text []byte) (model.Card, error) {
	var whole config
	if err := whole.decode(finite(text)); err != nil {
		return model.Card{}, err
	}
	c, err := whole.language(0)
	if err != nil {
		return model.Card{}, err
	}
	c.complete()
	name := whole.ModelType
	if len(whole.Architectures) > 0 {
		name = whole.Architectures[0]
	}
	n := first(c.NumHiddenLayers, c.NLayer, c.NLayers, c.NumLayers)
	switch {
	case n == 0:
		return model.Card{}, errors.New("config.json does not say how many layers the model has")
	case n > maxLayers:
		return model.Card{}, errLayers
	}
	card := model.Card{
		Architecture: cards.Name(name),
		Context:      c.context(),
		Hidden:       uint32(c.hidden()),
		FeedForward:  uint32(min(c.feedForward(), maxSize)),
		Heads:        uint32(c.heads()),
		Vocabulary:   uint32(first(c.VocabSize, whole.VocabSize, c.PaddedVocab)),
	}
	for i := range n {
		l, err := c.layer(i, n)
		if err != nil {
			return model.Card{}, err
		}
		for range c.attentions() {
			card.Layers = cards.Append(card.Layers, l)
		}
	}
	return card, nil
}

// decode reads what a part of the file says, but for the parts in it.
func (c *config) decode(text []byte) error {
	switch err := json.Unmarshal(text, c); {
	case err == nil:
		return nil
	case errors.Is(err, errNumber):
		return errNumber
	case errors.Is(err, errLayers):
		return errLayers
	}
	return errJSON
}

// language is the part of the configuration that is the language model's.
func (c *config) language(depth int) (*config, error) {
	for _, text := range []json.RawMessage{c.Text, c.LLM, c.Language, c.Thinker} {
		// Where the outer part has layers of its own, it is the model's (encoder and decoder apart are not served by an engine here).
		if len(text) == 0 || bytes.Equal(text, []byte("null")) || first(c.NumHiddenLayers) > 0 {
			continue
		}
		if depth == 4 {
			return nil, errors.New("config.json has parts within parts within parts")
		}
		var part config
		if err := part.decode(text); err != nil {
			return nil, err
		}
		return part.language(depth + 1)
	}
	return c, nil
}

// classDefaults are numbers that published configurations leave out because transformers' class for the model has them: Gemma 3 of
// 4B to 27B, and the Gemma within PaliGemma (Gemma3TextConfig, GemmaConfig).
var classDefaults = map[string]config{
	"gemma":       {HeadDim: 256, MaxPositionEmbeddings: 8192},
	"gemma3_text": {NumAttentionHeads: 8, NumKeyValueHeads: list{4}, HeadDim: 256, MaxPositionEmbeddings: 131072, VocabSize: 262208},
}

// complete puts in what the configuration leaves to its class.
func (c *config) complete() {
	d := classDefaults[c.ModelType]
	c.NumAttentionHeads, c.HeadDim = cmp.Or(c.NumAttentionHeads, d.NumAttentionHeads), cmp.Or(c.HeadDim, d.HeadDim)
	c.MaxPositionEmbeddings, c.VocabSize = cmp.Or(c.MaxPositionEmbeddings, d.MaxPositionEmbeddings), cmp.Or(c.VocabSize, d.VocabSize)
	if len(c.NumKeyValueHeads) == 0 {
		c.NumKeyValueHeads = d.NumKeyValueHeads
	}
}

// rope is how positions are scaled. Newer configurations have one for each kind of layer; those are of no model whose context it
// makes longer.
type rope struct {
	kind             string
	factor, original float64
}

func (r *rope) UnmarshalJSON(b []byte) error {
	*r = rope{}
	var said struct {
		Type     any `json:"type"`
		RopeType any `json:"rope_type"`
		Factor   any `json:"factor"`
		Original any `json:"original_max_position_embeddings"`
	}
	if json.Unmarshal(b, &said) != nil {
		return nil // no object, so nothing is said
	}
	r.kind, _ = said.RopeType.(string)
	if r.kind == "" {
		r.kind, _ = said.Type.(string)
	}
	r.factor, _ = said.Factor.(float64)
	r.original, _ = said.Original.(float64)
	return nil
}

// context is the longest one that vLLM takes by itself (_get_and_verify_max_len in vllm/config/model.py): the positions times what
// they are scaled by, which for most kinds is in the positions already.
func (c *config) context() uint32 {
	positions := float64(first(c.MaxPositionEmbeddings, c.NPositions, c.SeqLength))
	for _, r := range []rope{c.RopeScaling, c.RopeParameters} {
		if !(r.factor > 1) || strings.HasPrefix(c.ModelType, "gemma3") {
			continue
		}
		switch r.kind {
		case "yarn":
			if r.original > 0 {
				positions = r.original
			}
			return uint32(min(positions*r.factor, maxSize))
		case "linear", "dynamic":
			return uint32(min(positions*r.factor, maxSize))
		}
	}
	return uint32(positions)
}

// finite replaces NaN, Infinity and -Infinity outside strings by null: Python's json module writes them though JSON has none, and
// published configurations have them (time_step_limit of Mamba-2).
func finite(text []byte) []byte {
	if !bytes.Contains(text, []byte("Infinity")) && !bytes.Contains(text, []byte("NaN")) {
		return text
	}
	out := make([]byte, 0, len(text))
	quoted := false
	for i := 0; i < len(text); i++ {
		rest := text[i:]
		switch {
		case quoted && text[i] == '\\' && len(rest) > 1:
			out = append(out, text[i], text[i+1])
			i++
			continue
		case text[i] == '"':
			quoted = !quoted
		case quoted:
		default:
			for _, word := range [][]byte{[]byte("-Infinity"), []byte("Infinity"), []byte("NaN")} {
				if bytes.HasPrefix(rest, word) {
					out = append(out, "null"...)
					i += len(word)
					rest = nil
					break
				}
			}
			if rest == nil {
				i--
				continue
			}
		}
		out = append(out, text[i])
	}
	return out
}
