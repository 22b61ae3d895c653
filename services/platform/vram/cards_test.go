package vram

import "durward.internal/services/platform/model"

// The cards of public models. Their numbers are facts of each model's config.json on huggingface.co (num_hidden_layers,
// num_key_value_heads, head_dim, sliding_window, layer_types, hidden_size, intermediate_size, vocab_size), named beside each, as
// llama.cpp prints them of the same models. Weights are about the size of the files; none of the figures of the KV cache hangs on
// them.

func dense(layers, heads, dim uint32) []model.Layers {
	return []model.Layers{{Count: layers, Kind: model.Full, KVHeads: heads, KeyDim: dim, ValueDim: dim}}
}

// every n-th layer of a model sees everything, the others slide.
func every(n, layers, heads, dim, window uint32) []model.Layers {
	var out []model.Layers
	for done := uint32(0); done < layers; {
		slide := min(n-1, layers-done)
		out = append(out, model.Layers{Count: slide, Kind: model.Sliding, KVHeads: heads, KeyDim: dim, ValueDim: dim, Window: window})
		if done += slide; done < layers {
			out = append(out, dense(1, heads, dim)...)
			done++
		}
	}
	return out
}

// delta are layers of gated delta nets before each full one, as Qwen3-Next has them: a convolution over keys, queries and values of
// three tokens, and a matrix of states for each head of values, in 32 bits.
func delta(blocks, valueHeads, heads, dim uint32) []model.Layers {
	convolution := uint64(3*(2*16*128+valueHeads*128)) * 4
	states := uint64(valueHeads*128*128) * 4
	var out []model.Layers
	for range blocks {
		out = append(out, model.Layers{Count: 3, Kind: model.Recurrent, StateBytes: convolution + states})
		out = append(out, dense(1, heads, dim)...)
	}
	return out
}

func shared(groups []model.Layers) []model.Layers {
	for i := range groups {
		groups[i].Shared = true
	}
	return groups
}

