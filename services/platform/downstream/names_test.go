package downstream

import (
	"testing"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
)

// TestNamesAreTheContracts: what a human signs names tools, their source and their tiers as everything else does.
func TestNamesAreTheContracts(t *testing.T) {
	if got, want := called("fs", "read"), contract.ServerTool("fs", "read"); got != want {
		t.Errorf("%s, not %s", got, want)
	}
	if got, want := source("fs"), contract.ServerSource("fs"); got != want {
		t.Errorf("%s, not %s", got, want)
	}
	if got, want := tierName(optionsv1.Tier_TIER_WRITE), contract.TierName(optionsv1.Tier_TIER_WRITE); got != want {
		t.Errorf("%s, not %s", got, want)
	}
}
