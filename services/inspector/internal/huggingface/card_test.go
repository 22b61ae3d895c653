package huggingface

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/model"
)

// buffer is a file that is not on a disk; size is what it says of itself.
type buffer struct {
	*bytes.Reader
	size int64
}

func (m buffer) Stat() (fs.FileInfo, error) { return m, nil }
func (m buffer) Size() int64                { return m.size }
func (buffer) Name() string                 { return "buffer" }
func (buffer) Mode() fs.FileMode            { return 0o600 }
func (buffer) ModTime() time.Time           { return time.Time{} }
func (buffer) IsDir() bool                  { return false }
func (buffer) Sys() any                     { return nil }

func file(s string) Source { return buffer{bytes.NewReader([]byte(s)), int64(len(s))} }

// weights is a .safetensors file with one tensor of so many MiB, which are not there in memory.
func weights(mib int64) Source {
	header := fmt.Sprintf(`{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,%d]}}`, mib<<20)
	s := safetensors(header)
	return buffer{bytes.NewReader(s), int64(len(s)) + mib<<20}
}

func safetensors(header string) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
}

func group(count uint32, kind string, heads, key, value, window uint32) model.Layers {
	return model.Layers{Count: count, Kind: kind, KVHeads: heads, KeyDim: key, ValueDim: value, Window: window}
}

func state(count uint32, elements uint64) model.Layers {
	return model.Layers{Count: count, Kind: model.Recurrent, StateBytes: 4 * elements}
}

