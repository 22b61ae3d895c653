// Package model says what of a language model decides how much memory it takes: its card. A human writes one into the catalog,
// or the inspector reads it from a model's files. It links nothing but the standard library and holds no formula: package vram
// has those.
package model

// Kinds of layers, by what each keeps for the tokens that it has seen.
const (
	// Full keeps a key and a value for every token.
	Full = "full"
	// Sliding keeps them for the newest tokens alone, Window of them.
	Sliding = "sliding"
	// Recurrent keeps a state of fixed size for each sequence (SSM, linear attention).
	Recurrent = "recurrent"
	// Latent keeps one compressed vector for every token (MLA).
	Latent = "latent"
)

// Layers are Count layers that are alike. A layer that has attention and a state at once (Falcon-H1) is of attention's kind, with
// StateBytes; one that keeps nothing (an MLP alone) is full and Shared.
type Layers struct {
	Count uint32 `yaml:"count" json:"count"`
	Kind  string `yaml:"kind" json:"kind"`
	// KVHeads, KeyDim and ValueDim are of full and sliding layers; of latent ones KeyDim is the width of what is kept for a token
	// (kv_lora_rank + rope dimensions), KVHeads is 1 and ValueDim 0 unless the engine keeps values apart.
	KVHeads  uint32 `yaml:"kv_heads" json:"kv_heads,omitempty"`
	KeyDim   uint32 `yaml:"key_dim" json:"key_dim,omitempty"`
	ValueDim uint32 `yaml:"value_dim" json:"value_dim,omitempty"`
	// Window is of sliding layers, in tokens.
	Window uint32 `yaml:"window" json:"window,omitempty"`
	// StateBytes is the state that a layer keeps for one sequence.
	StateBytes uint64 `yaml:"state_bytes" json:"state_bytes,omitempty"`
	// Shared: they read another layer's keys and values and keep none.
	Shared bool `yaml:"shared" json:"shared,omitempty"`
}

// Card is what of a model decides how much memory it takes.
type Card struct {
	// Architecture is the files' own word, "qwen3" or "Gemma3ForCausalLM". Untrusted where a file was read.
	Architecture string `yaml:"architecture" json:"architecture,omitempty"`
	// WeightsMiB are all weights as they lie in the files; HostWeightsMiB of them stay in the host's memory where the engine leaves
	// input embeddings there (llama.cpp).
	WeightsMiB     uint32 `yaml:"weights_mib" json:"weights_mib"`
	HostWeightsMiB uint32 `yaml:"host_weights_mib" json:"host_weights_mib,omitempty"`
	// OutputMiB of the rest are the output layer, which lies on one GPU as a whole (llama.cpp: the last). 0: not known.
	OutputMiB uint32 `yaml:"output_mib" json:"output_mib,omitempty"`
	// ExpertsMiB of the rest are the experts of a mixture, which llama.cpp can keep with the host layer by layer, and which vLLM's copies share.
	// Layer number ExpertsFrom is the first that has some; 0 where only their size is known.
	ExpertsMiB  uint32 `yaml:"experts_mib" json:"experts_mib,omitempty"`
	ExpertsFrom uint32 `yaml:"experts_from" json:"experts_from,omitempty"`
	// Layers are all of them, in order, alike ones together.
	Layers []Layers `yaml:"layers" json:"layers,omitempty"`
	// Context is the longest context that the model was trained for, in tokens.
	Context uint32 `yaml:"context" json:"context,omitempty"`
	// Hidden, FeedForward, Heads and Vocabulary size the buffers of computation. 0: not known.
	Hidden      uint32 `yaml:"hidden" json:"hidden,omitempty"`
	FeedForward uint32 `yaml:"feed_forward" json:"feed_forward,omitempty"`
	Heads       uint32 `yaml:"heads" json:"heads,omitempty"`
	Vocabulary  uint32 `yaml:"vocabulary" json:"vocabulary,omitempty"`
}
