package decision

import (
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/weakness"
	"durward.internal/services/vault/internal/clients"
)

// This file makes the negative controls of deploy/e2e: the vault without one of these guards.

// Guards are those that a drill build may lack.
var Guards = weakness.Of("policy", "may")

// Verdict without "policy" lets run what policy denies.
func Verdict(d policy.Decision) policy.Verdict {
	if Guards.Off("policy") && d.Verdict == policy.Deny {
		return policy.Ask
	}
	return d.Verdict
}

// mayCall without "may" lets an internal program call every tool.
func mayCall(c *clients.Client, tool contract.Tool) bool { return Guards.Off("may") || c.MayCall(tool) }