// The sizes are those of published config.json files; each is written down anew with what is looked at.
var configs = map[string]struct {
	config string
	want   []model.Layers
}{
	"Llama 3.1 8B": {`{"architectures":["LlamaForCausalLM"],"model_type":"llama","num_hidden_layers":32,"hidden_size":4096,
		"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":128256,
		"max_position_embeddings":131072,"tie_word_embeddings":false}`,
		[]model.Layers{group(32, model.Full, 8, 128, 128, 0)}},
	"GPT-2": {`{"model_type":"gpt2","n_layer":12,"n_embd":768,"n_head":12,"n_positions":1024,"vocab_size":50257}`,
		[]model.Layers{group(12, model.Full, 12, 64, 64, 0)}},
	"StarCoder, one head for all": {`{"model_type":"gpt_bigcode","n_layer":40,"n_embd":6144,"n_head":48,"multi_query":true}`,
		[]model.Layers{group(40, model.Full, 1, 128, 128, 0)}},
	"Falcon 7B: one head for all, whatever num_kv_heads says": {`{"model_type":"falcon","hidden_size":4544,"num_attention_heads":71,
		"num_hidden_layers":32,"num_kv_heads":71,"multi_query":true,"new_decoder_architecture":false}`,
		[]model.Layers{group(32, model.Full, 1, 64, 64, 0)}},
	"Falcon 40B: num_kv_heads": {`{"model_type":"falcon","hidden_size":8192,"num_attention_heads":128,"num_hidden_layers":60,
		"num_kv_heads":8,"multi_query":true,"new_decoder_architecture":true}`,
		[]model.Layers{group(60, model.Full, 8, 64, 64, 0)}},
	"Falcon 40B as it was first": {`{"model_type":"RefinedWeb","hidden_size":8192,"n_head":128,"n_head_kv":8,"n_layer":60}`,
		[]model.Layers{group(60, model.Full, 8, 64, 64, 0)}},
	"ChatGLM 3 and GLM-4 9B: groups": {`{"model_type":"chatglm","hidden_size":4096,"num_attention_heads":32,"num_layers":28,
		"kv_channels":128,"multi_query_attention":true,"multi_query_group_num":2,"ffn_hidden_size":13696,"padded_vocab_size":65024,"seq_length":8192}`,
		[]model.Layers{group(28, model.Full, 2, 128, 128, 0)}},
	"Step 3.5: groups": {`{"model_type":"step3p5","hidden_size":4096,"num_attention_heads":64,"num_attention_groups":8,"head_dim":128,
		"num_hidden_layers":2,"layer_types":["full_attention","sliding_attention"],"sliding_window":512}`,
		[]model.Layers{group(1, model.Full, 8, 128, 128, 0), group(1, model.Sliding, 8, 128, 128, 512)}},
	"Nemotron Super 49B: some layers without attention": {`{"model_type":"nemotron-nas","hidden_size":8192,"num_attention_heads":64,
		"num_key_value_heads":null,"num_hidden_layers":3,"block_configs":[
			{"attention":{"n_heads_in_group":8,"no_op":false,"replace_with_linear":false},"ffn":{"ffn_mult":5.25}},
			{"attention":{"n_heads_in_group":null,"no_op":true,"replace_with_linear":false},"ffn":{"ffn_mult":0.5}},
			{"attention":{"n_heads_in_group":16,"no_op":false,"replace_with_linear":false},"ffn":{"ffn_mult":5.25}}]}`,
		[]model.Layers{group(1, model.Full, 8, 128, 128, 0), {Count: 1, Kind: model.Full, KVHeads: 1, KeyDim: 1, ValueDim: 1, Shared: true},
			group(1, model.Full, 4, 128, 128, 0)}},
	"MiMo V2: a pattern, and other heads in a window": {`{"model_type":"mimo_v2_flash","hidden_size":4096,"num_hidden_layers":6,"num_attention_heads":64,
		"num_key_value_heads":4,"head_dim":192,"v_head_dim":128,"swa_num_key_value_heads":8,"swa_head_dim":192,"swa_v_head_dim":128,
		"sliding_window":128,"sliding_window_size":128,"attention_chunk_size":128,"hybrid_layer_pattern":[0,1,1,1,1,0]}`,
		[]model.Layers{group(1, model.Full, 4, 192, 128, 0), group(4, model.Sliding, 8, 192, 128, 128), group(1, model.Full, 4, 192, 128, 0)}},
	"MiMo V2 without a chunk": {`{"model_type":"mimo_v2","hidden_size":4096,"num_hidden_layers":2,"num_attention_heads":64,"num_key_value_heads":4,
		"head_dim":192,"v_head_dim":128,"sliding_window_size":128,"hybrid_layer_pattern":[0,1]}`,
		[]model.Layers{group(1, model.Full, 4, 192, 128, 0), group(1, model.Sliding, 4, 192, 128, 128)}},
	"LongCat-Flash: two attentions in a layer": {`{"model_type":"longcat_flash","hidden_size":6144,"num_layers":28,"num_attention_heads":64,
		"kv_lora_rank":512,"qk_rope_head_dim":64,"qk_nope_head_dim":128,"v_head_dim":128}`,
		[]model.Layers{{Count: 56, Kind: model.Latent, KVHeads: 1, KeyDim: 576}}},
	"LongCat-Flash as transformers counts": {`{"model_type":"longcat_flash","hidden_size":6144,"num_layers":28,"num_hidden_layers":56,
		"num_attention_heads":64,"kv_lora_rank":512,"qk_rope_head_dim":64}`,
		[]model.Layers{{Count: 56, Kind: model.Latent, KVHeads: 1, KeyDim: 576}}},
	"MiniCPM 3: compressed, and kept as it is computed": {`{"model_type":"minicpm3","hidden_size":2560,"num_hidden_layers":62,
		"num_attention_heads":40,"num_key_value_heads":40,"q_lora_rank":768,"kv_lora_rank":256,"qk_nope_head_dim":64,"qk_rope_head_dim":32}`,
		[]model.Layers{group(62, model.Full, 40, 96, 96, 0)}},
	"block_configs of something else": {`{"model_type":"nemotron_h","hidden_size":1024,"num_attention_heads":8,"num_hidden_layers":1,
		"num_key_value_heads":2,"hybrid_override_pattern":"*","block_configs":[{"block_type":"attention","attention":"gqa"}]}`,
		[]model.Layers{group(1, model.Full, 2, 128, 128, 0)}},
	"Qwen3 0.6B: head_dim is not hidden / heads": {`{"model_type":"qwen3","num_hidden_layers":28,"hidden_size":1024,
		"num_attention_heads":16,"num_key_value_heads":8,"head_dim":128,"sliding_window":null,"use_sliding_window":false,"max_window_layers":28}`,
		[]model.Layers{group(28, model.Full, 8, 128, 128, 0)}},
	"Qwen2, the last layers slide": {`{"model_type":"qwen2","num_hidden_layers":28,"hidden_size":3584,"num_attention_heads":28,
		"num_key_value_heads":4,"sliding_window":131072,"use_sliding_window":true,"max_window_layers":20}`,
		[]model.Layers{group(20, model.Full, 4, 128, 128, 0), group(8, model.Sliding, 4, 128, 128, 131072)}},
	"Qwen2 that does not say whether any slide": {`{"model_type":"qwen2","num_hidden_layers":28,"hidden_size":3584,"num_attention_heads":28,
		"num_key_value_heads":4,"sliding_window":131072,"max_window_layers":20}`,
		[]model.Layers{group(28, model.Full, 4, 128, 128, 0)}},
	"Mistral 7B v0.1: all slide": {`{"model_type":"mistral","num_hidden_layers":32,"hidden_size":4096,"num_attention_heads":32,
		"num_key_value_heads":8,"sliding_window":4096}`,
		[]model.Layers{group(32, model.Sliding, 8, 128, 128, 4096)}},
	"Gemma 2: every 2nd does not": {`{"model_type":"gemma2","num_hidden_layers":4,"hidden_size":3584,"num_attention_heads":16,
		"num_key_value_heads":8,"head_dim":256,"sliding_window":4096}`,
		[]model.Layers{group(1, model.Sliding, 8, 256, 256, 4096), group(1, model.Full, 8, 256, 256, 0),
			group(1, model.Sliding, 8, 256, 256, 4096), group(1, model.Full, 8, 256, 256, 0)}},
	"Gemma 3, nested, with a pattern": {`{"architectures":["Gemma3ForConditionalGeneration"],"model_type":"gemma3",
		"text_config":{"model_type":"gemma3_text","num_hidden_layers":8,"hidden_size":5376,"num_attention_heads":32,
		"num_key_value_heads":16,"head_dim":128,"sliding_window":1024,"sliding_window_pattern":6},"vision_config":{"num_hidden_layers":27}}`,
		[]model.Layers{group(5, model.Sliding, 16, 128, 128, 1024), group(1, model.Full, 16, 128, 128, 0), group(2, model.Sliding, 16, 128, 128, 1024)}},
	"Gemma 3n: layer_types, the last share": {`{"text_config":{"model_type":"gemma3n_text","num_hidden_layers":5,"hidden_size":2048,
		"num_attention_heads":8,"num_key_value_heads":2,"head_dim":256,"sliding_window":512,"num_kv_shared_layers":2,
		"intermediate_size":[16384,16384,16384,16384,16384],
		"layer_types":["sliding_attention","sliding_attention","full_attention","sliding_attention","full_attention"]}}`,
		[]model.Layers{group(2, model.Sliding, 2, 256, 256, 512), group(1, model.Full, 2, 256, 256, 0),
			{Count: 1, Kind: model.Sliding, KVHeads: 2, KeyDim: 256, ValueDim: 256, Window: 512, Shared: true},
			{Count: 1, Kind: model.Full, KVHeads: 2, KeyDim: 256, ValueDim: 256, Shared: true}}},
	"EXAONE 4: a pattern in letters": {`{"model_type":"exaone4","num_hidden_layers":4,"hidden_size":5120,"num_attention_heads":40,
		"num_key_value_heads":8,"head_dim":128,"sliding_window":4096,"sliding_window_pattern":"LLLG"}`,
		[]model.Layers{group(3, model.Sliding, 8, 128, 128, 4096), group(1, model.Full, 8, 128, 128, 0)}},
	"Llama 4: chunks": {`{"text_config":{"model_type":"llama4_text","num_hidden_layers":4,"hidden_size":5120,"num_attention_heads":40,
		"num_key_value_heads":8,"head_dim":128,"attention_chunk_size":8192,"no_rope_layers":[1,1,1,0]}}`,
		[]model.Layers{group(3, model.Sliding, 8, 128, 128, 8192), group(1, model.Full, 8, 128, 128, 0)}},
	"DeepSeek V3: latent": {`{"model_type":"deepseek_v3","num_hidden_layers":61,"hidden_size":7168,"num_attention_heads":128,
		"num_key_value_heads":128,"kv_lora_rank":512,"qk_rope_head_dim":64,"qk_nope_head_dim":128,"v_head_dim":128,
		"quantization_config":{"quant_method":"fp8"}}`,
		[]model.Layers{{Count: 61, Kind: model.Latent, KVHeads: 1, KeyDim: 576}}},
	"Qwen3-Next: a delta net": {`{"model_type":"qwen3_next","num_hidden_layers":4,"hidden_size":2048,"num_attention_heads":16,
		"num_key_value_heads":2,"head_dim":256,"full_attention_interval":4,"linear_conv_kernel_dim":4,"linear_key_head_dim":128,
		"linear_num_key_heads":16,"linear_num_value_heads":32,"linear_value_head_dim":128}`,
		[]model.Layers{state(3, 3*(2*2048+4096)+4096*128), group(1, model.Full, 2, 256, 256, 0)}},
	"Kimi Linear": {`{"model_type":"kimi_linear","num_hidden_layers":4,"hidden_size":2304,"num_attention_heads":32,"kv_lora_rank":512,
		"qk_rope_head_dim":64,"linear_attn_config":{"kda_layers":[1,2,3],"full_attn_layers":[4],"head_dim":128,"num_heads":32,"short_conv_kernel_size":4}}`,
		[]model.Layers{state(3, 3*32*128*3+32*128*128), {Count: 1, Kind: model.Latent, KVHeads: 1, KeyDim: 576}}},
	"Mamba": {`{"model_type":"mamba","num_hidden_layers":24,"hidden_size":768,"state_size":16,"conv_kernel":4,"expand":2}`,
		[]model.Layers{state(24, 1536*3+1536*16)}},
	"Mamba 2, with an infinity": {`{"model_type":"mamba2","num_hidden_layers":64,"hidden_size":4096,"state_size":128,"conv_kernel":4,
		"expand":2,"num_heads":128,"head_dim":64,"n_groups":8,"time_step_limit":[0.0,Infinity],"note":"-Infinity \" NaN"}`,
		[]model.Layers{state(64, (8192+2*8*128)*3+8192*128)}},
	"Jamba": {`{"model_type":"jamba","num_hidden_layers":8,"hidden_size":4096,"num_attention_heads":32,"num_key_value_heads":8,
		"attn_layer_period":8,"attn_layer_offset":4,"mamba_d_state":16,"mamba_d_conv":4,"mamba_expand":2}`,
		[]model.Layers{state(4, 8192*3+8192*16), group(1, model.Full, 8, 128, 128, 0), state(3, 8192*3+8192*16)}},
	"Nemotron-H: letters": {`{"model_type":"nemotron_h","num_hidden_layers":5,"hidden_size":4480,"hybrid_override_pattern":"M-M*-",
		"num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,"mamba_num_heads":128,"mamba_head_dim":80,
		"ssm_state_size":128,"n_groups":8,"conv_kernel":4}`,
		[]model.Layers{state(1, (10240+2048)*3+10240*128), {Count: 1, Kind: model.Full, KVHeads: 1, KeyDim: 1, ValueDim: 1, Shared: true},
			state(1, (10240+2048)*3+10240*128), group(1, model.Full, 8, 128, 128, 0),
			{Count: 1, Kind: model.Full, KVHeads: 1, KeyDim: 1, ValueDim: 1, Shared: true}}},
	"Granite 4 hybrid": {`{"model_type":"granitemoehybrid","num_hidden_layers":2,"hidden_size":1536,"num_attention_heads":12,
		"num_key_value_heads":4,"layer_types":["mamba","attention"],"mamba_n_heads":48,"mamba_d_head":64,"mamba_d_state":128,
		"mamba_n_groups":1,"mamba_d_conv":4,"mamba_expand":2}`,
		[]model.Layers{state(1, (3072+256)*3+3072*128), group(1, model.Full, 4, 128, 128, 0)}},
	"Falcon-H1: both at once": {`{"model_type":"falcon_h1","num_hidden_layers":1,"hidden_size":1024,"num_attention_heads":8,
		"num_key_value_heads":2,"head_dim":64,"mamba_d_ssm":1536,"mamba_n_heads":24,"mamba_d_head":64,"mamba_d_state":128,"mamba_n_groups":1,"mamba_d_conv":4}`,
		[]model.Layers{{Count: 1, Kind: model.Full, KVHeads: 2, KeyDim: 64, ValueDim: 64, StateBytes: 4 * ((1536+256)*3 + 1536*128)}}},
	"LFM2: short convolutions": {`{"model_type":"lfm2","num_hidden_layers":2,"hidden_size":2048,"num_attention_heads":32,
		"num_key_value_heads":8,"conv_L_cache":3,"layer_types":["conv","full_attention"]}`,
		[]model.Layers{state(1, 2*2048), group(1, model.Full, 8, 64, 64, 0)}},
	"MiniMax: lightning": {`{"model_type":"minimax","num_hidden_layers":2,"hidden_size":6144,"num_attention_heads":64,
		"num_key_value_heads":8,"head_dim":128,"attn_type_list":[0,1]}`,
		[]model.Layers{state(1, 64*128*128), group(1, model.Full, 8, 128, 128, 0)}},
	"MiniMax, by transformers' words": {`{"model_type":"minimax","num_hidden_layers":2,"hidden_size":6144,"num_attention_heads":64,
		"num_key_value_heads":8,"head_dim":128,"layer_types":["linear_attention","full_attention"]}`,
		[]model.Layers{state(1, 64*128*128), group(1, model.Full, 8, 128, 128, 0)}},
	"Bamba": {`{"model_type":"bamba","num_hidden_layers":4,"hidden_size":4096,"num_attention_heads":32,"num_key_value_heads":8,
		"attn_layer_indices":[2],"mamba_n_heads":128,"mamba_d_head":64,"mamba_d_state":128,"mamba_n_groups":1,"mamba_d_conv":4,"mamba_expand":2}`,
		[]model.Layers{state(2, (8192+256)*3+8192*128), group(1, model.Full, 8, 128, 128, 0), state(1, (8192+256)*3+8192*128)}},
	"Zamba2: attention twice as wide, beside a state": {`{"model_type":"zamba2","num_hidden_layers":3,"hidden_size":3584,"num_attention_heads":32,
		"num_key_value_heads":32,"layers_block_type":["mamba","mamba","hybrid"],"n_mamba_heads":112,"mamba_headdim":64,"mamba_ngroups":2,
		"mamba_d_state":64,"mamba_d_conv":4,"mamba_expand":2}`,
		[]model.Layers{state(2, (7168+2*2*64)*3+7168*64), {Count: 1, Kind: model.Full, KVHeads: 32, KeyDim: 224, ValueDim: 224, StateBytes: 4 * ((7168+2*2*64)*3 + 7168*64)}}},
	"Zamba: a state without heads": {`{"model_type":"zamba","num_hidden_layers":2,"hidden_size":3712,"num_attention_heads":16,"num_key_value_heads":16,
		"attention_head_dim":464,"layers_block_type":["mamba","hybrid"],"n_mamba_heads":2,"mamba_d_state":16,"mamba_d_conv":4,"mamba_expand":2}`,
		[]model.Layers{state(1, 7424*3+7424*16), {Count: 1, Kind: model.Full, KVHeads: 16, KeyDim: 464, ValueDim: 464, StateBytes: 4 * (7424*3 + 7424*16)}}},
	"heads by layer": {`{"model_type":"openelm","num_hidden_layers":3,"hidden_size":1280,"num_attention_heads":20,"head_dim":64,
		"num_key_value_heads":[3,0,4]}`,
		[]model.Layers{group(1, model.Full, 3, 64, 64, 0), {Count: 1, Kind: model.Full, KVHeads: 1, KeyDim: 1, ValueDim: 1, Shared: true}, group(1, model.Full, 4, 64, 64, 0)}},
}

