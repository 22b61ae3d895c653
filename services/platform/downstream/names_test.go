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
	for name, tool := range map[string]bool{"read": true, ReadResource: false, PromptPrefix + "x": false, AnswerQuestion: true} {
		if err := contract.Pin([]contract.Definition{{Foreign: contract.Foreign{Server: "fs", Name: name}}}); err != nil {
			t.Fatal(err)
		}
		pinned, _ := contract.Pinned(called("fs", name))
		if isTool(name) != tool || pinned.IsTool() != tool || (pinned.ResourcesURI() != "") != (name == ReadResource) || (pinned.PromptName() == "fs__x") != (name == PromptPrefix+"x") || pinned.Answers() != (name == AnswerQuestion) {
			t.Errorf("%s is a tool: %t, and %t there", name, isTool(name), pinned.IsTool())
		}
	}
	t.Cleanup(func() { _ = contract.Pin(nil) }) // no tools are always taken
	if got, want := source("fs"), contract.ServerSource("fs"); got != want {
		t.Errorf("%s, not %s", got, want)
	}
	if got, want := tierName(optionsv1.Tier_TIER_WRITE), contract.TierName(optionsv1.Tier_TIER_WRITE); got != want {
		t.Errorf("%s, not %s", got, want)
	}
}
