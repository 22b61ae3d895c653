package standing

import (
	"testing"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
)

// No scope covers desktop control, nor a tool that has no tier.
func TestWhatNoScopeCovers(t *testing.T) {
	for name, c := range map[string]struct {
		tool  contract.Tool
		taken bool
	}{
		"an ordinary tool":     {contract.Tool{Name: "start_service", Tier: optionsv1.Tier_TIER_WRITE}, true},
		"control of a desktop": {contract.Tool{Name: "type_text", Tier: optionsv1.Tier_TIER_WRITE, Tags: []string{"desktop:keyboard"}}, false},
		"of any kind":          {contract.Tool{Name: "look", Tier: optionsv1.Tier_TIER_READ, Tags: []string{"desktop"}}, false},
		"no tier":              {contract.Tool{Name: "start_service"}, false},
	} {
		if err := scopable(c.tool); (err == nil) != c.taken {
			t.Errorf("%s: %v", name, err)
		}
	}
}