// What positions are scaled by is in the longest context, or comes on top.
func TestContexts(t *testing.T) {
	t.Parallel()
	for scaling, want := range map[string]uint32{
		`null`: 32768,
		`{"type":"yarn","factor":4.0,"original_max_position_embeddings":32768}`:                          131072,
		`{"rope_type":"yarn","factor":4.0}`:                                                              131072,
		`{"rope_type":"yarn","factor":40,"original_max_position_embeddings":4096}`:                       163840,
		`{"rope_type":"llama3","factor":8.0,"original_max_position_embeddings":8192}`:                    32768,
		`{"type":"longrope","long_factor":[1.0],"short_factor":[1.0]}`:                                   32768,
		`{"type":"linear","factor":2}`:                                                                   65536,
		`{"type":"dynamic","factor":2.5}`:                                                                81920,
		`{"type":"yarn","factor":1e300}`:                                                                 1 << 30,
		`{"type":"yarn","factor":-4}`:                                                                    32768,
		`{"type":"yarn","factor":"4"}`:                                                                   32768,
		`{"full_attention":{"rope_type":"default"},"sliding_attention":{"rope_type":"yarn","factor":4}}`: 32768,
		`[1]`: 32768,
	} {
		for _, key := range []string{"rope_scaling", "rope_parameters"} {
			card, err := parse([]byte(`{"model_type":"qwen2","num_hidden_layers":1,"hidden_size":1024,"num_attention_heads":8,"max_position_embeddings":32768,"` + key + `":` + scaling + `}`))
			if err != nil || card.Context != want {
				t.Errorf("%s %s: %d tokens, want %d, %v", key, scaling, card.Context, want, err)
			}
		}
	}
	card, err := parse([]byte(`{"model_type":"gemma3_text","num_hidden_layers":1,"hidden_size":1024,"num_attention_heads":8,"max_position_embeddings":131072,"rope_scaling":{"rope_type":"linear","factor":8}}`))
	if err != nil || card.Context != 131072 {
		t.Errorf("Gemma 3: %d tokens, %v", card.Context, err)
	}
}

