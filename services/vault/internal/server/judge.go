package server

import (
	"fmt"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/security"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/standing"
	"durward.internal/services/vault/internal/store"
	"durward.internal/services/vault/internal/usage"
)

// ruleUnknownTool is what decides on a tool that no contract has, in this definition: nothing is asked of any rule.
const ruleUnknownTool = "unknown-tool"

// ruleGone is what decides on an operation whose client or tool is there no more.
const ruleGone = "client-or-tool-gone"

// ruleMay is what decides on a tool that an internal program's entry does not name.
const ruleMay = "not-in-may"

// ruleDesktop is what decides where the gate in front of a desktop does.
const ruleDesktop = "desktop-gate"

// rules are the policies as they are in force.
func (s *Server) rules() *policy.Set { return s.Security.Current().Policies }

// judge decides on the calls of one client, or of one session of it, by the configuration as it was when the judge was made.
type judge struct {
	state  *security.State
	values security.Values
	client *clients.Client
	// call is what all of them have in common.
	call policy.Call
}

// judge returns a judge of a session's calls. client is as clients.yaml has it now; what the session opened with binds it too.
func (s *Server) judge(opened *session.Session, client *clients.Client) judge {
	j := s.judgeClient(client)
	j.call.Agent, j.call.KeyBound, j.call.Remote = opened.Agent, opened.Client.KeyBound(), opened.Remote
	j.call.Ceiling = opened.Ceiling(j.call.Ceiling)
	_, j.call.Dangerous = s.Standing.Dangerous(opened.Ref)
	return j
}

// judgeClient returns a judge of a client's calls in no session in particular.
func (s *Server) judgeClient(client *clients.Client) judge {
	state := s.Security.Current()
	values := state.Values(client.ID, client.User)
	return judge{state: state, values: values, client: client, call: policy.Call{
		Client: client.ID, User: client.User, Channel: client.Channel, ChannelName: client.ChannelName, KeyBound: client.KeyBound(), Remote: client.Remote,
		Ceiling: min(client.Ceiling, values.TierCeiling), DesktopAllowed: values.DesktopAllowed, Now: s.Now(),
	}}
}

// Rules that decide where the list of domains does, on what policies let run.
const (
	ruleBlocked = "domain-blocked"
	ruleUnknown = "domain-on-no-list"
)

// decide is the decision on one call.
func (j judge) decide(tool contract.Tool, arguments []byte, counts usage.Counts) policy.Decision {
	if !mayCall(j.client, tool) {
		return policy.Decision{Verdict: policy.Deny, Rule: policy.Rule{ID: ruleMay, Layer: policy.BuiltIn, Forbids: true}}
	}
	call := j.call
	call.Tool, call.Arguments, call.Counts = tool, arguments, policy.Counts(counts)
	d := j.state.Policies.Decide(call)
	if tool.Resource == contract.KindDomain && d.Verdict != policy.Deny {
		j.judgeDomain(tool, arguments, &d)
	}
	return d
}

// judgeDomain holds a call that policies do not deny to the list of domains: a blocked one is denied, whatever allows it, and one on no
// list is asked about (NETS-2).
func (j judge) judgeDomain(tool contract.Tool, arguments []byte, d *policy.Decision) {
	found := destination.Unknown
	if request, err := tool.Decode(arguments); err == nil {
		if to, _, err := tool.Destination(request); err == nil {
			found, _ = j.state.Domains.Judge(j.call.Client, j.call.Agent, to)
		}
	}
	switch {
	case found == destination.Blocked:
		*d = policy.Decision{Verdict: policy.Deny, Rule: policy.Rule{ID: ruleBlocked}, Reason: "a human blocked this domain"}
	case found == destination.Unknown && d.Verdict == policy.Run && tool.Leaves:
		d.Verdict, d.Rule = policy.Ask, policy.Rule{ID: ruleUnknown}
	}
}

// always is the verdict if it is the same for every call of the tool; false: it depends.
func (j judge) always(tool contract.Tool) (policy.Verdict, bool) {
	if !mayCall(j.client, tool) {
		return policy.Deny, true
	}
	call := j.call
	call.Tool = tool
	return j.state.Policies.Always(call)
}

// counted reports whether a rule looks at how often the client called the tool.
func (j judge) counted(tool contract.Tool) bool {
	return j.state.Policies.Counted(j.call.Client, policy.ActionName(tool))
}

