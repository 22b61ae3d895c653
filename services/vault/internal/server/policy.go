package server

import (
	"context"
	"errors"
	"fmt"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/decision"
	"durward.internal/services/vault/internal/usage"
)

// policyService shows operators' programs what is in force. It changes nothing: the rules are files, and humans write them (CFG-1).
type policyService struct {
	vaultv1.UnimplementedPolicyServiceServer
	*Server
}

// GetPolicy shows the files, the settings and the rules as they are in force.
func (s *policyService) GetPolicy(_ context.Context, req *vaultv1.GetPolicyRequest) (*vaultv1.GetPolicyResponse, error) {
	state, user := s.Security.Current(), ""
	if req.GetClient() != "" {
		client, ok := s.Clients.Lookup(req.GetClient())
		if !ok {
			return nil, unknownClient()
		}
		user = client.User
	}
	digest := state.Policies.Digest()
	resp := &vaultv1.GetPolicyResponse{PolicyDigest: canonical.FormatDigest(digest[:])}
	for _, f := range state.Files {
		resp.Files = append(resp.Files, &vaultv1.ConfigFile{Name: f.Name, Layer: f.Layer, Digest: f.Digest, Problem: f.Problem})
	}
	for _, e := range state.Settings(req.GetClient(), user) {
		resp.Settings = append(resp.Settings, &vaultv1.Setting{Name: e.Name, Value: e.Value, Layer: e.Layer})
	}
	for _, r := range state.Policies.Rules() {
		resp.Rules = append(resp.Rules, ruleProto(r))
	}
	return resp, nil
}

// ExplainCall decides on a call that nobody makes. It takes no place under any limit.
func (s *policyService) ExplainCall(ctx context.Context, req *vaultv1.ExplainCallRequest) (*vaultv1.ExplainCallResponse, error) {
	client, ok := s.Clients.Lookup(req.GetClient())
	if !ok {
		return nil, unknownClient()
	}
	if !hasAgent(client, req.GetAgent()) {
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "the client has no agent of that name", fault.WithField("agent"))
	}
	tool, ok := contract.Lookup(req.GetTool())
	if !ok {
		return &vaultv1.ExplainCallResponse{
			Decision: policy.Deny.String(), Rule: &vaultv1.PolicyRule{Rule: decision.UnknownTool, Layer: string(policy.BuiltIn), Forbids: true},
			Reason: "there is no tool of that name here",
		}, nil
	}
	arguments := req.GetArguments()
	if len(arguments) == 0 {
		arguments = []byte("{}")
	}
	if _, err := contract.CanonicalArguments(arguments); err != nil {
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "the arguments are not a JSON object in canonical form",
			fault.WithField("arguments"), fault.WithCause(err))
	}
	j := s.judgeClient(client)
	j.Call.Agent = req.GetAgent()
	j.Call.Dangerous = req.GetDangerous() && client.KeyBound() && !client.Messaging()
	counts, err := s.Usage.Look(ctx, usage.Who{Client: client.ID, Tool: policy.ActionName(tool)})
	if err != nil {
		return nil, err
	}
	d := j.Decide(tool, arguments, counts)
	return &vaultv1.ExplainCallResponse{Decision: d.Verdict.String(), Rule: ruleProto(d.Rule), Tier: d.Tier, Reason: d.Reason}, nil
}

// AnnounceChange takes a human's statement that a file of the configuration is about to change, and records it. What makes the
// change count is the file, which the vault reads by itself.
func (s *policyService) AnnounceChange(ctx context.Context, req *vaultv1.AnnounceChangeRequest) (*vaultv1.AnnounceChangeResponse, error) {
	v, err := s.announcement(req.GetStatement())
	if err != nil {
		refusal := fault.New(callv1.Code_CODE_DENIED, "the statement does not announce a change to this vault", fault.WithCause(err))
		return nil, s.refused(ctx, "announcement-refused", "", nil, refusal)
	}
	return &vaultv1.AnnounceChangeResponse{}, s.Changes.Announce(ctx, req.GetStatement(), v, caller(ctx).String())
}

// announcement verifies a statement of kind "config" that is for this vault, or for the whole trust domain, in this epoch.
func (s *Server) announcement(h *callv1.HumanStatement) (*statement.Verified, error) {
	v, err := s.Consent.Verify(h, "")
	if err != nil {
		return nil, err
	}
	if v.Kind != statement.KindConfig || !s.Self.AddressedBy(v.Audience) {
		return nil, fmt.Errorf("%w: it is of kind %s for %s", statement.ErrCover, v.Kind, v.Audience)
	}
	if v.Epoch != s.Halt.Now().Epoch {
		return nil, errors.New("the statement is of another epoch")
	}
	return v, nil
}

func ruleProto(r policy.Rule) *vaultv1.PolicyRule {
	return &vaultv1.PolicyRule{Rule: r.ID, Layer: string(r.Layer), File: r.File, Line: count(r.Line), Forbids: r.Forbids}
}

func unknownClient() error {
	return fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such client, or it is not let in", fault.WithField("client"))
}
