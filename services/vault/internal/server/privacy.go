package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/token"
)

// privacyService shows operators what becomes of personal data.
type privacyService struct {
	vaultv1.UnimplementedPrivacyServiceServer
	*Server
}

// ListPrivacySessions shows how much each session holds, and never what.
func (s *privacyService) ListPrivacySessions(context.Context, *vaultv1.ListPrivacySessionsRequest) (*vaultv1.ListPrivacySessionsResponse, error) {
	resp := &vaultv1.ListPrivacySessionsResponse{}
	for _, held := range s.Tokens.Sessions() {
		shown := &vaultv1.PrivacySession{Session: held.Session, Types: map[string]uint32{}}
		for name, n := range held.Types {
			shown.Types[name] = count(n)
		}
		if open, live := s.Sessions.Live(held.Session); live {
			shown.Principal, shown.Agent = open.Principal, open.Agent
		}
		resp.Sessions = append(resp.Sessions, shown)
	}
	return resp, nil
}

// GetPrivacyPolicy shows what the human's file says, as it is in force.
func (s *privacyService) GetPrivacyPolicy(context.Context, *vaultv1.GetPrivacyPolicyRequest) (*vaultv1.GetPrivacyPolicyResponse, error) {
	resp := &vaultv1.GetPrivacyPolicyResponse{Types: s.PrivacyTypes, Values: statement.MaxDisclosures, Bytes: statement.MaxDisclosed}
	for _, r := range s.Disclosure.Rules() {
		resp.Rules = append(resp.Rules, &vaultv1.DisclosureRule{Types: r.Types, Sink: r.Sink, Tool: r.Tool, Arguments: r.Arguments})
	}
	return resp, nil
}

// TestPrivacy looks through a text for nobody's session.
func (s *privacyService) TestPrivacy(ctx context.Context, req *vaultv1.TestPrivacyRequest) (*vaultv1.TestPrivacyResponse, error) {
	tool, known := contract.Lookup(req.GetTool())
	if (req.GetTool() == "") != (req.GetArgument() == "") || req.GetTool() != "" && !known {
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "name a tool that there is, and an argument of it, or neither", fault.WithField("tool"))
	}
	result, err := s.inTurn(ctx, caller(ctx).String(), func(ctx context.Context) (token.Result, error) {
		return s.Tokens.Try(ctx, req.GetText())
	})
	if err != nil {
		return nil, err
	}
	resp := &vaultv1.TestPrivacyResponse{Text: result.Texts[0], Types: map[string]uint32{}}
	for _, name := range slices.Sorted(maps.Keys(result.New)) {
		resp.Types[name] = count(result.New[name])
		if known {
			resp.Verdicts = append(resp.Verdicts, s.verdict(name, identity.RoleName(tool.Sink), tool.Name, req.GetArgument()))
		}
	}
	return resp, nil
}

// verdict says whether a rule lets a type go into an argument, and which, or what is nearest to one.
func (s *privacyService) verdict(kind, sink, tool, pointer string) *vaultv1.DisclosureVerdict {
	v := &vaultv1.DisclosureVerdict{Type: kind, Allowed: s.Disclosure.Allows(kind, sink, tool, pointer), Why: "no rule names " + tool}
	if !slices.Contains(s.PrivacyTypes, kind) {
		v.Why = "a credential is disclosed by no rule"
		return v
	}
	to := clean.Line(fmt.Sprintf("%s of %s", pointer, tool), 300)
	for i, r := range s.Disclosure.Rules() {
		switch {
		case r.Tool != tool || r.Sink != sink:
			continue
		case !slices.Contains(r.Arguments, pointer):
			v.Why = fmt.Sprintf("privacy.disclose[%d] is for other arguments of %s", i, tool)
			continue
		case v.Allowed && !slices.Contains(r.Types, kind):
			continue // another rule names it
		case v.Allowed:
			v.Why = fmt.Sprintf("privacy.disclose[%d] names %s for %s", i, kind, to)
		default:
			v.Why = fmt.Sprintf("privacy.disclose[%d] lets %s go to %s, and not %s", i, strings.Join(r.Types, ", "), to, kind)
		}
		return v
	}
	return v
}
