package decision

import (
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/policy"
	"durward.internal/services/vault/internal/clients"
)

// Verdict is what policy said.
func Verdict(d policy.Decision) policy.Verdict { return d.Verdict }

// mayCall reports whether the client's entry names the tool, where it names any.
func mayCall(c *clients.Client, tool contract.Tool) bool { return c.MayCall(tool) }
