package server

import (
	"bytes"
	"context"
	"errors"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/desktop"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/proof"
	"durward.internal/services/platform/redaction"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/decision"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/store"
	"durward.internal/services/vault/internal/token"
	"durward.internal/services/vault/internal/usage"
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
	if err := s.proven(opened, claim, req.GetProof()); err != nil {
		return nil, err
	}
	if err := s.senderMay(client, opened.Sender); err != nil {
		return nil, err
	}
	reason, err := s.tokenised(ctx, opened, clean.Block(req.GetReason(), 1000))
	if err != nil {
		return nil, err
	}
	j := s.judge(opened, client)
	policyDigest := j.State.Policies.Digest()
	op := store.Operation{
		ID: grant.NewID(), Principal: client.ID, Session: opened.Ref, Channel: client.Channel, ClientName: opened.ClientName,
		KeyBound: opened.Client.KeyBound(), ToolName: req.GetTool().GetName(), ToolSource: req.GetTool().GetSource(),
		ToolDigest: req.GetTool().GetDefinitionDigest(), Arguments: req.GetArguments(), ArgumentsDigest: digest[:],
		AgentReason: reason, Epoch: s.Halt.Now().Epoch, PolicyDigest: policyDigest[:],
		RequestID: rpc.RequestID(ctx), Agent: opened.Agent,
	}
	tool, sink, ok := s.tool(req.GetTool())
	if !ok {
		return s.deny(ctx, &op, decision.UnknownTool)
	}
	op.Tier, op.Audience = tool.Tier, sink.String()
	arguments, err := decode(tool, req.GetArguments())
	if err != nil {
		if v, certain := j.Always(tool); certain && v == policy.Deny {
			// What is denied whatever its arguments does not exist, and has no arguments to be wrong (ACL-3).
			return s.deny(ctx, &op, decision.RuleName(j.Decide(tool, []byte("{}"), usage.Counts{}).Rule))
		}
		return nil, err
	}
	if redaction.Holds(op.ToolName, string(req.GetArguments())) {
		return nil, s.credentials.HeldBy(ctx, string(req.GetArguments()))
	}
	if err := s.refer(ctx, opened, tool, arguments, &op); err != nil {
		return nil, err
	}
	discloses, err := s.mayDisclose(ctx, &op)
	if err != nil {
		return nil, err
	}
	resp, err := s.decide(ctx, &asked{op: op, tool: tool, arguments: arguments, discloses: discloses, joinOnly: req.GetJoinOnly(), opened: opened, client: client, judge: j})
	if resp.GetGrant() != nil && !bytes.Equal(op.Arguments, req.GetArguments()) {
		resp.Arguments = op.Arguments
	}
	return resp, err
}

// refer puts references in the place of the personal data in what an agent wrote itself: those are the arguments from here on, which are
// decided on, shown, signed, recorded and forwarded. The sink of this very call gets the values. What could not be given back is refused.
func (s *authorityService) refer(ctx context.Context, opened *session.Session, tool contract.Tool, arguments proto.Message, op *store.Operation) error {
	err := contract.FreeText(arguments, func(texts []string) ([]string, error) {
		result, err := s.inTurn(ctx, turnOf(opened.Principal), func(ctx context.Context) (token.Result, error) {
			return s.Tokens.Arguments(ctx, opened.Ref, texts)
		})
		if err != nil {
			return nil, err
		}
		s.noteTokens(ctx, party{principal: opened.Principal, session: opened.Ref, channel: opened.Client.Channel, tool: tool.Name}, token.OriginAgent, result)
		switch {
		case result.Secrets > 0:
			return nil, s.credentials.HeldBy(ctx, string(op.Arguments))
		case result.Unkept > 0:
			return nil, fault.New(callv1.Code_CODE_TOO_LARGE, "the arguments hold more personal data than the vault keeps for a session, or a part with some that "+
				"is longer than 4 KiB; send less of it")
		}
		return result.Texts, nil
	})
	if err != nil {
		return err
	}
	raw, err := contract.Canonical(arguments)
	if err != nil || bytes.Equal(raw, op.Arguments) {
		return err
	}
	if _, err := tool.Decode(raw); err != nil {
		return fault.New(callv1.Code_CODE_TOO_LARGE, "with references in the place of the personal data the arguments are too long; send less of it", fault.WithCause(err))
	}
	digest := contract.Digest(raw)
	op.Arguments, op.ArgumentsDigest = raw, digest[:]
	return nil
}

// asked is one call that is decoded and not yet decided on.
type asked struct {
	op        store.Operation
	tool      contract.Tool
	arguments proto.Message
	// discloses: values go to the sink, so that a human decides on this very call. joinOnly is the request's.
	discloses, joinOnly bool
	opened              *session.Session
	client              *clients.Client
	judge               decision.Judge
}

