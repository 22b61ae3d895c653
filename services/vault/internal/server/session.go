package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/proof"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/issuer"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/store"
	"durward.internal/services/vault/internal/usage"
)

// sessionService turns credentials into sessions, for the gateway.
type sessionService struct {
	vaultv1.UnimplementedSessionServiceServer
	*Server
}

// OpenSession authenticates a client. Every failure looks the same, but for a missing proof where a gateway opens a session again.
func (s *sessionService) OpenSession(ctx context.Context, req *vaultv1.OpenSessionRequest) (*vaultv1.OpenSessionResponse, error) {
	client, err := s.authenticate(ctx, req.GetCredential())
	if err != nil {
		return nil, err
	}
	if !hasAgent(client, req.GetAgent()) {
		return nil, s.notAuthenticated(ctx, client.ID, errors.New("the client has no agent of that name"))
	}
	if operation.MustSign(client.Key != nil) {
		if req.GetProof() == nil && req.GetReplaces() != "" {
			return nil, proofRequired(nil) // not recorded, as with a renewal: a gateway asks whether a client that says nothing stands
		}
		// In whose name it opens is the client's word, and not that of whoever carries it.
		claim := proof.Claim{
			Purpose: callv1.Proof_PURPOSE_OPEN, Client: client.ID, Agent: req.GetAgent(),
			SenderUser: req.GetSender().GetUser(), SenderRoom: req.GetSender().GetRoom(),
		}
		if err := proof.Verify(client.Key, claim, req.GetProof()); err != nil {
			return nil, s.notAuthenticated(ctx, client.ID, err)
		}
		if err := s.useUp(ctx, client, req); err != nil {
			return nil, err
		}
	}
	sender, err := senderOf(client, req.GetSender())
	if err == nil {
		err = s.senderMay(client, sender)
	}
	if err != nil {
		return nil, s.refused(ctx, "open-refused", "", nil, err)
	}
	name := clean.Line(req.GetClientName()+" "+req.GetClientVersion(), 128)
	opening := session.Opening{Client: client, Name: name, Agent: req.GetAgent(), User: client.User, Sender: sender, Remote: client.Remote || req.GetRemote()}
	if sender != nil {
		// A sender has one session, which lasts as long as a human set: the one before ends.
		opening.Life = seconds(s.Security.Current().Values(client.ID, client.User).MessagingTTLS)
		opening.Idle = opening.Life
		s.endSessions(ctx, "replaced", func(other *session.Session) bool {
			return other.Principal != client.ID || other.Sender == nil || *other.Sender != *sender
		})
	}
	id, opened, ended, err := s.Sessions.Open(opening)
	if err != nil {
		return nil, err
	}
	if ended != nil {
		s.sessionEnded(ctx, ended, "made-room")
	}
	adopted := s.adoptable(ctx, req.GetReplaces(), opened)
	permits, err := s.permits(opened, client)
	if err == nil {
		r := journal.Session(auditv1.Kind_KIND_SESSION_OPENED, auditv1.Status_STATUS_OK, client.ID, opened.Ref, client.Channel)
		r.Body.Action = "open"
		r.Body.Details = map[string]string{
			"client_name": name, "tier_ceiling": contract.TierName(client.Ceiling), "channel_name": client.ChannelName,
			"agent": opened.Agent, "user": opened.User,
		}
		if opened.Remote {
			r.Body.Details["remote"] = "yes"
		}
		if adopted != "" {
			r.Body.Details["replaces"] = adopted
		}
		if sender != nil {
			r.Body.Details["sender_user"] = s.Digest("sender user", client.ID, sender.User)
			r.Body.Details["sender_room"] = s.Digest("sender room", client.ID, sender.Room)
		}
		err = s.Journal.Follow(ctx, r)
	}
	if err != nil {
		s.Sessions.Close(id)
		return nil, err
	}
	if adopted != "" { // now only: of a session that came to nothing, the next would find nothing
		if _, err := s.Tokens.Adopt(ctx, adopted, opened.Ref, opened.Owner()); err != nil {
			s.Logger.ErrorContext(ctx, "what an earlier session held cannot be taken up: its references stand for nothing now", "session", adopted, "error", err)
		}
	}
	return &vaultv1.OpenSessionResponse{
		SessionId: id, Session: opened.Ref, Principal: client.ID, Channel: client.Channel, TierCeiling: s.judge(opened, client).Call.Ceiling,
		KeyBound: client.KeyBound(), Permits: permits, Tools: names(s.callable(s.judge(opened, client))), ExpiresAt: timestamppb.New(opened.ExpiresAt()),
		IdleTimeoutS: uint32(opened.Idle.Seconds()),
	}, nil
}

// authenticate returns the client that opens a session: whose token the gateway relays, or who proved by a certificate to be the internal
// program that clients.yaml names.
func (s *sessionService) authenticate(ctx context.Context, credential string) (*clients.Client, error) {
	by := caller(ctx)
	if by.Role() != optionsv1.Role_ROLE_TOOL {
		if client, ok := s.Clients.Authenticate(credential); ok && credential != "" {
			return client, nil
		}
		return nil, s.notAuthenticated(ctx, "", errors.New("no client has this credential"))
	}
	client, ok := s.Clients.Known(by)
	if !ok || credential != "" {
		return nil, s.notAuthenticated(ctx, by.Instance(), errors.New("no client has this identity, or it came with another's credential"))
	}
	return client, nil
}

