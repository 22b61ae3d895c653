package server

import (
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/rollback"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/session"
)

// This file makes the negative controls of deploy/e2e: the vault without one of its guards.

// Guards are the names that Weaken takes.
var Guards = []string{"unattended", "policy", "agent", "state"}

// weakened is set once, from a flag, before anything is served.
var weakened = map[string]bool{}

// Weaken removes a guard.
func Weaken(name string) {
	weakened[name] = true
	if name == "state" {
		database.WeakenSeals()
		rollback.Weaken()
	}
}

// unattended without "unattended" lets whoever relays a bearer token change things.
func unattended(opened *session.Session) bool {
	return opened.Client.KeyBound() || weakened["unattended"]
}

// verdict without "policy" lets run what policy denies.
func verdict(d policy.Decision) policy.Verdict {
	if weakened["policy"] && d.Verdict == policy.Deny {
		return policy.Ask
	}
	return d.Verdict
}

// hasAgent without "agent" believes any name.
func hasAgent(c *clients.Client, name string) bool { return weakened["agent"] || c.HasAgent(name) }
