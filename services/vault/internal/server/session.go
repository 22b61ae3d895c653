package server

import (
	"context"
	"errors"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/proof"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/issuer"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/policy"
	"durward.internal/services/vault/internal/session"
)

// sessionService turns credentials into sessions, for the gateway.
type sessionService struct {
	vaultv1.UnimplementedSessionServiceServer
	*Server
}

// OpenSession authenticates a client. Every failure looks the same, but for a client's own proof from before the vault
// started: CODE_PROOF_REQUIRED.
func (s *sessionService) OpenSession(ctx context.Context, req *vaultv1.OpenSessionRequest) (*vaultv1.OpenSessionResponse, error) {
	client, ok := s.Clients.Authenticate(req.GetCredential())
	if !ok {
		return nil, s.notAuthenticated(ctx, "", errors.New("no client has this credential"))
	}
	if operation.MustSign(client.KeyBound()) {
		claim := proof.Claim{Purpose: callv1.Proof_PURPOSE_OPEN, Client: client.ID}
		if err := proof.Verify(client.Key, claim, req.GetProof()); err != nil {
			return nil, s.notAuthenticated(ctx, client.ID, err)
		}
		if err := s.Sessions.Fresh(client.ID, req.GetProof()); err != nil {
			refusal := s.notAuthenticated(ctx, client.ID, err)
			if errors.Is(err, session.ErrBeforeStart) {
				// The key's holder alone gets here, and is told to prove it again.
				refusal = proofRequired(err)
			}
			return nil, refusal
		}
	}
	name := clean.Line(req.GetClientName()+" "+req.GetClientVersion(), 128)
	id, opened, err := s.Sessions.Open(client, name)
	if err != nil {
		return nil, err
	}
	permits, err := s.permits(ctx, opened, client)
	if err == nil {
		r := journal.Session(auditv1.Kind_KIND_SESSION_OPENED, auditv1.Status_STATUS_OK, client.ID, opened.Ref, client.Channel)
		r.Body.Action = "open"
		r.Body.Details = map[string]string{
			"client_name": name, "tier_ceiling": contract.TierName(client.Ceiling), "channel_name": client.ChannelName,
		}
		err = s.Journal.Follow(ctx, r)
	}
	if err != nil {
		s.Sessions.Close(id)
		return nil, err
	}
	return &vaultv1.OpenSessionResponse{
		SessionId: id, Session: opened.Ref, Principal: client.ID, Channel: client.Channel, TierCeiling: client.Ceiling,
		KeyBound: client.KeyBound(), Permits: permits, ExpiresAt: timestamppb.New(opened.ExpiresAt()),
		IdleTimeoutS: uint32(session.IdleTimeout.Seconds()),
	}, nil
}

// RenewPermits signs the session's read permits again. It goes on during a halt: looking is safe.
func (s *sessionService) RenewPermits(ctx context.Context, req *vaultv1.RenewPermitsRequest) (*vaultv1.RenewPermitsResponse, error) {
	opened, client, err := s.session(ctx, req.GetSessionId())
	if err != nil {
		return nil, s.refused(ctx, "renew-refused", "", nil, err)
	}
	claim := proof.Claim{Purpose: callv1.Proof_PURPOSE_RENEW, Client: client.ID, Session: opened.Ref}
	if err := s.proven(opened, client, claim, req.GetProof()); err != nil {
		return nil, s.refused(ctx, "renew-refused", "", opened, err)
	}
	permits, err := s.permits(ctx, opened, client)
	if err != nil {
		return nil, err
	}
	r := journal.Session(auditv1.Kind_KIND_PERMIT_ISSUED, auditv1.Status_STATUS_OK, client.ID, opened.Ref, client.Channel)
	r.Body.Action = "renew"
	if err := s.Journal.Follow(ctx, r); err != nil {
		return nil, err
	}
	return &vaultv1.RenewPermitsResponse{Permits: permits}, nil
}

// CloseSession ends a session; closing what is not open is no error.
func (s *sessionService) CloseSession(ctx context.Context, req *vaultv1.CloseSessionRequest) (*vaultv1.CloseSessionResponse, error) {
	if ended := s.Sessions.Close(req.GetSessionId()); ended != nil {
		r := journal.Session(auditv1.Kind_KIND_SESSION_CLOSED, auditv1.Status_STATUS_OK, ended.Principal, ended.Ref, ended.Client.Channel)
		r.Body.Action = "close"
		s.Journal.Note(ctx, r)
	}
	return &vaultv1.CloseSessionResponse{}, nil
}

