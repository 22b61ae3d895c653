package vram

import (
	"fmt"

	"durward.internal/services/platform/model"
)

// KVBytes is the KV cache of one sequence of so many tokens in bytes, without padding of batches: what golden values are given for.
func KVBytes(card model.Card, run Run, tokens uint64) (uint64, error) {
	if len(card.Layers) == 0 {
		return 0, ErrNoCard
	}
	if err := card.Check(); err != nil {
		return 0, fmt.Errorf("the model's card: %w", err)
	}
	k, v := run.types()
	var sum uint64
	for _, l := range card.Layers {
		kept := tokens
		if l.Kind == model.Sliding && !run.FullWindow {
			kept = min(tokens, uint64(l.Window))
		}
		sum = add(sum, mul(uint64(l.Count), layerBytes(l, k, v, 1, kept, 1)))
	}
	return sum, nil
}