// Gemma 3 as Google publishes it says only what differs from the class that reads it.
func TestClassDefaults(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		config string
		want   model.Card
	}{
		"Gemma 3 4B": {`{"architectures":["Gemma3ForConditionalGeneration"],"model_type":"gemma3","text_config":{"hidden_size":2560,
			"intermediate_size":10240,"model_type":"gemma3_text","num_hidden_layers":34,"rope_scaling":{"factor":8.0,"rope_type":"linear"},
			"sliding_window":1024},"vision_config":{"hidden_size":1152,"num_hidden_layers":27}}`,
			model.Card{Architecture: "Gemma3ForConditionalGeneration", Context: 131072, Hidden: 2560, FeedForward: 10240, Heads: 8, Vocabulary: 262208,
				Layers: slices.Concat(slices.Repeat([]model.Layers{group(5, model.Sliding, 4, 256, 256, 1024), group(1, model.Full, 4, 256, 256, 0)}, 5),
					[]model.Layers{group(4, model.Sliding, 4, 256, 256, 1024)})}},
		"Gemma 3 12B": {`{"model_type":"gemma3","text_config":{"hidden_size":3840,"intermediate_size":15360,"model_type":"gemma3_text",
			"num_attention_heads":16,"num_hidden_layers":48,"num_key_value_heads":8,"rope_scaling":{"factor":8.0,"rope_type":"linear"},
			"sliding_window":1024}}`,
			model.Card{Architecture: "gemma3", Context: 131072, Hidden: 3840, FeedForward: 15360, Heads: 16, Vocabulary: 262208,
				Layers: slices.Repeat([]model.Layers{group(5, model.Sliding, 8, 256, 256, 1024), group(1, model.Full, 8, 256, 256, 0)}, 8)}},
		"PaliGemma 3B": {`{"model_type":"paligemma","text_config":{"hidden_size":2048,"intermediate_size":16384,"model_type":"gemma",
			"num_attention_heads":8,"num_hidden_layers":18,"num_key_value_heads":1,"vocab_size":257216}}`,
			model.Card{Architecture: "paligemma", Context: 8192, Hidden: 2048, FeedForward: 16384, Heads: 8, Vocabulary: 257216,
				Layers: []model.Layers{group(18, model.Full, 1, 256, 256, 0)}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			card, err := parse([]byte(test.config))
			if diff := cmp.Diff(test.want, card); err != nil || diff != "" {
				t.Error(err, diff)
			}
		})
	}
}