// session finds a session and its client as clients.yaml has it now: a client that was revoked, or whose credential
// changed, has no sessions any more.
func (s *Server) session(ctx context.Context, id string) (*session.Session, *clients.Client, error) {
	opened, err := s.Sessions.Find(id)
	if err != nil {
		return nil, nil, err
	}
	client, ok := s.Clients.Lookup(opened.Principal)
	if !ok || !client.SameCredential(opened.Client) {
		s.Sessions.Close(id)
		r := journal.Session(auditv1.Kind_KIND_SESSION_CLOSED, auditv1.Status_STATUS_OK, opened.Principal, opened.Ref, opened.Client.Channel)
		r.Body.Action = "client-revoked"
		s.Journal.Note(ctx, r)
		return nil, nil, fault.New(callv1.Code_CODE_UNAUTHENTICATED, "the session has ended; open another")
	}
	return opened, client, nil
}

func (s *Server) stillLetIn(opened *session.Session) bool {
	client, ok := s.Clients.Lookup(opened.Principal)
	return ok && client.SameCredential(opened.Client)
}

// proven holds a key-bound client to its signature, made within session.Skew of now, and each counter to one use.
func (s *Server) proven(opened *session.Session, client *clients.Client, claim proof.Claim, p *callv1.Proof) error {
	if !operation.MustSign(client.KeyBound()) {
		return nil
	}
	err := proof.Verify(client.Key, claim, p)
	if err == nil {
		err = s.Sessions.Timely(p)
	}
	if err == nil && !opened.Accept(p.GetCounter()) {
		err = errors.New("the proof's counter was used before")
	}
	if err != nil {
		return proofRequired(err)
	}
	return nil
}

func proofRequired(cause error) error {
	return fault.New(callv1.Code_CODE_PROOF_REQUIRED, "this client must sign this request with its key", fault.WithCause(cause))
}

// notAuthenticated is the one answer to a credential that does not open a session; the record says why.
func (s *Server) notAuthenticated(ctx context.Context, principal string, cause error) error {
	if ok, suppressed := s.failures.allow(principal, s.Now()); ok {
		r := journal.Session(auditv1.Kind_KIND_AUTHENTICATION_FAILED, auditv1.Status_STATUS_DENIED, principal, "", 0)
		r.Body.Action, r.Body.Reason, r.Body.DecisionSource = "open", cause.Error(), caller(ctx).String()
		note(r, suppressed)
		s.Journal.Note(ctx, r)
	}
	return fault.New(callv1.Code_CODE_UNAUTHENTICATED, "not authenticated", fault.WithCause(cause))
}

// permits signs one permit for each sink, the vault itself included, over the READ tools that a permit covers and that policy
// lets this client run there whatever their arguments.
func (s *Server) permits(ctx context.Context, opened *session.Session, client *clients.Client) ([]*vaultv1.AddressedPermit, error) {
	var out []*vaultv1.AddressedPermit
	epoch := s.Halt.Now().Epoch
	for _, sink := range append([]identity.ID{s.Self}, s.Sinks...) {
		tools, err := s.readTools(ctx, client, sink.Role())
		if err != nil {
			return nil, err
		}
		permit, until, err := s.Issuer.Permit(issuer.Scope{
			Principal: client.ID, Session: opened.Ref, Channel: client.Channel, Tools: tools, Audience: sink.String(), Epoch: epoch,
		})
		if err != nil {
			return nil, err
		}
		out = append(out, &vaultv1.AddressedPermit{
			Role: sink.Role(), Audience: sink.String(), Permit: permit, ExpiresAt: timestamppb.New(until),
		})
	}
	return out, nil
}

func (s *Server) readTools(ctx context.Context, client *clients.Client, sink optionsv1.Role) ([]string, error) {
	var names []string
	for _, tool := range contract.Tools() { // sorted, as a permit must be
		if tool.Sink != sink || !tool.ByPermit() {
			continue
		}
		d, err := s.Policy.Decide(ctx, policy.Call{Principal: client.ID, Channel: client.Channel, Ceiling: client.Ceiling, Tool: tool})
		if err != nil {
			return nil, err
		}
		if d.Verdict == policy.Run {
			names = append(names, tool.Name)
		}
	}
	return names, nil
}
