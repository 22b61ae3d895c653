package server

import (
	"slices"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/security"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/decision"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/standing"
	"durward.internal/services/vault/internal/store"
	"durward.internal/services/vault/internal/usage"
)

// rules are the policies as they are in force.
func (s *Server) rules() *policy.Set { return s.Security.Current().Policies }

// judge returns a judge of a session's calls. client is as clients.yaml has it now; what the session opened with binds it too.
func (s *Server) judge(opened *session.Session, client *clients.Client) decision.Judge {
	j := s.judgeClient(client)
	j.Call.Agent, j.Call.KeyBound, j.Call.Remote = opened.Agent, opened.Client.KeyBound(), opened.Remote
	j.Call.Ceiling = opened.Ceiling(j.Call.Ceiling)
	_, j.Call.Dangerous = s.Standing.Dangerous(opened.Ref)
	return j
}

// judgeClient returns a judge of a client's calls in no session in particular.
func (s *Server) judgeClient(client *clients.Client) decision.Judge {
	return decision.Of(s.Security.Current(), client, s.Now())
}

// served are the tools of the processes that there are: without egress, none of its.
func (s *Server) served() []contract.Tool {
	return slices.DeleteFunc(contract.All(), func(tool contract.Tool) bool { _, there := s.sinks[tool.Sink]; return !there })
}

// callable are the tools that the session may call at all: not those that are denied whatever their arguments, and of the vault's
// own those that its permit names.
func (s *Server) callable(j decision.Judge) []contract.Tool {
	return slices.DeleteFunc(s.served(), func(tool contract.Tool) bool {
		if tool.Sink == optionsv1.Role_ROLE_VAULT {
			return !j.Permitted(tool, true)
		}
		verdict, certain := j.Always(tool)
		return certain && verdict == policy.Deny
	})
}

func names(tools []contract.Tool) []string {
	out := make([]string, len(tools))
	for i, tool := range tools {
		out[i] = tool.Name
	}
	return out
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
		return decision.Gone, false
	}
	return decision.RuleName(d.Rule), decision.Verdict(d) != policy.Deny || d.RetryAfter > 0
}

// again is the decision on an operation by the rules as they are now, however often its client has called; false where its client or
// its tool is gone. What its session lowered for itself counts while the session lives.
func (s *Server) again(op *store.Operation) (policy.Decision, bool) {
	client, known := s.Clients.Lookup(op.Principal)
	tool, there := contract.Lookup(op.ToolName)
	if !known || !there {
		return policy.Decision{}, false
	}
	var j decision.Judge
	if opened, live := s.Sessions.Live(op.Session); live {
		j = s.judge(opened, client)
	} else {
		j = s.judgeClient(client)
		j.Call.Agent, j.Call.KeyBound = op.Agent, op.KeyBound
	}
	return j.Decide(tool, op.Arguments, usage.Counts{}), true
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