func TestConfigs(t *testing.T) {
	t.Parallel()
	for name, test := range configs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			card, err := Card(Folder{Config: file(test.config), Weights: map[string]Source{"model.safetensors": weights(3)}})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, card.Layers); diff != "" {
				t.Error(diff)
			}
			if card.WeightsMiB != 3 {
				t.Errorf("weights %d MiB, want 3", card.WeightsMiB)
			}
		})
	}
}

// The width of experts is a list for some: by layer, or by what a token is of.
func TestExpertsOfSeveralWidths(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		config string
		want   uint32
	}{
		"Hunyuan A13B": {`{"model_type":"hunyuan_v1_moe","num_hidden_layers":4,"hidden_size":4096,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":3072,
			"moe_intermediate_size":[3072,3072,3072,3072],"moe_topk":[8,8,8,8],"num_shared_expert":[1,1,1,1]}`, 8 * 3072},
		"ERNIE 4.5 VL": {`{"model_type":"ernie4_5_moe_vl","num_hidden_layers":28,"hidden_size":2560,"num_attention_heads":20,"num_key_value_heads":4,"intermediate_size":8192,
			"moe_intermediate_size":[1536,512],"moe_num_experts":[64,64],"moe_k":6}`, 6 * 1536},
	} {
		card, err := Card(Folder{Config: file(test.config), Weights: map[string]Source{"model.safetensors": weights(1)}})
		if err != nil || card.FeedForward != test.want {
			t.Errorf("%s: %d, %v", name, card.FeedForward, err)
		}
	}
}

