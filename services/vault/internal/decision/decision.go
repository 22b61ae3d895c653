// Package decision decides on calls by the security configuration: the policies, the list of domains, and what an internal program's
// entry names. It runs in the vault. It trusts the configuration and clients.yaml, which humans own, and knows of a call what the
// server found out; it does nothing.
package decision

import (
	"fmt"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/security"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/usage"
)

// Rules that decide where no policy does.
const (
	// UnknownTool decides on a tool that no contract has, in this definition: nothing is asked of any rule.
	UnknownTool = "unknown-tool"
	// Gone decides on an operation whose client or tool is there no more.
	Gone = "client-or-tool-gone"
	// DesktopGate decides where the gate in front of a desktop does.
	DesktopGate = "desktop-gate"
	// notInMay decides on a tool that the client's entry does not name.
	notInMay = "not-in-may"
	// domainBlocked and domainUnknown decide where the list of domains does, on what policies let run.
	domainBlocked = "domain-blocked"
	domainUnknown = "domain-on-no-list"
)

// Judge decides on the calls of one client, or of one session of it, by the configuration as it was when the judge was made.
type Judge struct {
	State  *security.State
	Values security.Values
	Client *clients.Client
	// Call is what all of them have in common.
	Call policy.Call
}

// Of returns a judge of a client's calls in no session in particular.
func Of(state *security.State, client *clients.Client, now time.Time) Judge {
	values := state.Values(client.ID, client.User)
	return Judge{State: state, Values: values, Client: client, Call: policy.Call{
		Client: client.ID, User: client.User, Channel: client.Channel, ChannelName: client.ChannelName, KeyBound: client.KeyBound(), Remote: client.Remote,
		Ceiling: min(client.Ceiling, values.TierCeiling), DesktopAllowed: values.DesktopAllowed, Now: now,
	}}
}

// Decide is the decision on one call.
func (j Judge) Decide(tool contract.Tool, arguments []byte, counts usage.Counts) policy.Decision {
	if !mayCall(j.Client, tool) {
		return policy.Decision{Verdict: policy.Deny, Rule: policy.Rule{ID: notInMay, Layer: policy.BuiltIn, Forbids: true}}
	}
	call := j.Call
	call.Tool, call.Arguments, call.Counts = tool, arguments, policy.Counts(counts)
	d := j.State.Policies.Decide(call)
	if tool.Resource == contract.KindDomain && d.Verdict != policy.Deny {
		j.judgeDomain(tool, arguments, &d)
	}
	return d
}

// judgeDomain holds a call that policies do not deny to the list of domains: a blocked one is denied, whatever allows it, and one on no
// list is asked about (NETS-2).
func (j Judge) judgeDomain(tool contract.Tool, arguments []byte, d *policy.Decision) {
	found, by := destination.Unknown, destination.Entry{}
	if request, err := tool.Decode(arguments); err == nil {
		to, leads, err := tool.Destination(request)
		if err == nil && !leads {
			return
		}
		if err == nil {
			found, by = j.State.Domains.Judge(destination.Party{Client: j.Call.Client, Agent: j.Call.Agent, User: j.Call.User}, to)
		}
	}
	switch {
	case found == destination.Blocked:
		*d = policy.Decision{Verdict: policy.Deny, Rule: policy.Rule{ID: domainBlocked, Layer: policy.Layer(by.Layer), File: by.File, Forbids: true}, Reason: "a human blocked this domain"}
	case found == destination.Unknown && d.Verdict == policy.Run && tool.Leaves:
		d.Verdict, d.Rule = policy.Ask, policy.Rule{ID: domainUnknown}
	}
}

// Always is the verdict if it is the same for every call of the tool; false: it depends.
func (j Judge) Always(tool contract.Tool) (policy.Verdict, bool) {
	if !mayCall(j.Client, tool) {
		return policy.Deny, true
	}
	call := j.Call
	call.Tool = tool
	return j.State.Policies.Always(call)
}

// Counted reports whether a rule looks at how often the client called the tool.
func (j Judge) Counted(tool contract.Tool) bool {
	return j.State.Policies.Counted(j.Call.Client, policy.ActionName(tool))
}

// Permitted reports whether a permit may name the tool: a READ tool that runs whatever its arguments. The vault's own tools have
// no other way, so that what depends on the time is decided anew with each permit.
func (j Judge) Permitted(tool contract.Tool, own bool) bool {
	if !tool.ByPermit() {
		return false
	}
	verdict, certain := j.Always(tool)
	if !certain && own {
		verdict, certain = j.Decide(tool, []byte("{}"), usage.Counts{}).Verdict, true
	}
	return certain && verdict == policy.Run
}

// Told is what an agent is told of the rule that denied it a call: nothing of a tool that it may not see.
func (j Judge) Told(tool contract.Tool, d policy.Decision) string {
	if verdict, certain := j.Always(tool); certain && verdict == policy.Deny {
		return ""
	}
	return d.Told()
}

// RuleName is a rule as records name it: with the place where a human can change it.
func RuleName(r policy.Rule) string {
	if r.Layer == policy.BuiltIn || r.File == "" {
		return r.ID
	}
	return fmt.Sprintf("%s (%s:%d)", r.ID, r.File, r.Line)
}

// PolicyTier is the tier as policy sees it where that is above the contract's; 0 otherwise.
func PolicyTier(d policy.Decision, tool contract.Tool) optionsv1.Tier {
	if d.Tier > tool.Tier {
		return d.Tier
	}
	return optionsv1.Tier_TIER_UNSPECIFIED
}