var (
	// google/gemma-3-27b-it; sliding_window_pattern 6 is transformers' default for it.
	gemma3 = model.Card{Architecture: "gemma3", WeightsMiB: 52325, Layers: every(6, 62, 16, 128, 1024), Context: 131072,
		Hidden: 5376, FeedForward: 21504, Heads: 32, Vocabulary: 262208}
	// google/gemma-3-270m.
	gemma3Small = model.Card{Architecture: "gemma3", WeightsMiB: 512, Layers: every(6, 18, 1, 256, 512), Context: 32768,
		Hidden: 640, FeedForward: 2048, Heads: 4, Vocabulary: 262144}
	// google/gemma-3n-E4B-it; the last num_kv_shared_layers 15 of 35 layers keep nothing.
	gemma3n = model.Card{Architecture: "gemma3n", WeightsMiB: 14975, Layers: append(every(5, 20, 2, 256, 512), shared(every(5, 15, 2, 256, 512))...),
		Context: 32768, Hidden: 2048, FeedForward: 16384, Heads: 8, Vocabulary: 262400}
	// Qwen/Qwen3-32B.
	qwen3 = model.Card{Architecture: "qwen3", WeightsMiB: 62490, Layers: dense(64, 8, 128), Context: 40960,
		Hidden: 5120, FeedForward: 25600, Heads: 64, Vocabulary: 151936}
	// Qwen/Qwen3-0.6B: 16 heads of 128 beside a hidden size of 1024.
	qwen3Small = model.Card{Architecture: "qwen3", WeightsMiB: 1434, Layers: dense(28, 8, 128), Context: 40960,
		Hidden: 1024, FeedForward: 3072, Heads: 16, Vocabulary: 151936}
	// Qwen/Qwen3-1.7B.
	qwen3Middle = model.Card{Architecture: "qwen3", WeightsMiB: 3876, Layers: dense(28, 8, 128), Context: 40960,
		Hidden: 2048, FeedForward: 6144, Heads: 16, Vocabulary: 151936}
	// Qwen/Qwen3-235B-A22B-FP8.
	qwen3Large = model.Card{Architecture: "qwen3moe", WeightsMiB: 225400, Layers: dense(94, 4, 128), Context: 40960,
		Hidden: 4096, FeedForward: 1536, Heads: 64, Vocabulary: 151936}
	// Qwen/Qwen2.5-72B.
	qwen25 = model.Card{Architecture: "qwen2", WeightsMiB: 138684, Layers: dense(80, 8, 128), Context: 131072,
		Hidden: 8192, FeedForward: 29568, Heads: 64, Vocabulary: 152064}
	// meta-llama/Llama-3.1-8B-Instruct (8,030,261,248 parameters of two bytes).
	llama8 = model.Card{Architecture: "llama", WeightsMiB: 15317, Layers: dense(32, 8, 128), Context: 131072,
		Hidden: 4096, FeedForward: 14336, Heads: 32, Vocabulary: 128256}
	// The same in 16 bits as a GGUF file.
	llama8F16 = model.Card{Architecture: "llama", WeightsMiB: 15318, HostWeightsMiB: 1002, OutputMiB: 1002, Layers: dense(32, 8, 128), Context: 131072,
		Hidden: 4096, FeedForward: 14336, Heads: 32, Vocabulary: 128256}
	// The same in Q4_K_M: the file's tensors, its embeddings, which stay with the host, and its output in Q6_K.
	llama8Q4 = model.Card{Architecture: "llama", WeightsMiB: 4686, HostWeightsMiB: 282, OutputMiB: 411, Layers: dense(32, 8, 128), Context: 131072,
		Hidden: 4096, FeedForward: 14336, Heads: 32, Vocabulary: 128256}
	// meta-llama/Llama-3.3-70B-Instruct.
	llama70 = model.Card{Architecture: "llama", WeightsMiB: 134570, OutputMiB: 2004, Layers: dense(80, 8, 128), Context: 131072,
		Hidden: 8192, FeedForward: 28672, Heads: 64, Vocabulary: 128256}
	// meta-llama/Llama-3.1-405B.
	llama405 = model.Card{Architecture: "llama", WeightsMiB: 774100, Layers: dense(126, 8, 128), Context: 131072,
		Hidden: 16384, FeedForward: 53248, Heads: 128, Vocabulary: 128256}
	// openai/gpt-oss-20b, in its own MXFP4.
	gptOSS = model.Card{Architecture: "gpt-oss", WeightsMiB: 11536, HostWeightsMiB: 587, ExpertsMiB: 9707, Layers: every(2, 24, 8, 64, 128), Context: 131072,
		Hidden: 2880, FeedForward: 2880, Heads: 64, Vocabulary: 201088}
	// deepseek-ai/DeepSeek-V3: kv_lora_rank 512 and qk_rope_head_dim 64.
	deepseek = model.Card{Architecture: "deepseek2", WeightsMiB: 656600, Layers: []model.Layers{{Count: 61, Kind: model.Latent, KVHeads: 1, KeyDim: 576}},
		Context: 163840, Hidden: 7168, FeedForward: 18432, Heads: 128, Vocabulary: 129280}
	// Qwen/Qwen3-Next-80B-A3B-Instruct.
	qwenNext = model.Card{Architecture: "qwen3next", WeightsMiB: 34601, Layers: delta(12, 32, 2, 256), Context: 262144,
		Hidden: 2048, FeedForward: 5120, Heads: 16, Vocabulary: 151936}
	// Qwen/Qwen3.5-9B and Qwen/Qwen3.6-27B.
	qwen35 = model.Card{Architecture: "qwen35", WeightsMiB: 5295, HostWeightsMiB: 546, Layers: delta(8, 32, 4, 256), Context: 262144,
		Hidden: 4096, FeedForward: 12288, Heads: 16, Vocabulary: 248320}
	qwen36 = model.Card{Architecture: "qwen35", WeightsMiB: 16711, HostWeightsMiB: 682, Layers: delta(16, 48, 4, 256), Context: 262144,
		Hidden: 5120, FeedForward: 17408, Heads: 24, Vocabulary: 248320}
)
