package model

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

func good() Card {
	return Card{
		Architecture: "gemma3", WeightsMiB: 16384, HostWeightsMiB: 1024, OutputMiB: 1104, ExpertsMiB: 14256, ExpertsFrom: 3, Context: 131072, Hidden: 5376, FeedForward: 21504, Heads: 32, Vocabulary: 262208,
		Layers: []Layers{
			{Count: 52, Kind: Sliding, KVHeads: 16, KeyDim: 128, ValueDim: 128, Window: 1024},
			{Count: 10, Kind: Full, KVHeads: 16, KeyDim: 128, ValueDim: 128},
			{Count: 2, Kind: Full, KVHeads: 16, KeyDim: 128, Shared: true},
			{Count: 1, Kind: Recurrent, StateBytes: 1 << 20},
			{Count: 1, Kind: Recurrent},
			{Count: 1, Kind: Full, Shared: true},
			{Count: 1, Kind: Latent, Shared: true},
			{Count: 3, Kind: Latent, KVHeads: 1, KeyDim: 576},
			{Count: 3, Kind: Latent, KeyDim: 576},
			{Count: 1, Kind: Full, KVHeads: 2, KeyDim: 128, ValueDim: 128, StateBytes: 1 << 20},
		},
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	if err := good().Check(); err != nil {
		t.Fatal(err)
	}
	if err := (Card{WeightsMiB: 1}).Check(); err != nil {
		t.Errorf("a card of weights alone: %v", err)
	}
	tests := []struct {
		name, key, what string
		spoil           func(*Card)
	}{
		{"nothing", "weights_mib", "1 to", func(c *Card) { *c = Card{} }},
		{"weights beyond all bounds", "weights_mib", "1 to", func(c *Card) { c.WeightsMiB = MaxWeightsMiB + 1 }},
		{"more on the host than there is", "host_weights_mib", "a part of", func(c *Card) { c.HostWeightsMiB = c.WeightsMiB + 1 }},
		{"an output that is more than the rest", "output_mib", "a part of", func(c *Card) { c.OutputMiB = c.WeightsMiB - c.HostWeightsMiB + 1 }},
		{"experts that are more than the rest", "experts_mib", "a part of", func(c *Card) { c.ExpertsMiB = c.WeightsMiB - c.HostWeightsMiB - c.OutputMiB + 1 }},
		{"experts beyond all layers", "experts_from", "below", func(c *Card) { c.ExpertsFrom = MaxLayers }},
		{"a name that moves the cursor", "architecture", "letters", func(c *Card) { c.Architecture = "a\x1b[2K" }},
		{"a name in another script", "architecture", "letters", func(c *Card) { c.Architecture = "gemm\u0430" }},
		{"a name of 65", "architecture", "up to 64", func(c *Card) { c.Architecture = strings.Repeat("a", 65) }},
		{"context", "context", "at most", func(c *Card) { c.Context = MaxContext + 1 }},
		{"hidden", "hidden", "at most", func(c *Card) { c.Hidden = math.MaxUint32 }},
		{"feed_forward", "feed_forward", "at most", func(c *Card) { c.FeedForward = math.MaxUint32 }},
		{"heads", "heads", "at most", func(c *Card) { c.Heads = math.MaxUint32 }},
		{"vocabulary", "vocabulary", "at most", func(c *Card) { c.Vocabulary = math.MaxUint32 }},
		{"too many groups", "layers", "groups", func(c *Card) { c.Layers = slices.Repeat(c.Layers[:1], MaxLayers+1) }},
		{"too many layers", "layers[1].count", "in all", func(c *Card) { c.Layers[1].Count = MaxLayers }},
		{"layers whose number overflows", "layers[0].count", "in all", func(c *Card) { c.Layers[0].Count = math.MaxUint32 }},
		{"no kind", "layers[0].kind", "must be", func(c *Card) { c.Layers[0].Kind = "" }},
		{"another kind", "layers[0].kind", "must be", func(c *Card) { c.Layers[0].Kind = "Full" }},
		{"none of a group", "layers[2].count", "at least 1", func(c *Card) { c.Layers[2].Count = 0 }},
		{"kv_heads", "layers[1].kv_heads", "at most", func(c *Card) { c.Layers[1].KVHeads = MaxDimension + 1 }},
		{"key_dim", "layers[1].key_dim", "at most", func(c *Card) { c.Layers[1].KeyDim = MaxDimension + 1 }},
		{"value_dim", "layers[1].value_dim", "at most", func(c *Card) { c.Layers[1].ValueDim = MaxDimension + 1 }},
		{"window", "layers[0].window", "at most", func(c *Card) { c.Layers[0].Window = MaxWindow + 1 }},
		{"a window of what does not slide", "layers[1].window", "sliding layers alone", func(c *Card) { c.Layers[1].Window = 5 }},
		{"what slides without a window", "layers[0]", "need window", func(c *Card) { c.Layers[0].Window = 0 }},
		{"state_bytes", "layers[3].state_bytes", "at most", func(c *Card) { c.Layers[3].StateBytes = MaxStateBytes + 1 }},
		{"a state of attention", "layers[1].state_bytes", "at most", func(c *Card) { c.Layers[1].StateBytes = MaxStateBytes + 1 }},
		{"keys of a state", "layers[3]", "no keys", func(c *Card) { c.Layers[3].KVHeads = 5 }},
		{"attention without heads", "layers[1]", "need kv_heads", func(c *Card) { c.Layers[1].KVHeads = 0 }},
		{"attention without keys", "layers[1]", "need kv_heads", func(c *Card) { c.Layers[1].KeyDim = 0 }},
		{"latent without width", "layers[7]", "need key_dim", func(c *Card) { c.Layers[7].KeyDim = 0 }},
		{"latent with heads", "layers[7].kv_heads", "one vector", func(c *Card) { c.Layers[7].KVHeads = 2 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := good()
			tt.spoil(&c)
			var p *Problem
			if err := c.Check(); !errors.As(err, &p) {
				t.Fatalf("it says %v", err)
			}
			if p.Key != tt.key || !strings.Contains(p.What, tt.what) || strings.Contains(p.Error(), "\n") {
				t.Errorf("it says %q at %q", p.What, p.Key)
			}
		})
	}
}
