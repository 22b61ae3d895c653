package server

import (
	"bytes"
	"context"
	"errors"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/proof"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/policy"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/store"
	"durward.internal/services/vault/internal/token"
)

// authorityService decides on calls, for the gateway.
type authorityService struct {
	vaultv1.UnimplementedAuthorityServiceServer
	*Server
}

// Authorise decides on one call. A tool that does not exist, a definition that is another and a tool that the client may
// not use get the same answer (ACL-3).
func (s *authorityService) Authorise(ctx context.Context, req *vaultv1.AuthoriseRequest) (*vaultv1.AuthoriseResponse, error) {
	opened, client, err := s.session(ctx, req.GetSessionId())
	if err != nil {
		return nil, s.refused(ctx, "authorise-refused", req.GetTool().GetName(), nil, err)
	}
	resp, err := s.authorise(ctx, req, opened, client)
	if err != nil {
		return nil, s.refused(ctx, "authorise-refused", req.GetTool().GetName(), opened, err)
	}
	return resp, nil
}

func (s *authorityService) authorise(ctx context.Context, req *vaultv1.AuthoriseRequest, opened *session.Session, client *clients.Client) (*vaultv1.AuthoriseResponse, error) {
	if err := s.Journal.Check(); err != nil {
		return nil, err
	}
	digest := contract.Digest(req.GetArguments())
	claim := proof.Claim{
		Purpose: callv1.Proof_PURPOSE_CALL, Client: client.ID, Session: opened.Ref, Tool: req.GetTool().GetName(), ArgumentsDigest: digest[:],
	}
	if err := s.proven(opened, client, claim, req.GetProof()); err != nil {
		return nil, err
	}
	reason, err := s.tokenised(ctx, opened, clean.Block(req.GetReason(), 1000))
	if err != nil {
		return nil, err
	}
	policyDigest := s.Policy.Digest()
	op := store.Operation{
		ID: grant.NewID(), Principal: client.ID, Session: opened.Ref, Channel: client.Channel, ClientName: opened.ClientName,
		KeyBound: client.KeyBound(), ToolName: req.GetTool().GetName(), ToolSource: req.GetTool().GetSource(),
		ToolDigest: req.GetTool().GetDefinitionDigest(), Arguments: req.GetArguments(), ArgumentsDigest: digest[:],
		AgentReason: reason, Epoch: s.Halt.Now().Epoch, PolicyDigest: policyDigest[:],
		RequestID: rpc.RequestID(ctx),
	}
	tool, sink, ok := s.tool(req.GetTool())
	if !ok {
		return s.deny(ctx, &op, policy.RuleUnknownTool)
	}
	op.Tier, op.Audience = tool.Tier, sink.String()
	arguments, err := decode(tool, req.GetArguments())
	if err != nil {
		return nil, err
	}
	d, err := s.Policy.Decide(ctx, policy.Call{
		Principal: client.ID, Channel: client.Channel, Ceiling: client.Ceiling, Tool: tool, Arguments: req.GetArguments(),
	})
	if err != nil {
		return nil, err
	}
	switch d.Verdict {
	case policy.Run:
		signed, err := s.Queue.IssueRead(ctx, &op)
		if err != nil {
			return nil, err
		}
		return &vaultv1.AuthoriseResponse{
			Decision: vaultv1.AuthoriseResponse_DECISION_GRANTED, Rule: d.Rule, Grant: signed, OperationId: op.ID,
			ExpiresAt: timestamppb.New(s.Now().Add(grant.MaxGrantLife)),
		}, nil
	case policy.Ask:
		return s.ask(ctx, operation.Request{Operation: op, Arguments: arguments, PendingLimit: client.Pending, Rule: d.Rule})
	default:
		return s.deny(ctx, &op, d.Rule)
	}
}

// tokenised is an agent's own words as records and approvers see them: without the credentials that it put there.
func (s *Server) tokenised(ctx context.Context, opened *session.Session, words string) (string, error) {
	if words == "" {
		return "", nil
	}
	texts, _, err := s.Tokens.Tokenise(ctx, opened.Ref, token.OriginAgent, []string{words})
	if err != nil {
		return "", err
	}
	return texts[0], nil
}

// ask queues the call, or joins it to the identical one: whoever joins an approved one is the live call that carries it out.
func (s *authorityService) ask(ctx context.Context, r operation.Request) (*vaultv1.AuthoriseResponse, error) {
	op, joined, err := s.Queue.Ask(ctx, r)
	if err != nil {
		return nil, err
	}
	resp := &vaultv1.AuthoriseResponse{
		Decision: vaultv1.AuthoriseResponse_DECISION_PENDING, Rule: r.Rule, OperationId: op.ID,
		ExpiresAt: timestamppb.New(op.ExpiresAt), Joined: joined,
	}
	if operation.MayRun(op) {
		if resp.Grant, err = s.Queue.Issue(ctx, op); err != nil {
			return nil, err
		}
		resp.Decision = vaultv1.AuthoriseResponse_DECISION_GRANTED
	}
	return resp, nil
}

func (s *authorityService) deny(ctx context.Context, op *store.Operation, rule string) (*vaultv1.AuthoriseResponse, error) {
	op.ID = "" // there is none
	r := journal.Operation(auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, op)
	r.Tool = clean.Line(op.ToolName, 128) // it may be anything
	r.Body.Source = clean.Line(op.ToolSource, 64)
	r.Body.Action, r.Body.DecisionSource = "policy", rule
	if err := s.Journal.Follow(ctx, r); err != nil {
		return nil, err
	}
	return &vaultv1.AuthoriseResponse{Decision: vaultv1.AuthoriseResponse_DECISION_DENIED, Rule: rule}, nil
}

// tool finds the tool that the reference names, in this very definition, and the sink that answers it. The vault's own
// tools run on a permit alone.
func (s *Server) tool(ref *callv1.ToolRef) (contract.Tool, identity.ID, bool) {
	tool, ok := contract.Lookup(ref.GetName())
	if !ok || tool.Source != ref.GetSource() || !bytes.Equal(tool.DefinitionDigest[:], ref.GetDefinitionDigest()) {
		return contract.Tool{}, identity.ID{}, false
	}
	sink, ok := s.sinks[tool.Sink]
	if !ok || sink == s.Self {
		return contract.Tool{}, identity.ID{}, false
	}
	return tool, sink, true
}

// decode validates arguments again, strictly, and holds them to the one form that is digested, shown and forwarded.
func decode(tool contract.Tool, raw []byte) (proto.Message, error) {
	m, err := tool.Decode(raw)
	if err != nil {
		return nil, err
	}
	own, err := contract.Canonical(m)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(own, raw) {
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "the arguments are not in canonical form",
			fault.WithCause(errors.New("RFC 8785 form differs")))
	}
	return m, nil
}