// decide judges a call and lets it go the way that follows: it is denied, it has its grant, or it waits for a human. A call that a
// limit is about takes its place first, and keeps it if something new comes of the call.
func (s *authorityService) decide(ctx context.Context, a *asked) (*vaultv1.AuthoriseResponse, error) {
	var place *usage.Reservation
	if a.judge.Counted(a.tool) {
		var err error
		place, err = s.Usage.Reserve(ctx, usage.Who{Client: a.client.ID, Session: a.opened.Ref, Tool: policy.ActionName(a.tool)})
		if err != nil {
			return nil, err
		}
	}
	d := a.judge.Decide(a.tool, a.op.Arguments, place.Counts())
	a.op.Rule, a.op.PolicyTier = decision.RuleName(d.Rule), decision.PolicyTier(d, a.tool)
	var resp *vaultv1.AuthoriseResponse
	var fresh bool
	var err error
	if d.Verdict == policy.Deny && d.RetryAfter > 0 && s.Queue.Joins(&a.op) {
		resp, err = s.join(ctx, a, d)
	} else {
		resp, fresh, err = s.follow(ctx, a, d, place)
	}
	if fresh {
		place.Keep()
	} else if failed := place.Release(ctx); failed != nil {
		s.Logger.ErrorContext(ctx, "a call that came to nothing stays counted", "error", failed)
	}
	if err != nil {
		return nil, err
	}
	if until, dangerous := s.Standing.Dangerous(a.opened.Ref); dangerous {
		resp.DangerousUntil = timestamppb.New(until)
	}
	return resp, nil
}

// follow does what a decision says. fresh reports whether it came to something that was not there before.
func (s *authorityService) follow(ctx context.Context, a *asked, d policy.Decision, place *usage.Reservation) (_ *vaultv1.AuthoriseResponse, fresh bool, _ error) {
	way, standing := decision.Verdict(d), true
	if way == policy.Deny {
		if d.RetryAfter > 0 {
			return nil, false, limited(a, d)
		}
		resp, err := s.deny(ctx, &a.op, a.op.Rule)
		if err == nil {
			resp.Reason = a.judge.Told(a.tool, d)
		}
		return resp, false, err
	}
	if desktop.Controls(a.tool) {
		confirmation, err := s.Desktop.Judge(a.opened.Ref, a.tool, a.client.Channel, a.judge.Values.DesktopAllowed)
		if fault.Is(err, callv1.Code_CODE_DENIED) {
			resp, err := s.deny(ctx, &a.op, decision.DesktopGate)
			return resp, false, err
		}
		if err != nil {
			return nil, false, err
		}
		// A human confirms what has to be confirmed, whatever stands.
		way, standing = policy.Ask, confirmation == desktop.None
	}
	if a.discloses {
		way, standing = policy.Ask, false
	}
	if err := place.Commit(ctx); err != nil {
		return nil, false, err
	}
	r := a.request()
	if way == policy.Run {
		if a.tool.Tier == optionsv1.Tier_TIER_READ {
			resp, err := s.read(ctx, a)
			return resp, err == nil, err
		}
		if h, giveBack, ok := s.Standing.UseDangerous(&r.Operation); ok {
			return s.run(ctx, r, h, true, giveBack)
		}
		// What ran because of a mode that has just ended asks.
		if unattended(a.opened) && (!a.judge.Call.Dangerous || !policy.DangerousCovers(a.tool)) {
			return s.run(ctx, r, nil, false, nil)
		}
	}
	if standing {
		if h, giveBack, ok := s.Standing.Use(&r.Operation); ok {
			return s.run(ctx, r, h, false, giveBack)
		}
	}
	return s.ask(ctx, r)
}

