package model

import "fmt"

// Bounds of a card. They are far above every model that exists, and low enough that no product of theirs takes long to compute.
const (
	MaxLayers       = 4096
	MaxDimension    = 1 << 16
	MaxWindow       = 1 << 30
	MaxContext      = 1 << 30
	MaxStateBytes   = 1 << 40
	MaxWeightsMiB   = 1 << 24
	MaxWidth        = 1 << 20
	MaxVocabulary   = 1 << 26
	maxArchitecture = 64
)

// Problem is what is wrong with a card, and at which of its keys.
type Problem struct {
	// Key is as YAML and JSON have it, such as "layers[2].window".
	Key  string
	What string
}

func (p *Problem) Error() string { return "card." + p.Key + ": " + p.What }

func wrong(key, format string, args ...any) *Problem {
	return &Problem{Key: key, What: fmt.Sprintf(format, args...)}
}

// Check reports the first thing that is wrong with the card, as a *Problem of one sentence, or nil. It says nothing about whether
// the card is true.
func (c Card) Check() error {
	if !plainName(c.Architecture) {
		return wrong("architecture", "architecture is up to %d letters, digits, . _ and -", maxArchitecture)
	}
	for _, b := range []struct {
		key        string
		value, max uint64
	}{
		{"context", uint64(c.Context), MaxContext},
		{"hidden", uint64(c.Hidden), MaxWidth},
		{"feed_forward", uint64(c.FeedForward), MaxWidth},
		{"heads", uint64(c.Heads), MaxDimension},
		{"vocabulary", uint64(c.Vocabulary), MaxVocabulary},
	} {
		if b.value > b.max {
			return wrong(b.key, "%s must be at most %d", b.key, b.max)
		}
	}
	switch {
	case c.WeightsMiB == 0 || c.WeightsMiB > MaxWeightsMiB:
		return wrong("weights_mib", "weights_mib must be 1 to %d", MaxWeightsMiB)
	case c.HostWeightsMiB > c.WeightsMiB:
		return wrong("host_weights_mib", "host_weights_mib is a part of weights_mib, so it must be at most %d", c.WeightsMiB)
	case c.OutputMiB > c.WeightsMiB-c.HostWeightsMiB:
		return wrong("output_mib", "output_mib is a part of weights_mib beside host_weights_mib, so it must be at most %d", c.WeightsMiB-c.HostWeightsMiB)
	case c.ExpertsMiB > c.WeightsMiB-c.HostWeightsMiB-c.OutputMiB:
		return wrong("experts_mib", "experts_mib is a part of weights_mib beside host_weights_mib and output_mib, so it must be at most %d",
			c.WeightsMiB-c.HostWeightsMiB-c.OutputMiB)
	case c.ExpertsFrom >= MaxLayers:
		return wrong("experts_from", "experts_from must be below %d", MaxLayers)
	case len(c.Layers) > MaxLayers:
		return wrong("layers", "a card has at most %d groups of layers", MaxLayers)
	}
	left := uint32(MaxLayers)
	for i, l := range c.Layers {
		if p := l.check(); p != nil {
			p.Key = fmt.Sprintf("layers[%d]%s", i, p.Key)
			return p
		}
		if l.Count > left {
			return wrong(fmt.Sprintf("layers[%d].count", i), "a card has at most %d layers in all", MaxLayers)
		}
		left -= l.Count
	}
	return nil
}

// check reports what is wrong with a group of layers, with the key below it or "" for the whole of it. What its kind gives no meaning
// to must not be given: a slip would otherwise pass for a statement.
func (l Layers) check() *Problem {
	attention := l.Kind == Full || l.Kind == Sliding
	switch {
	case !attention && l.Kind != Recurrent && l.Kind != Latent:
		return wrong(".kind", "kind must be %q, %q, %q or %q", Full, Sliding, Recurrent, Latent)
	case l.Count == 0:
		return wrong(".count", "count must be at least 1")
	case l.KVHeads > MaxDimension:
		return wrong(".kv_heads", "kv_heads must be at most %d", MaxDimension)
	case l.KeyDim > MaxDimension:
		return wrong(".key_dim", "key_dim must be at most %d", MaxDimension)
	case l.ValueDim > MaxDimension:
		return wrong(".value_dim", "value_dim must be at most %d", MaxDimension)
	case l.StateBytes > MaxStateBytes:
		return wrong(".state_bytes", "state_bytes must be at most %d", MaxStateBytes)
	case l.Window > MaxWindow:
		return wrong(".window", "window must be at most %d", MaxWindow)
	case l.Window > 0 && l.Kind != Sliding:
		return wrong(".window", "window is of sliding layers alone")
	case l.Window == 0 && l.Kind == Sliding:
		return wrong("", "sliding layers need window, in tokens")
	case l.Kind == Recurrent && (l.KVHeads > 0 || l.KeyDim > 0 || l.ValueDim > 0):
		return wrong("", "recurrent layers keep no keys and values, so kv_heads, key_dim and value_dim have no meaning")
	case attention && !l.Shared && (l.KVHeads == 0 || l.KeyDim == 0):
		return wrong("", "%s layers need kv_heads and key_dim", l.Kind)
	case l.Kind == Latent && !l.Shared && l.KeyDim == 0:
		return wrong("", "latent layers need key_dim")
	case l.Kind == Latent && l.KVHeads > 1:
		return wrong(".kv_heads", "latent layers keep one vector for all heads, so kv_heads is 1 or none")
	}
	return nil
}

// plainName reports whether a name that may have come from a file is one that can be shown anywhere.
func plainName(s string) bool {
	if len(s) > maxArchitecture {
		return false
	}
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
		default:
			return false
		}
	}
	return true
}