// permitted reports whether a permit may name the tool: a READ tool that runs whatever its arguments. The vault's own tools have
// no other way, so that what depends on the time is decided anew with each permit.
func (j judge) permitted(tool contract.Tool, own bool) bool {
	if !tool.ByPermit() {
		return false
	}
	verdict, certain := j.always(tool)
	if !certain && own {
		verdict, certain = j.decide(tool, []byte("{}"), usage.Counts{}).Verdict, true
	}
	return certain && verdict == policy.Run
}

// callable names the tools that the session may call at all: not those that are denied whatever their arguments, and of the vault's
// own those that its permit names.
func (s *Server) callable(j judge) []string {
	var names []string
	for _, tool := range contract.Tools() {
		own := tool.Sink == optionsv1.Role_ROLE_VAULT
		if _, served := s.sinks[tool.Sink]; !served && !own {
			continue
		}
		verdict, certain := j.always(tool)
		denied := certain && verdict == policy.Deny
		if own && j.permitted(tool, own) || !own && !denied {
			names = append(names, tool.Name)
		}
	}
	return names
}

// told is what an agent is told of the rule that denied it a call: nothing of a tool that it may not see.
func (j judge) told(tool contract.Tool, d policy.Decision) string {
	if verdict, certain := j.always(tool); certain && verdict == policy.Deny {
		return ""
	}
	return d.Told()
}

// stillAllowed judges an operation again, by the rules as they are when a human approves it or somebody comes to carry it out: what a
// human denied in a file since it was asked for stays denied (DENIED is lifted by nobody). What has begun has begun, and a human's
// own command is bound by no client's rules. It returns the rule that denies.
func (s *Server) stillAllowed(op *store.Operation) (rule string, allowed bool) {
	begun := op.State != vaultv1.OperationState_OPERATION_STATE_PENDING && op.State != vaultv1.OperationState_OPERATION_STATE_APPROVED
	if begun || op.Session == operation.CommandSession {
		return "", true
	}
	d, ok := s.again(op)
	if !ok {
		return ruleGone, false
	}
	return ruleName(d.Rule), verdict(d) != policy.Deny || d.RetryAfter > 0
}

// again is the decision on an operation by the rules as they are now, however often its client has called; false where its client or
// its tool is gone. What its session lowered for itself counts while the session lives.
func (s *Server) again(op *store.Operation) (policy.Decision, bool) {
	client, known := s.Clients.Lookup(op.Principal)
	tool, there := contract.Lookup(op.ToolName)
	if !known || !there {
		return policy.Decision{}, false
	}
	var j judge
	if opened, live := s.Sessions.Live(op.Session); live {
		j = s.judge(opened, client)
	} else {
		j = s.judgeClient(client)
		j.call.Agent, j.call.KeyBound = op.Agent, op.KeyBound
	}
	return j.decide(tool, op.Arguments, usage.Counts{}), true
}

// ruleName is a rule as records name it: with the place where a human can change it.
func ruleName(r policy.Rule) string {
	if r.Layer == policy.BuiltIn || r.File == "" {
		return r.ID
	}
	return fmt.Sprintf("%s (%s:%d)", r.ID, r.File, r.Line)
}

// policyTier is the tier as policy sees it where that is above the contract's; 0 otherwise.
func policyTier(d policy.Decision, tool contract.Tool) optionsv1.Tier {
	if d.Tier > tool.Tier {
		return d.Tier
	}
	return optionsv1.Tier_TIER_UNSPECIFIED
}

// Humans is what the security configuration says, as it is now, of what people may agree to. The packages consent and standing ask
// it.
type Humans struct{ Security *security.Live }

// FourEyes reports whether another human than the client's own has to agree to what it asks: consent.Of's.
func (h Humans) FourEyes(client, user string) bool {
	return h.Security.Current().Values(client, user).FourEyes
}

// Limits is standing.Config's.
func (h Humans) Limits(client, user string) standing.Limits {
	v := h.Security.Current().Values(client, user)
	return standing.Limits{
		ScopeMax: seconds(v.ScopeMaxS), ScopeMaxUses: v.ScopeMaxUses, DangerousMax: seconds(v.DangerousMaxS), DangerousAllowed: v.DangerousAllowed,
	}
}

func seconds(n uint32) time.Duration { return time.Duration(n) * time.Second }
