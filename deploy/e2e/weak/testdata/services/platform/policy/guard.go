package policy

import "durward.internal/services/platform/weakness"

// This file makes negative controls of deploy/e2e: a policy without one of its guards.

// Guards are those that a drill build may lack.
var Guards = weakness.Of("policy-error", "policy-project", "policy-known", "policy-binds", "policy-forbid")

func failedForbidCounts() bool { return !Guards.Off("policy-error") }

func mayPermit(l Layer) bool {
	return Guards.Off("policy-project") || l == BuiltIn || l == System || l == User
}

func mayName(l Layer) bool { return Guards.Off("policy-known") || l == System || l == User }

func binds(r *rule, c *Call) bool { return Guards.Off("policy-binds") || r.about(c.Client, c.User) }

func forbidWins() bool { return !Guards.Off("policy-forbid") }
