package contract

import (
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// mostTold is how long a description is in a list, in characters.
const mostTold = 600

// Told is a tool's description as agents read it in a list: the beginning of Described.
func Told(t Tool) string {
	text := []rune(Described(t))
	return string(text[:min(len(text), mostTold)])
}

// Described is the whole of it: of another's tool first whose it is and how it runs, which our own say by themselves.
func Described(t Tool) string {
	if t.Foreign == nil {
		return t.Description
	}
	how := TierName(t.Tier) + ": a human must approve it"
	if t.Tier == optionsv1.Tier_TIER_READ {
		how = TierName(t.Tier)
	}
	return how + ". By the server " + t.Foreign.Server + ": " + t.Description
}