// join lets a call that a limit is in the way of join the operation that it was counted for already: whoever was let wait may come
// back for the answer.
func (s *authorityService) join(ctx context.Context, a *asked, d policy.Decision) (*vaultv1.AuthoriseResponse, error) {
	resp, fresh, err := s.ask(ctx, a.request())
	if err == nil && fresh { // the other ended in between
		_, err = s.Queue.Deny(ctx, resp.GetOperationId(), "a limit is reached", a.op.Rule)
		if err == nil {
			err = limited(a, d)
		}
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

func limited(a *asked, d policy.Decision) error {
	return fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded: "+clean.Line(d.Reason, 200),
		fault.WithRetry(d.RetryAfter), fault.WithCause(errors.New(a.op.Rule)))
}

func (a *asked) request() operation.Request {
	return operation.Request{
		Operation: a.op, Arguments: a.arguments, PendingLimit: a.client.Pending, Rule: a.op.Rule, Wait: seconds(a.judge.Values.WaitS),
		InDangerous: a.judge.Call.Dangerous, JoinOnly: a.joinOnly,
	}
}

// read grants one call of a READ tool: no human, no stored operation.
func (s *authorityService) read(ctx context.Context, a *asked) (*vaultv1.AuthoriseResponse, error) {
	signed, err := s.Queue.IssueRead(ctx, a.request())
	if err != nil {
		return nil, err
	}
	return &vaultv1.AuthoriseResponse{
		Decision: vaultv1.AuthoriseResponse_DECISION_GRANTED, Rule: a.op.Rule, Grant: signed, OperationId: a.op.ID,
		ExpiresAt: timestamppb.New(s.Now().Add(grant.MaxGrantLife)),
	}, nil
}

// run lets a change go without asking: by what a human let the session do, or, without h, by a human's file. giveBack undoes a use
// that nothing came of; it may be nil.
func (s *authorityService) run(ctx context.Context, r operation.Request, h *callv1.HumanStatement, dangerous bool, giveBack func()) (*vaultv1.AuthoriseResponse, bool, error) {
	op, joined, err := s.Queue.Run(ctx, r, h, dangerous)
	if giveBack != nil && (err != nil || joined) {
		giveBack()
	}
	if err != nil {
		return nil, false, err
	}
	signed, err := s.Queue.Issue(ctx, op)
	if err != nil {
		// The operation is stored: its use is spent, and it ends by itself.
		return nil, !joined, err
	}
	return &vaultv1.AuthoriseResponse{
		Decision: vaultv1.AuthoriseResponse_DECISION_GRANTED, Rule: r.Rule, Grant: signed, OperationId: op.ID,
		ExpiresAt: timestamppb.New(op.ExpiresAt), Joined: joined,
	}, !joined, nil
}

// tokenised is an agent's own words as records and approvers see them: without the credentials and the personal data that it put there.
func (s *Server) tokenised(ctx context.Context, opened *session.Session, words string) (string, error) {
	if words == "" {
		return "", nil
	}
	result, err := s.Tokens.Tokenise(ctx, opened.Ref, token.OriginAgent, []string{words})
	if err != nil {
		return "", err
	}
	s.noteTokens(ctx, party{principal: opened.Principal, session: opened.Ref, channel: opened.Client.Channel}, token.OriginAgent, result)
	return result.Texts[0], nil
}

// ask queues the call, or joins it to the identical one: whoever joins an approved one is the live call that carries it out.
func (s *authorityService) ask(ctx context.Context, r operation.Request) (_ *vaultv1.AuthoriseResponse, fresh bool, _ error) {
	op, joined, err := s.Queue.Ask(ctx, r)
	if err != nil {
		return nil, false, err
	}
	resp := &vaultv1.AuthoriseResponse{
		Decision: vaultv1.AuthoriseResponse_DECISION_PENDING, Rule: r.Rule, OperationId: op.ID,
		ExpiresAt: timestamppb.New(op.ExpiresAt), Joined: joined,
	}
	if operation.MayRun(op) {
		if resp.Grant, err = s.Queue.Issue(ctx, op); err != nil {
			return nil, false, err
		}
		s.confirmed(op)
		resp.Decision = vaultv1.AuthoriseResponse_DECISION_GRANTED
	}
	return resp, !joined, nil
}

// confirmed tells the desktop's gate of what a human approved and a live call now carries out.
func (s *Server) confirmed(op *store.Operation) {
	if tool, ok := contract.Lookup(op.ToolName); ok && desktop.Controls(tool) && op.State == vaultv1.OperationState_OPERATION_STATE_APPROVED {
		s.Desktop.Confirmed(op.Session, tool)
	}
}

func (s *authorityService) deny(ctx context.Context, op *store.Operation, rule string) (*vaultv1.AuthoriseResponse, error) {
	op.ID = "" // there is none
	r := journal.Operation(auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, op)
	r.Tool = clean.Line(op.ToolName, 128) // it may be anything
	r.Body.Source = clean.Line(op.ToolSource, 64)
	r.Body.Action, r.Body.DecisionSource, r.Body.Dangerous = "policy", rule, s.dangerous(op.Session)
	if err := s.Journal.Follow(ctx, r); err != nil {
		return nil, err
	}
	return &vaultv1.AuthoriseResponse{Decision: vaultv1.AuthoriseResponse_DECISION_DENIED, Rule: rule}, nil
}

func (s *Server) dangerous(session string) bool {
	_, ok := s.Standing.Dangerous(session)
	return ok
}

// tool finds the tool that the reference names, in this very definition, and the sink that answers it. The vault's own
// tools run on a permit alone.
func (s *Server) tool(ref *callv1.ToolRef) (contract.Tool, identity.ID, bool) {
	tool, ok := contract.Referred(ref)
	if !ok {
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

// redeemService spends grants, for sinks.
type redeemService struct {
	vaultv1.UnimplementedRedeemServiceServer
	*Server
}

// Redeem spends a grant's key for the sink on the connection.
func (s *redeemService) Redeem(ctx context.Context, req *vaultv1.RedeemRequest) (*vaultv1.RedeemResponse, error) {
	at, err := s.Queue.Redeem(ctx, req.GetGrant(), caller(ctx).String())
	return &vaultv1.RedeemResponse{RedeemedAt: timestamppb.New(at), Epoch: s.Halt.Now().Epoch}, err
}

// Settle says how a redeemed operation ended.
func (s *redeemService) Settle(ctx context.Context, req *vaultv1.SettleRequest) (*vaultv1.SettleResponse, error) {
	return &vaultv1.SettleResponse{}, s.Queue.Settle(ctx, req.GetOperationId(), req.GetUse(), req.GetOk(), caller(ctx).String())
}
