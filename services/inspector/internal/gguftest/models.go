package gguftest

// The sizes of the models below are facts of their publishers' config.json. Their tensors are two small ones: what is looked at
// is the header.

func base(architecture string, kvs ...KV) *File {
	f := &File{
		KVs: []KV{{"general.architecture", architecture}, {"general.file_type", uint32(1)}},
		Tensors: []Tensor{
			{"token_embd.weight", []uint64{1024, 1024}, F16},
			{"output.weight", []uint64{1024, 1024}, F16},
			{"blk.0.attn_q.weight", []uint64{1024, 4096}, Q8_0},
		},
	}
	for _, kv := range kvs {
		kv.Key = architecture + "." + kv.Key
		f.KVs = append(f.KVs, kv)
	}
	return f.Set("tokenizer.ggml.tokens", []string{"a", "b", "c"})
}

// Llama31 is Llama 3.1 8B: 32 layers, 8 heads of 128.
func Llama31() *File {
	return base("llama",
		KV{"block_count", uint32(32)}, KV{"context_length", uint32(131072)}, KV{"embedding_length", uint32(4096)},
		KV{"feed_forward_length", uint32(14336)}, KV{"attention.head_count", uint32(32)}, KV{"attention.head_count_kv", uint32(8)},
		KV{"vocab_size", uint32(128256)})
}

// Qwen3 is Qwen3 0.6B, whose heads are 128 wide though 1024 / 16 is 64.
func Qwen3() *File {
	return base("qwen3",
		KV{"block_count", uint32(28)}, KV{"context_length", uint32(40960)}, KV{"embedding_length", uint32(1024)},
		KV{"feed_forward_length", uint32(3072)}, KV{"attention.head_count", uint32(16)}, KV{"attention.head_count_kv", uint32(8)},
		KV{"attention.key_length", uint32(128)}, KV{"attention.value_length", uint32(128)}, KV{"vocab_size", uint32(151936)})
}

// Gemma3 is Gemma 3 27B: of 62 layers every 6th sees everything, the others 1,024 tokens.
func Gemma3() *File {
	return base("gemma3",
		KV{"block_count", uint32(62)}, KV{"context_length", uint32(131072)}, KV{"embedding_length", uint32(5376)},
		KV{"feed_forward_length", uint32(21504)}, KV{"attention.head_count", uint32(32)}, KV{"attention.head_count_kv", uint32(16)},
		KV{"attention.key_length", uint32(128)}, KV{"attention.value_length", uint32(128)},
		KV{"attention.sliding_window", uint32(1024)}, KV{"vocab_size", uint32(262208)})
}

// DeepSeek2 is DeepSeek V2 Lite as it was converted before llama.cpp knew latent attention: all heads' keys and values.
func DeepSeek2() *File {
	return base("deepseek2",
		KV{"block_count", uint32(27)}, KV{"context_length", uint32(163840)}, KV{"embedding_length", uint32(2048)},
		KV{"feed_forward_length", uint32(10944)}, KV{"attention.head_count", uint32(16)}, KV{"attention.head_count_kv", uint32(16)},
		KV{"attention.key_length", uint32(192)}, KV{"attention.value_length", uint32(128)},
		KV{"attention.kv_lora_rank", uint32(512)}, KV{"rope.dimension_count", uint32(64)}, KV{"vocab_size", uint32(102400)})
}

// DeepSeek2Latent is the same model as it is converted now: one compressed vector of 512 + 64 for a token.
func DeepSeek2Latent() *File {
	return DeepSeek2().
		Set("deepseek2.attention.head_count_kv", uint32(1)).
		Set("deepseek2.attention.key_length", uint32(576)).Set("deepseek2.attention.value_length", uint32(512)).
		Set("deepseek2.attention.key_length_mla", uint32(192)).Set("deepseek2.attention.value_length_mla", uint32(128))
}

// Qwen3Next is Qwen3-Next 80B: of 48 layers every 4th has attention, the others a gated delta net.
func Qwen3Next() *File {
	return base("qwen3next",
		KV{"block_count", uint32(48)}, KV{"context_length", uint32(262144)}, KV{"embedding_length", uint32(2048)},
		KV{"attention.head_count", uint32(16)}, KV{"attention.head_count_kv", uint32(2)},
		KV{"attention.key_length", uint32(256)}, KV{"attention.value_length", uint32(256)},
		KV{"full_attention_interval", uint32(4)}, KV{"expert_count", uint32(512)}, KV{"expert_used_count", uint32(10)},
		KV{"expert_feed_forward_length", uint32(512)},
		KV{"ssm.conv_kernel", uint32(4)}, KV{"ssm.inner_size", uint32(4096)}, KV{"ssm.state_size", uint32(128)},
		KV{"ssm.time_step_rank", uint32(32)}, KV{"ssm.group_count", uint32(16)}, KV{"vocab_size", uint32(151936)})
}

// Mamba is Mamba 130M: no attention at all.
func Mamba() *File {
	return base("mamba",
		KV{"block_count", uint32(24)}, KV{"context_length", uint32(1 << 20)}, KV{"embedding_length", uint32(768)},
		KV{"attention.head_count", uint32(0)},
		KV{"ssm.conv_kernel", uint32(4)}, KV{"ssm.inner_size", uint32(1536)}, KV{"ssm.state_size", uint32(16)},
		KV{"ssm.time_step_rank", uint32(48)}, KV{"vocab_size", uint32(50280)})
}

// Gemma3n is Gemma 3n E4B: 35 layers, of which the last 15 use the keys and values of others.
func Gemma3n() *File {
	return base("gemma3n",
		KV{"block_count", uint32(35)}, KV{"context_length", uint32(32768)}, KV{"embedding_length", uint32(2048)},
		KV{"feed_forward_length", uint32(16384)}, KV{"attention.head_count", uint32(8)}, KV{"attention.head_count_kv", uint32(2)},
		KV{"attention.key_length", uint32(256)}, KV{"attention.value_length", uint32(256)},
		KV{"attention.sliding_window", uint32(512)}, KV{"vocab_size", uint32(262400)})
}

// Deci is in the manner of Llama-Nemotron: heads differ by layer, and some layers have no attention.
func Deci() *File {
	return base("deci",
		KV{"block_count", uint32(4)}, KV{"context_length", uint32(131072)}, KV{"embedding_length", uint32(8192)},
		KV{"feed_forward_length", []int32{28672, 7168, 14336, 28672}},
		KV{"attention.head_count", []int32{64, 0, 64, 64}}, KV{"attention.head_count_kv", []int32{8, 0, 8, 4}},
		KV{"attention.key_length", uint32(128)}, KV{"attention.value_length", uint32(128)}, KV{"vocab_size", uint32(128256)})
}
