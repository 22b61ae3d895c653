package policy

import (
	"fmt"
	"slices"
	"strings"
)

// This file makes negative controls of deploy/e2e: a policy without one of its guards.

// Guards are the names that Weaken takes.
var Guards = []string{"policy-error", "policy-project", "policy-known", "policy-binds", "policy-forbid"}

var weak = map[string]bool{}

// Weaken removes guards, by name, comma-separated. Call it before anything is compiled.
func Weaken(names string) error {
	for name := range strings.SplitSeq(names, ",") {
		if !slices.Contains(Guards, name) {
			return fmt.Errorf("no such guard: %s", name)
		}
		weak[name] = true
	}
	return nil
}

func failedForbidCounts() bool { return !weak["policy-error"] }

func mayPermit(l Layer) bool {
	return weak["policy-project"] || l == BuiltIn || l == System || l == User
}

func mayName(l Layer) bool { return weak["policy-known"] || l == System || l == User }

func binds(r *rule, c *Call) bool { return weak["policy-binds"] || r.about(c.Client, c.User) }

func forbidWins() bool { return !weak["policy-forbid"] }