// adoptable returns the reference of a session of an earlier process of the vault, where what that held is to be the one's that the same
// client opened in its place. Who knows its handle was its gateway; whose it was the vault itself wrote down.
func (s *Server) adoptable(ctx context.Context, handle string, opened *session.Session) string {
	from := session.Ref(handle)
	if _, live := s.Sessions.Live(from); handle == "" || live || !s.Tokens.MayAdopt(ctx, from, opened.Ref, opened.Owner()) {
		return ""
	}
	return from
}

// useUp uses up a fresh opening, whose signature was found good, in later lives of this process too. One for which there is no room,
// CODE_RATE_LIMITED, is not used up: its gateway makes room, and comes again with it.
func (s *sessionService) useUp(ctx context.Context, client *clients.Client, req *vaultv1.OpenSessionRequest) error {
	p := req.GetProof()
	if err := s.Sessions.Fresh(p); err != nil {
		return s.notAuthenticated(ctx, client.ID, err)
	}
	if err := s.Sessions.Room(client, req.GetSender() != nil); err != nil || !once() {
		return err
	}
	digest := canonical.Digest(fmt.Appendf(nil, "opening %s %d %d", client.ID, p.GetCounter(), p.GetTime()))
	err := s.Queue.Store.UseOpening(ctx, client.ID, digest[:], s.Now())
	if errors.Is(err, store.ErrStatementUsed) {
		err = s.notAuthenticated(ctx, client.ID, session.ErrUsed)
	}
	return err
}

// RenewPermits signs the session's read permits again. It goes on during a halt: looking is safe.
func (s *sessionService) RenewPermits(ctx context.Context, req *vaultv1.RenewPermitsRequest) (*vaultv1.RenewPermitsResponse, error) {
	opened, client, err := s.session(ctx, req.GetSessionId())
	if err != nil {
		return nil, s.refused(ctx, "renew-refused", "", nil, err)
	}
	claim := proof.Claim{Purpose: callv1.Proof_PURPOSE_RENEW, Client: client.ID, Session: opened.Ref}
	if err := s.proven(opened, claim, req.GetProof()); err != nil {
		if req.GetProof() == nil {
			return nil, err // a gateway cannot know before which request a permit ends: it hears what the client is to sign
		}
		return nil, s.refused(ctx, "renew-refused", "", opened, err)
	}
	permits, err := s.permits(opened, client)
	if err != nil {
		return nil, err
	}
	r := journal.Session(auditv1.Kind_KIND_PERMIT_ISSUED, auditv1.Status_STATUS_OK, client.ID, opened.Ref, client.Channel)
	r.Body.Action = "renew"
	if err := s.Journal.Follow(ctx, r); err != nil {
		return nil, err
	}
	now := s.judge(opened, client)
	return &vaultv1.RenewPermitsResponse{Permits: permits, Tools: names(s.callable(now)), TierCeiling: now.Call.Ceiling}, nil
}

// CloseSession ends a session; closing what is not open is no error.
func (s *sessionService) CloseSession(ctx context.Context, req *vaultv1.CloseSessionRequest) (*vaultv1.CloseSessionResponse, error) {
	opened, err := s.Sessions.Find(req.GetSessionId())
	if err == nil && !calledBy(opened.Client, caller(ctx)) {
		return nil, s.refused(ctx, "close-refused", "", opened, denied("the session is another's"))
	}
	if ended := s.Sessions.Close(req.GetSessionId()); ended != nil {
		s.sessionEnded(ctx, ended, "close")
	}
	return &vaultv1.CloseSessionResponse{}, nil
}

// watchesEach is how many such streams a process may hold: a reconnect overlaps the one it replaces. How many processes: who has a certificate.
const watchesEach = 4

// WatchSessions tells a gateway, or egress, of dangerous mode and of sessions that end, until the caller goes away.
func (s *sessionService) WatchSessions(_ *vaultv1.WatchSessionsRequest, stream grpc.ServerStreamingServer[vaultv1.WatchSessionsResponse]) error {
	leave := s.watching.Enter(caller(stream.Context()).String())
	if leave == nil {
		return fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded: this process watches often enough already", fault.WithRetry(time.Minute))
	}
	defer leave()
	return s.Standing.Watch(stream.Context(), func() error { return stream.SendHeader(nil) }, stream.Send)
}

// TellHealth keeps what a gateway says of itself, for operators.
func (s *sessionService) TellHealth(ctx context.Context, req *vaultv1.TellHealthRequest) (*vaultv1.TellHealthResponse, error) {
	s.gateways.hear(caller(ctx).String(), req.GetHealth(), s.Now())
	return &vaultv1.TellHealthResponse{}, nil
}

