package vram

import "durward.internal/services/platform/enginecmd"

// elements is a data type of the KV cache: so many bytes for so many elements.
type elements struct{ size, of uint64 }

func (e elements) bytes(n uint64) uint64 { return ratio(n, e.size, e.of) }

var two = elements{2, 1}

// cacheTypes are the data types by the engines' names. Those of llama.cpp are blocks of 32 elements with their scales
// (ggml/src/ggml-common.h: block_q8_0 is 34 bytes, block_q5_1 24, block_q5_0 22, block_q4_1 20, block_q4_0 and block_iq4_nl 18);
// fp4 is a block of 16 elements in 8 bytes and one of scale (vLLM's nvfp4, SGLang's fp4_e2m1).
var cacheTypes = map[string]elements{
	"f32": {4, 1}, "float32": {4, 1}, "float": {4, 1},
	"f16": two, "bf16": two, "float16": two, "bfloat16": two, "half": two, "auto": two,
	"fp8": {1, 1}, "fp8_e4m3": {1, 1}, "fp8_e5m2": {1, 1}, "fp8_inc": {1, 1}, "int8": {1, 1},
	"q8_0": {34, 32}, "q5_1": {24, 32}, "q5_0": {22, 32}, "q4_1": {20, 32}, "q4_0": {18, 32}, "iq4_nl": {18, 32},
	"nvfp4": {9, 16}, "fp4_e2m1": {9, 16},
}

func cacheType(name string) elements {
	if e, known := cacheTypes[name]; known {
		return e
	}
	return two
}

// types are those of keys and values. Without flash attention llama.cpp keeps no quantised values ("V cache quantization requires
// flash_attn", src/llama-context.cpp).
func (r Run) types() (k, v elements) {
	k, v = cacheType(r.CacheK), cacheType(r.CacheV)
	if !r.FlashAttention && r.blocks() && v.size < 2*v.of {
		v = two
	}
	return k, v
}

// blocks reports whether the engine is one of ggml.
func (r Run) blocks() bool { return r.Engine == enginecmd.LlamaCPP || r.Engine == enginecmd.Ollama }

// quantised reports whether the cache has to be unpacked for computation.
func (e elements) quantised() bool { return e.size < 2*e.of }
