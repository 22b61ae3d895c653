package server

import (
	"context"
	"fmt"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/usage"
)

// boundary is what an agent must know of its own rules (DOC-1).
const boundary = "Only a human changes these rules, in files or with durward on the host; nothing that is sent to a tool does. " +
	"tier_ceiling_override can only lower this session's own tier, and ends with it."

// layerSession is where a value comes from that the session lowered for itself.
const layerSession = "session"

// SecurityConfig shows a session what binds it, and lowers its own ceiling where the call says so (CFG-2). It shows nothing of
// anybody else's, no file and no rule.
func (s *toolService) SecurityConfig(ctx context.Context, req *vaultv1.SecurityConfigRequest) (*vaultv1.SecurityConfigResponse, error) {
	q := question{method: vaultv1.ToolService_SecurityConfig_FullMethodName}
	if err := s.admit(ctx, &q); err != nil {
		return nil, err
	}
	outcome := &callv1.Outcome{Summary: "what binds this session"}
	if req.TierCeilingOverride != nil {
		if err := s.lower(ctx, q.opened, q.client, req.GetTierCeilingOverride(), outcome); err != nil {
			return nil, err
		}
	}
	resp := s.bindings(q.opened, q.client)
	if err := s.shown(ctx, &q, "show-config", "its session was shown what binds it", req); err != nil {
		return nil, err
	}
	rpc.SetOutcome(ctx, outcome)
	return resp, nil
}

// lower brings a session's ceiling down until it ends. It is recorded before it counts.
func (s *toolService) lower(ctx context.Context, opened *session.Session, client *clients.Client, to optionsv1.Tier, outcome *callv1.Outcome) error {
	present := s.judge(opened, client).Call.Ceiling
	switch {
	case to > present:
		return fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "the ceiling is "+contract.TierName(present)+" and can only be lowered here",
			fault.WithField("tier_ceiling_override"))
	case to == present:
		outcome.Warnings = append(outcome.Warnings, "the ceiling is "+contract.TierName(present)+" already; nothing was changed")
		return nil
	}
	set := "tier_ceiling=" + contract.TierName(to)
	r := journal.Session(auditv1.Kind_KIND_OVERRIDE, auditv1.Status_STATUS_OK, opened.Principal, opened.Ref, opened.Client.Channel)
	r.Tool, r.Tier = "security_config", optionsv1.Tier_TIER_READ
	r.Body.Action, r.Body.Summary, r.Body.DecisionSource = "override", "the session lowered its own ceiling", "argument"
	r.Body.Details = map[string]string{"override": set, "before": contract.TierName(present)}
	if err := s.Journal.Follow(ctx, r); err != nil {
		return err
	}
	opened.Lower(to)
	outcome.Overrides = append(outcome.Overrides, set)
	outcome.Warnings = append(outcome.Warnings, fmt.Sprintf("this session's ceiling is %s until it ends; nothing raises it again", contract.TierName(to)))
	return nil
}

// bindings is what binds a session.
func (s *Server) bindings(opened *session.Session, client *clients.Client) *vaultv1.SecurityConfigResponse {
	j := s.judge(opened, client)
	resp := &vaultv1.SecurityConfigResponse{
		TierCeiling: j.Call.Ceiling, Channel: statement.ChannelName(client.Channel), Boundary: boundary,
	}
	for _, tool := range s.served() {
		rule := &vaultv1.ToolRule{Tool: tool.Name, Decision: "depends"}
		rule.Tier = j.Decide(tool, []byte("{}"), usage.Counts{}).Tier
		if verdict, certain := j.Always(tool); certain {
			rule.Decision = verdict.String()
		}
		resp.Tools = append(resp.Tools, rule)
	}
	for _, e := range j.State.Settings(client.ID, client.User) {
		resp.Settings = append(resp.Settings, sessionSetting(e, j.Call.Ceiling))
	}
	for _, one := range s.Standing.Of(opened.Ref) {
		if until, ok := s.Standing.Dangerous(opened.Ref); ok && one.GetKind() == string(statement.KindDangerous) {
			resp.DangerousUntil = uint32(until.Unix()) // #nosec G115 -- until 2106
			continue
		}
		resp.Allowances = append(resp.Allowances, allowance(one))
	}
	return resp
}

// sessionSetting is a setting as a session sees it: its own ceiling is its client's or lower.
func sessionSetting(e security.Effective, ceiling optionsv1.Tier) *vaultv1.Setting {
	out := &vaultv1.Setting{Name: e.Name, Value: e.Value, Layer: e.Layer}
	if own := contract.TierName(ceiling); e.Name == "tier_ceiling" && own != e.Value {
		out.Value, out.Layer = own, layerSession
	}
	return out
}

func allowance(one *vaultv1.Standing) *vaultv1.Allowance {
	out := &vaultv1.Allowance{UsesLeft: one.GetUsesLeft(), Until: uint32(one.GetExpiresAt().GetSeconds())} // #nosec G115 -- until 2106
	if s, err := statement.Parse(one.GetStatement().GetStatement()); err == nil {
		for _, tool := range s.Tools {
			out.Tools = append(out.Tools, tool.Name)
		}
	}
	return out
}
