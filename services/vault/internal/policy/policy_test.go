package policy

import (
	"encoding/hex"
	"testing"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
)

func TestTiersDecide(t *testing.T) {
	const (
		none        = optionsv1.Tier_TIER_UNSPECIFIED
		read        = optionsv1.Tier_TIER_READ
		write       = optionsv1.Tier_TIER_WRITE
		destructive = optionsv1.Tier_TIER_DESTRUCTIVE
	)
	rules, err := NewTiers()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name          string
		tier, ceiling optionsv1.Tier
		want          Decision
	}{
		{"no tier at all", none, destructive, Decision{Deny, RuleUnknownTool}},
		{"a tier of the future", 9, 9, Decision{Deny, RuleUnknownTool}},
		{"a tier of the future above the ceiling", 9, destructive, Decision{Deny, RuleAboveCeiling}},
		{"no ceiling", read, none, Decision{Deny, RuleAboveCeiling}},
		{"write above a read ceiling", write, read, Decision{Deny, RuleAboveCeiling}},
		{"destructive above a write ceiling", destructive, write, Decision{Deny, RuleAboveCeiling}},
		{"read", read, read, Decision{Run, RuleReadRuns}},
		{"write", write, write, Decision{Ask, RuleMutationsAsk}},
		{"destructive", destructive, destructive, Decision{Ask, RuleMutationsAsk}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := rules.Decide(t.Context(), Call{Ceiling: c.ceiling, Tool: contract.Tool{Tier: c.tier}})
			if err != nil || got != c.want {
				t.Fatalf("Decide = %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
	if (Decision{}).Verdict != Deny {
		t.Error("the zero verdict does not deny")
	}
}

// Grants and records name the rule set by this digest: a change of the rules must be a change of the digest, and a change
// of the digest a decision.
func TestTiersDigestIsPinned(t *testing.T) {
	rules, err := NewTiers()
	if err != nil {
		t.Fatal(err)
	}
	d := rules.Digest()
	const want = "237a275f721a7735a6d521e126c0d0452f4d81e3426f9a4bb6488680e12d6abf"
	if got := hex.EncodeToString(d[:]); got != want {
		t.Errorf("digest %s, want %s", got, want)
	}
}