func TestTheRestOfTheCard(t *testing.T) {
	t.Parallel()
	card, err := Card(Folder{Config: file(configs["Llama 3.1 8B"].config), Weights: map[string]Source{"model.safetensors": weights(1)}})
	want := model.Card{
		Architecture: "LlamaForCausalLM", WeightsMiB: 1, Context: 131072, Hidden: 4096, FeedForward: 14336, Heads: 32, Vocabulary: 128256,
		Layers: []model.Layers{group(32, model.Full, 8, 128, 128, 0)},
	}
	if diff := cmp.Diff(want, card); err != nil || diff != "" {
		t.Error(err, diff)
	}
	card, err = Card(Folder{
		Config:  file(`{"architectures":["Evil\u001b[31m\u202e /etc/passwd"],"n_layer":1,"n_embd":64,"n_head":1}`),
		Weights: map[string]Source{"model.safetensors": weights(1)},
	})
	if err != nil || card.Architecture != "Evil31metcpasswd" {
		t.Errorf("the architecture is %q, %v", card.Architecture, err)
	}
}

// Which files are the weights.
func TestWeights(t *testing.T) {
	t.Parallel()
	const config = `{"n_layer":1,"n_embd":64,"n_head":1}`
	index := func(m map[string]string) Source {
		b, err := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": 1}, "weight_map": m})
		if err != nil {
			t.Fatal(err)
		}
		return file(string(b))
	}
	short := weights(3).(buffer)
	short.size -= 1
	for name, test := range map[string]struct {
		index Source
		files map[string]Source
		mib   uint32
		says  string
	}{
		"one file":                {nil, map[string]Source{"model.safetensors": weights(5)}, 5, ""},
		"several":                 {nil, map[string]Source{"a.safetensors": weights(5), "b.safetensors": weights(6)}, 11, ""},
		"the other format beside": {nil, map[string]Source{"model.safetensors": weights(5), "consolidated.safetensors": weights(5)}, 5, ""},
		"the other format alone":  {nil, map[string]Source{"consolidated.safetensors": weights(5)}, 5, ""},
		"parts of the other format alone": {nil, map[string]Source{"consolidated-00001-of-00002.safetensors": weights(5), "consolidated-00002-of-00002.safetensors": weights(6),
			"adapter_model.safetensors": weights(1)}, 11, ""},
		"parts of the other format beside": {nil, map[string]Source{"model.safetensors": weights(9), "consolidated-00001-of-00002.safetensors": weights(5),
			"consolidated-00002-of-00002.safetensors": weights(6)}, 9, ""},
		"an adapter beside": {nil, map[string]Source{"model.safetensors": weights(5), "adapter_model.safetensors": weights(7)}, 5, ""},
		"by the index": {index(map[string]string{"x": "a.safetensors", "y": "b.safetensors", "z": "a.safetensors"}),
			map[string]Source{"a.safetensors": weights(5), "b.safetensors": weights(6), "other.safetensors": weights(9)}, 11, ""},
		"one is missing": {index(map[string]string{"x": "a.safetensors", "y": "b.safetensors"}),
			map[string]Source{"a.safetensors": weights(5)}, 0, "lacks a file that"},
		"one is elsewhere": {index(map[string]string{"x": "../../../etc/shadow"}),
			map[string]Source{"a.safetensors": weights(5)}, 0, "lacks a file that"},
		"an empty index":        {file(`{}`), map[string]Source{"a.safetensors": weights(5)}, 0, "not valid JSON"},
		"no weights":            {nil, nil, 0, "no .safetensors files"},
		"an adapter alone":      {nil, map[string]Source{"adapter_model.safetensors": weights(7)}, 0, "no .safetensors files"},
		"a byte short":          {nil, map[string]Source{"a.safetensors": short}, 0, "shorter than the tensors"},
		"an empty file":         {nil, map[string]Source{"a.safetensors": file("")}, 0, "ends within its header"},
		"a huge header":         {nil, map[string]Source{"a.safetensors": file("\xff\xff\xff\xff\xff\xff\xff\xff{}")}, 0, "a header of more than"},
		"a header too long":     {nil, map[string]Source{"a.safetensors": file("\x09\x00\x00\x00\x00\x00\x00\x00{}")}, 0, "ends within its header"},
		"no JSON":               {nil, map[string]Source{"a.safetensors": file(string(safetensors("[]")))}, 0, "malformed header"},
		"offsets the wrong way": {nil, map[string]Source{"a.safetensors": file(string(safetensors(`{"a":{"data_offsets":[2,1]}}`)))}, 0, "malformed header"},
		"offsets below zero":    {nil, map[string]Source{"a.safetensors": file(string(safetensors(`{"a":{"data_offsets":[0,-1]}}`)))}, 0, "malformed header"},
		"offsets beyond 2^64":   {nil, map[string]Source{"a.safetensors": file(string(safetensors(`{"a":{"data_offsets":[0,99999999999999999999]}}`)))}, 0, "malformed header"},
		"a header that nests":   {nil, map[string]Source{"a.safetensors": file(string(safetensors(`{"a":` + strings.Repeat("[", 200_000))))}, 0, "malformed header"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			card, err := Card(Folder{Config: file(config), Index: test.index, Weights: test.files})
			checkError(t, err, test.says)
			if card.WeightsMiB != test.mib {
				t.Errorf("weights %d MiB, want %d", card.WeightsMiB, test.mib)
			}
		})
	}
}

