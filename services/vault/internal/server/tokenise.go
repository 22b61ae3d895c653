package server

import (
	"context"
	"errors"
	"strconv"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/token"
)

// Bounds of looking through texts: so many requests at a time and one of each principal, so that decisions go on meanwhile; so long
// for one, within which a sink waits for it; so many bytes in one.
const (
	tokeniseAtOnce = 2
	tokeniseTime   = 1800 * time.Millisecond
	tokeniseBytes  = 2 << 20
)

// tokeniseService looks through what leaves a sink.
type tokeniseService struct {
	vaultv1.UnimplementedTokeniseServiceServer
	*Server
}

// Tokenise replaces what the session's agent may not see. The session is that of a grant that the sink on the connection has
// redeemed, however long ago, since what it allows may take its time; or that of a permit in force, by this vault's own word in
// either case. How many values were replaced is for the sink to record, with the answer that they were in. A sealed vault refuses where a
// credential was ever released: it could not find it.
func (s *tokeniseService) Tokenise(ctx context.Context, req *vaultv1.TokeniseRequest) (*vaultv1.TokeniseResponse, error) {
	who, err := s.whose(ctx, req)
	if err != nil {
		r := journal.Session(auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, who.principal, who.session, who.channel)
		r.Body.Action = "tokenise-refused"
		return nil, s.recordRefused(ctx, r, err)
	}
	if err := s.credentials.Known(ctx); err != nil {
		return nil, err
	}
	size := 0
	for _, text := range req.GetTexts() {
		size += len(text)
	}
	if size > tokeniseBytes {
		return nil, fault.New(callv1.Code_CODE_TOO_LARGE, "the texts are too long together")
	}
	result, err := s.replaced(ctx, who, token.OriginSink, req.GetTexts())
	return &vaultv1.TokeniseResponse{Texts: result.Texts, Replaced: count(result.Replaced)}, err
}

// Tokenize shows an agent a text of its own with references in the place of its values. The record holds it in that form.
func (s *toolService) Tokenize(ctx context.Context, req *vaultv1.TokenizeRequest) (*vaultv1.TokenizeResponse, error) {
	q := question{method: vaultv1.ToolService_Tokenize_FullMethodName}
	if err := s.admit(ctx, &q); err != nil {
		return nil, err
	}
	who := party{principal: q.opened.Principal, session: q.opened.Ref, channel: q.opened.Client.Channel, tool: "tokenize"}
	result, err := s.replaced(ctx, who, token.OriginAgent, []string{req.GetText()})
	if err != nil {
		return nil, err
	}
	r := q.record(auditv1.Kind_KIND_READ, auditv1.Status_STATUS_OK, "tokenise-own")
	if r.Body.Arguments, err = journal.Arguments(&vaultv1.TokenizeRequest{Text: &result.Texts[0]}); err != nil {
		return nil, err
	}
	if err := s.Journal.Follow(ctx, r); err != nil {
		return nil, err
	}
	outcome := &callv1.Outcome{Summary: "your text, with a reference in the place of each value that was found"}
	if lost := result.Unkept + result.Secrets; lost > 0 {
		outcome.Warnings = []string{strconv.Itoa(lost) + " cannot be brought back: credentials, and what is beyond the session's bounds"}
	}
	rpc.SetOutcome(ctx, outcome)
	return &vaultv1.TokenizeResponse{Text: result.Texts[0], Replaced: count(result.Replaced)}, nil
}

// replaced is texts as a party's agent may see them. On a messaging channel no reference stands in them (OUT-4).
func (s *Server) replaced(ctx context.Context, who party, origin token.Origin, texts []string) (token.Result, error) {
	result, err := s.inTurn(ctx, turnOf(who.principal), func(ctx context.Context) (token.Result, error) {
		return s.Tokens.Tokenise(ctx, who.session, origin, texts)
	})
	if err != nil {
		return token.Result{}, err
	}
	s.noteTokens(ctx, who, origin, result)
	if who.channel == callv1.Channel_CHANNEL_MESSAGING {
		for i := range result.Texts {
			result.Texts[i] = token.Redact(result.Texts[i])
		}
	}
	return result, nil
}

// noteTokens records that values became references: how many of which types, and never which.
func (s *Server) noteTokens(ctx context.Context, who party, origin token.Origin, result token.Result) {
	if len(result.New) == 0 && result.Redacted == 0 {
		return
	}
	r := journal.Session(auditv1.Kind_KIND_TOKENISED, auditv1.Status_STATUS_OK, who.principal, who.session, who.channel)
	r.Tool, r.OperationId, r.Body.Action = who.tool, who.operation, "tokenise"
	r.Body.Details = map[string]string{"origin": string(origin)}
	for name, n := range result.New {
		r.Body.Details[name] = strconv.Itoa(n)
	}
	if result.Redacted > 0 {
		r.Body.Details["redacted"] = strconv.Itoa(result.Redacted)
	}
	s.Journal.Note(ctx, r)
}

// inTurn looks through texts when it is that party's turn, within the time that there is for both.
func (s *Server) inTurn(ctx context.Context, whose string, look func(context.Context) (token.Result, error)) (token.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, tokeniseTime)
	defer cancel()
	var result token.Result
	done, err := s.tokenising.Take(ctx, whose)
	if err == nil {
		defer done()
		result, err = look(ctx)
	}
	if err != nil {
		return token.Result{}, fault.New(callv1.Code_CODE_UNAVAILABLE, "there is too much to look through now; ask again", fault.WithCause(err), fault.WithRetry(time.Second))
	}
	return result, nil
}

// party is for whom texts are looked through.
type party struct {
	principal, session, tool, operation string

	channel callv1.Channel
}

// whose finds the session that a request to tokenise is for.
func (s *tokeniseService) whose(ctx context.Context, req *vaultv1.TokeniseRequest) (party, error) {
	self := caller(ctx).String()
	if signed := req.GetPermit(); signed != nil {
		permit, err := s.Issuer.OpenPermit(signed)
		if err != nil {
			return party{}, fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(err))
		}
		who := party{principal: permit.GetPrincipal(), session: permit.GetSession(), channel: permit.GetChannel()}
		if permit.GetAudience() != self {
			return who, denied("the permit is for another sink")
		}
		_, _, err = s.holds(permit, maxHold)
		return who, err
	}
	grant, err := s.Issuer.KnownGrant(req.GetGrant())
	if err != nil {
		return party{}, fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(err))
	}
	who := party{
		principal: grant.GetPrincipal(), session: grant.GetSession(), channel: grant.GetChannel(), tool: grant.GetTool().GetName(),
		operation: grant.GetOperationId(),
	}
	spent, err := s.Queue.Redeemed(ctx, grant, self)
	if err == nil && !spent {
		err = fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(errors.New("the grant was not redeemed by this sink")))
	}
	return who, err
}
