// Package policy decides whether a call runs, waits for a human, or does not happen. It is inside the vault, sees calls
// that are already authenticated and validated, and trusts nothing that an agent says about itself.
//
// A sink does not believe the answer RUN for anything that changes the host: without a human's statement it refuses.
package policy

import (
	"context"
	"crypto/sha256"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
)

// Verdict is what a policy says. The zero value denies.
type Verdict int

// The verdicts.
const (
	Deny Verdict = iota
	Run
	Ask
)

// Names of the rules of the built-in rule set, as records show them.
const (
	RuleReadRuns     = "read-runs"
	RuleMutationsAsk = "mutations-ask"
	RuleAboveCeiling = "above-ceiling"
	RuleUnknownTool  = "unknown-tool"
)

// Call is one call to decide on.
type Call struct {
	Principal string
	Channel   callv1.Channel
	// Ceiling is the highest tier that the principal's client may use.
	Ceiling optionsv1.Tier
	Tool    contract.Tool
	// Arguments are in RFC 8785 form.
	Arguments []byte
}

// Decision is a verdict and the name of the rule that gave it.
type Decision struct {
	Verdict Verdict
	Rule    string
}

// Decider decides. It is safe for concurrent use. Digest changes whenever the answers might.
type Decider interface {
	Decide(ctx context.Context, call Call) (Decision, error)
	// Digest is SHA-256 of the rule set's canonical description; grants carry it.
	Digest() [sha256.Size]byte
}

// Tiers is the built-in rule set: READ runs, WRITE and DESTRUCTIVE ask, anything above the client's ceiling and anything
// else is denied.
type Tiers struct{ digest [sha256.Size]byte }

// NewTiers returns the built-in rule set.
func NewTiers() (*Tiers, error) {
	description, err := canonical.Marshal(map[string]any{
		"kind":    "tiers",
		"version": 1,
		"rules": []map[string]string{
			{"name": RuleAboveCeiling, "when": "tier > ceiling", "then": "DENY"},
			{"name": RuleReadRuns, "when": "tier = READ", "then": "RUN"},
			{"name": RuleMutationsAsk, "when": "tier = WRITE or tier = DESTRUCTIVE", "then": "ASK"},
			{"name": RuleUnknownTool, "when": "otherwise", "then": "DENY"},
		},
	})
	if err != nil {
		return nil, err
	}
	return &Tiers{digest: sha256.Sum256(description)}, nil
}

// Digest is SHA-256 of the rule set's canonical description.
func (t *Tiers) Digest() [sha256.Size]byte { return t.digest }

// Decide applies the rules in their order; it never fails.
func (t *Tiers) Decide(_ context.Context, call Call) (Decision, error) {
	switch tier := call.Tool.Tier; {
	case tier > call.Ceiling:
		return Decision{Deny, RuleAboveCeiling}, nil
	case tier == optionsv1.Tier_TIER_READ:
		return Decision{Run, RuleReadRuns}, nil
	case tier == optionsv1.Tier_TIER_WRITE, tier == optionsv1.Tier_TIER_DESTRUCTIVE:
		return Decision{Ask, RuleMutationsAsk}, nil
	default:
		return Decision{Deny, RuleUnknownTool}, nil
	}
}