// The experts of a mixture are what its tensors' names say, and never more than there is.
func TestExperts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		header string
		mib    uint32
	}{
		"DeepSeek": {`{"model.layers.1.mlp.experts.0.up_proj.weight":{"data_offsets":[0,3145728]},"model.layers.1.mlp.experts.1.up_proj.weight":{"data_offsets":[3145728,5242880]},
			"model.layers.1.mlp.shared_experts.up_proj.weight":{"data_offsets":[5242880,7340032]},"lm_head.weight":{"data_offsets":[7340032,8388608]}}`, 5},
		"gpt-oss":          {`{"model.layers.0.mlp.experts.gate_up_proj_blocks":{"data_offsets":[0,7340032]},"x":{"data_offsets":[7340032,8388608]}}`, 7},
		"tensors that lie": {`{"a.experts.0":{"data_offsets":[0,8388608]},"a.experts.1":{"data_offsets":[0,8388608]}}`, 8},
		"none":             {`{"a":{"data_offsets":[0,8388608]}}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := safetensors(test.header)
			card, err := Card(Folder{Config: file(`{"n_layer":1,"n_embd":64,"n_head":1}`),
				Weights: map[string]Source{"a.safetensors": buffer{bytes.NewReader(text), int64(len(text)) + 8<<20}}})
			if err != nil || card.WeightsMiB != 8 || card.ExpertsMiB != test.mib {
				t.Errorf("%d MiB of %d are experts, want %d of 8, %v", card.ExpertsMiB, card.WeightsMiB, test.mib, err)
			}
		})
	}
}

func checkError(t *testing.T, err error, says string) {
	t.Helper()
	switch {
	case says == "" && err != nil:
		t.Error(err)
	case says != "" && (err == nil || !strings.Contains(err.Error(), says)):
		t.Errorf("says %v, not %q", err, says)
	case err != nil && clean.Sentence(err.Error(), 400) != err.Error():
		t.Errorf("the sentence %q would be shown as %q", err, clean.Sentence(err.Error(), 400))
	}
}

func TestHostileConfigs(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"text_config":`, 9_000) + `{}` + strings.Repeat(`}`, 9_000)
	for name, test := range map[string]struct{ config, says string }{
		"empty":                     {``, "not valid JSON"},
		"cut off":                   {`{"n_layer":12`, "not valid JSON"},
		"a list":                    {`[]`, "not valid JSON"},
		"two":                       {`{"n_layer":1}{}`, "not valid JSON"},
		"null":                      {`null`, "how many layers"},
		"10 MiB":                    {`{"x":"` + strings.Repeat("y", 10<<20) + `"}`, "larger than 4 MiB"},
		"deep":                      {strings.Repeat(`[`, 1<<20), "not valid JSON"},
		"deep within the bounds":    {deep, "parts within parts"},
		"deep within the decoder's": {strings.Repeat(`{"text_config":`, 9900) + "{}" + strings.Repeat("}", 9900), "parts within parts"},
		"no layers":                 {`{"hidden_size":64}`, "how many layers"},
		"layers below zero":         {`{"n_layer":-5,"n_embd":64,"n_head":1}`, "how many layers"},
		"too many layers":           {`{"n_layer":5000,"n_embd":64,"n_head":1}`, "more than 4096 layers"},
		"2^63 layers":               {`{"n_layer":9223372036854775808,"n_embd":64,"n_head":1}`, "larger than any model"},
		"1e999 layers":              {`{"n_layer":1e999,"n_embd":64,"n_head":1}`, "not a whole number"},
		"half a layer":              {`{"n_layer":0.5,"n_embd":64,"n_head":1}`, "not a whole number"},
		"layers, a text":            {`{"n_layer":"12","n_embd":64,"n_head":1}`, "not a whole number"},
		"a list of texts":           {`{"n_layer":1,"n_embd":64,"n_head":1,"num_key_value_heads":["a"]}`, "not a whole number"},
		"a list of 5,000":           {`{"n_layer":1,"n_embd":64,"n_head":1,"num_key_value_heads":[1` + strings.Repeat(",1", 4999) + `]}`, "more than 4096 layers"},
		"no heads":                  {`{"n_layer":1,"n_embd":64}`, "how many heads"},
		"heads wider than any":      {`{"n_layer":1,"n_embd":64,"n_head":1,"head_dim":1000000}`, "key_dim must be at most"},
		"listed layers of too few":  {`{"model_type":"nemotron-nas","n_layer":2,"n_embd":64,"n_head":1,"block_configs":[{"attention":{"n_heads_in_group":1}}]}`, "fewer layers"},
		"5,000 listed layers":       {`{"model_type":"nemotron-nas","n_layer":2,"n_embd":64,"n_head":1,"block_configs":[{}` + strings.Repeat(",{}", 4999) + `]}`, "more than 4096 layers"},
		"kinds of too few":          {`{"n_layer":2,"n_embd":64,"n_head":1,"layer_types":["full_attention"]}`, "fewer layers"},
		"a pattern of too few":      {`{"n_layer":2,"n_embd":64,"n_head":1,"sliding_window":8,"hybrid_layer_pattern":[0]}`, "fewer layers"},
		"a kind of no kind":         {`{"n_layer":1,"n_embd":64,"n_head":1,"layer_types":["rm -rf \u001b[0m"]}`, "a kind that is not known"},
		"a letter of no kind":       {`{"n_layer":1,"n_embd":64,"n_head":1,"hybrid_override_pattern":"?"}`, "a kind that is not known"},
		"a window of nothing":       {`{"n_layer":1,"n_embd":64,"n_head":1,"layer_types":["sliding_attention"]}`, "how wide it is"},
		"a state of nothing":        {`{"n_layer":1,"layer_types":["conv"]}`, "state of its recurrent layers"},
		"a state beyond": {`{"model_type":"mamba","num_hidden_layers":1,"hidden_size":1000000000,"state_size":1000000000,"conv_kernel":1000000000}`,
			"must be at most"},
		"python": {`{"auto_map":{"AutoConfig":"evil.py"}}`, "how many layers"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			card, err := Card(Folder{Config: file(test.config), Weights: map[string]Source{"model.safetensors": weights(1)}})
			if err == nil {
				t.Fatalf("no error, but %+v", card)
			}
			checkError(t, err, test.says)
		})
	}
}

func FuzzConfig(f *testing.F) {
	for _, test := range configs {
		f.Add([]byte(test.config), safetensors(`{"a":{"data_offsets":[0,0]}}`))
	}
	f.Add([]byte(`{"text_config":{"text_config":{}}}`), []byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, config, tensors []byte) {
		card, err := Card(Folder{Config: file(string(config)), Weights: map[string]Source{"a.safetensors": file(string(tensors)), "b.safetensors": weights(1)}})
		if err != nil {
			return
		}
		if err := card.Check(); err != nil {
			t.Fatal(err)
		}
	})
}