// senderOf holds a client to what its channel asks for: a messaging client speaks for somebody, and no other does. A name that is
// not shown as it is could be taken for another's.
func senderOf(client *clients.Client, sender *vaultv1.Sender) (*session.Sender, error) {
	bad := func(why, field string) error {
		return fault.New(callv1.Code_CODE_INVALID_ARGUMENT, why, fault.WithField(field))
	}
	switch {
	case !client.Messaging() && sender == nil:
		return nil, nil
	case !client.Messaging():
		return nil, bad("this client speaks for nobody else", "sender")
	case sender == nil:
		return nil, bad("a messaging client must say for whom it speaks", "sender")
	case sender.GetUser() == "" || clean.Line(sender.GetUser(), 128) != sender.GetUser():
		return nil, bad("the sender's name must be plain text", "sender.user")
	case sender.GetRoom() == "" || clean.Line(sender.GetRoom(), 128) != sender.GetRoom():
		return nil, bad("the room's name must be plain text", "sender.room")
	}
	return &session.Sender{User: sender.GetUser(), Room: sender.GetRoom()}, nil
}

// senderMay counts one request of a person on a messaging platform: so many a minute by person, by room and in all (CH-1).
func (s *Server) senderMay(client *clients.Client, sender *session.Sender) error {
	if sender == nil {
		return nil
	}
	v := s.Security.Current().Values(client.ID, client.User)
	retry, ok := s.senders.Allow(s.Now(),
		usage.Limit{Key: "user\x00" + client.ID + "\x00" + sender.User, Most: v.MessagingPerUser},
		usage.Limit{Key: "room\x00" + client.ID + "\x00" + sender.Room, Most: v.MessagingPerRoom},
		usage.Limit{Key: "all", Most: v.MessagingInAll})
	if !ok {
		return fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded: too many messages in a minute", fault.WithRetry(retry))
	}
	return nil
}

// session finds a session and its client as clients.yaml has it now: a client that was revoked, or whose credential
// changed, has no sessions any more.
func (s *Server) session(ctx context.Context, id string) (*session.Session, *clients.Client, error) {
	opened, err := s.Sessions.Find(id)
	if err == nil && !calledBy(opened.Client, caller(ctx)) {
		err = fault.New(callv1.Code_CODE_UNAUTHENTICATED, "the session has ended; open another", fault.WithCause(errors.New("the session is another's")))
	}
	if err != nil {
		return nil, nil, err
	}
	client, ok := s.Clients.Lookup(opened.Principal)
	if !ok || !letIn(client, opened) {
		if ended := s.Sessions.Close(id); ended != nil {
			s.sessionEnded(ctx, ended, "client-revoked")
		}
		return nil, nil, fault.New(callv1.Code_CODE_UNAUTHENTICATED, "the session has ended; open another")
	}
	return opened, client, nil
}

func (s *Server) stillLetIn(opened *session.Session) bool {
	client, ok := s.Clients.Lookup(opened.Principal)
	return ok && letIn(client, opened)
}

// letIn reports whether a client as it is now still has the session: its credential, and the agent that it speaks for.
func letIn(client *clients.Client, opened *session.Session) bool {
	return client.SameCredential(opened.Client) && hasAgent(client, opened.Agent)
}

// proven holds a key-bound client to its signature, made within session.Skew of now, and each counter to one use. The key is the
// one that the session was opened with, which a rotation may have replaced meanwhile.
func (s *Server) proven(opened *session.Session, claim proof.Claim, p *callv1.Proof) error {
	if !operation.MustSign(opened.Client.Key != nil) {
		return nil
	}
	err := proof.Verify(opened.Client.Key, claim, p)
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
	if ok, suppressed := s.failures.Allow(principal, s.Now()); ok {
		r := journal.Session(auditv1.Kind_KIND_AUTHENTICATION_FAILED, auditv1.Status_STATUS_DENIED, principal, "", 0)
		r.Body.Action, r.Body.Reason, r.Body.DecisionSource = "open", cause.Error(), caller(ctx).String()
		note(r, suppressed)
		s.Journal.Note(ctx, r)
	}
	return fault.New(callv1.Code_CODE_UNAUTHENTICATED, "not authenticated", fault.WithCause(cause))
}

// permits signs one permit for each sink, the vault itself included, over the READ tools that a permit covers and that policy
// lets this session run there whatever their arguments.
func (s *Server) permits(opened *session.Session, client *clients.Client) ([]*vaultv1.AddressedPermit, error) {
	var out []*vaultv1.AddressedPermit
	epoch, j := s.Halt.Now().Epoch, s.judge(opened, client)
	dangerousUntil, _ := s.Standing.Dangerous(opened.Ref)
	for _, sink := range append([]identity.ID{s.Self}, s.Sinks...) {
		var names []string
		for _, tool := range contract.Tools() { // sorted, as a permit must be
			if tool.Sink == sink.Role() && j.Permitted(tool, sink == s.Self) {
				names = append(names, tool.Name)
			}
		}
		permit, until, err := s.Issuer.Permit(issuer.Scope{
			Principal: client.ID, Session: opened.Ref, Channel: client.Channel, Tools: names, Audience: sink.String(), Epoch: epoch,
			DangerousUntil: dangerousUntil,
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
