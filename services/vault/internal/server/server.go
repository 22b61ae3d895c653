// Package server is the vault's RPCs, one file per group of callers. A handler authenticates, decides, acts and replies,
// and is short; what it decides with is in the packages beside it.
//
// The gateway relays credentials, handles and proofs: nothing that it says about a principal, a session or a channel is
// believed. Those come from the session, from a permit or a grant that this vault signed, or from a statement that a human
// signed.
package server

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/deepcheck"
	"durward.internal/services/platform/desktop"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/refusals"
	"durward.internal/services/platform/rollback"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/share"
	"durward.internal/services/vault/internal/capability"
	"durward.internal/services/vault/internal/changelog"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/consent"
	"durward.internal/services/vault/internal/credential"
	"durward.internal/services/vault/internal/disclosure"
	"durward.internal/services/vault/internal/halt"
	"durward.internal/services/vault/internal/issuer"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/safe"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/standing"
	"durward.internal/services/vault/internal/token"
	"durward.internal/services/vault/internal/usage"
)

// Audit is what the vault needs to know of its recorder beside writing.
type Audit interface {
	Reachable() bool
	Depth() int
	Checkpoint() []byte
}

// Config is what a Server needs; everything is required unless it says otherwise.
type Config struct {
	// Self is the vault's own identity: the audience of permits for its own tools.
	Self identity.ID
	// Sinks are the identities that grants and permits may name beside Self, one a role.
	Sinks    []identity.ID
	Clients  *clients.Registry
	Sessions *session.Table
	// Security is the configuration that humans own: settings and policies.
	Security *security.Live
	// Usage counts calls for the limits in it.
	Usage *usage.Counters
	// Changes tells the log what of it changed.
	Changes *changelog.Ledger
	// Desktop judges the control of desktops.
	Desktop *desktop.Gate
	Queue   *operation.Queue
	// Standing is what humans let sessions do without being asked each time; Consent judges what they sign.
	Standing *standing.Approvals
	Consent  *consent.Judge
	Issuer   *issuer.Issuer
	Halt     *halt.Switch
	Journal  *journal.Journal
	Tokens   *token.Values
	// PrivacyTypes are the types of personal data that become references.
	PrivacyTypes []string
	// Disclosure says what of them may leave.
	Disclosure *disclosure.Policy
	// Safe keeps the credentials that services are given.
	Safe  *safe.Safe
	Audit Audit
	// History is what the log knows of this vault; nil: its state is compared with nothing.
	History rollback.History
	// Digest stands in the log for what it does not name (CH-1), as database.Seals's does.
	Digest func(purpose string, values ...string) string
	// Deep is the deep check; nil: none.
	Deep *deepcheck.Checks
	// Now is the vault's clock.
	Now     func() time.Time
	Logger  *slog.Logger
	Version string
}

// Server answers the vault's RPCs. It is safe for concurrent use.
type Server struct {
	Config
	sinks    map[optionsv1.Role]identity.ID
	started  time.Time
	failures share.Throttle
	refusals share.Throttle
	// refusedCalls are those that no handler saw.
	refusedCalls *refusals.Counter
	// senders are how often people on messaging platforms ask.
	senders usage.Rates
	// watching are the gateways that are told of sessions.
	watching share.Places
	// gateways are what gateways say of themselves.
	gateways gateways
	// tokenising has turns at looking through texts.
	tokenising *share.Turns
	// capabilities are what sinks resolve references by.
	capabilities *capability.Issuer
	// credentials serves those that are stored.
	credentials *credential.Service
	// keeper holds the state against what the log knows.
	keeper *rollback.Keeper
}

// New checks that there is one sink a role.
func New(c Config) (*Server, error) {
	s := &Server{Config: c, sinks: map[optionsv1.Role]identity.ID{}, started: c.Now(), tokenising: share.NewTurns(tokeniseAtOnce), watching: share.Places{Each: watchesEach}, capabilities: capability.New(c.Now)}
	s.credentials = credential.New(credential.Config{
		Self: c.Self, Sinks: c.Sinks, Safe: c.Safe, Consent: c.Consent, Issuer: c.Issuer, Queue: c.Queue, Clients: c.Clients,
		Halt: c.Halt, Journal: c.Journal, Now: c.Now,
	})
	s.keeper = s.newKeeper()
	s.refusedCalls = refusals.New(refusals.Config{First: firstRefusals, Write: func(ctx context.Context, r *auditv1.Record, more uint64) {
		refusals.Note(r, "suppressed", more)
		c.Journal.Note(ctx, r)
	}})
	for _, id := range append([]identity.ID{c.Self}, c.Sinks...) {
		if _, twice := s.sinks[id.Role()]; twice {
			return nil, errors.New("sinks: two have the role " + identity.RoleName(id.Role()))
		}
		s.sinks[id.Role()] = id
	}
	return s, nil
}

// Register adds every service of the vault to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	vaultv1.RegisterSessionServiceServer(r, &sessionService{Server: s})
	vaultv1.RegisterAuthorityServiceServer(r, &authorityService{Server: s})
	vaultv1.RegisterToolServiceServer(r, &toolService{Server: s})
	vaultv1.RegisterOperationServiceServer(r, &operationService{Server: s})
	vaultv1.RegisterRedeemServiceServer(r, &redeemService{Server: s})
	vaultv1.RegisterCheckServiceServer(r, &checkService{Server: s})
	vaultv1.RegisterTokeniseServiceServer(r, &tokeniseService{Server: s})
	vaultv1.RegisterDisclosureServiceServer(r, &disclosureService{Server: s})
	vaultv1.RegisterPrivacyServiceServer(r, &privacyService{Server: s})
	vaultv1.RegisterApprovalServiceServer(r, &approvalService{Server: s})
	vaultv1.RegisterNoticeServiceServer(r, &noticeService{Server: s})
	vaultv1.RegisterStandingServiceServer(r, &standingService{Server: s})
	vaultv1.RegisterPolicyServiceServer(r, &policyService{Server: s})
	s.credentials.Register(r)
	vaultv1.RegisterControlServiceServer(r, &controlService{Server: s})
}

// Times of Run.
const (
	sweepEvery = time.Second
	pruneEvery = time.Hour
)

// firstRefusals is how many refused calls of a kind are recorded as they come.
const firstRefusals = 5

// Run expires sessions and operations until ctx ends, and then sends waiting calls home.
func (s *Server) Run(ctx context.Context) {
	sweep, prune := time.NewTicker(sweepEvery), time.NewTicker(pruneEvery)
	defer sweep.Stop()
	defer prune.Stop()
	var telling sync.WaitGroup
	telling.Go(func() { s.keeper.Run(ctx) })
	defer telling.Wait()
	for {
		var err error
		select {
		case <-ctx.Done():
			s.Queue.Close()
			s.refusedCalls.Flush(context.WithoutCancel(ctx), true)
			return
		case <-sweep.C:
			err = s.Sweep(ctx)
		case <-prune.C:
			err = errors.Join(s.Queue.Prune(ctx), s.Usage.Prune(ctx), s.Tokens.Reclaim(ctx))
		}
		if err != nil && ctx.Err() == nil {
			s.Logger.ErrorContext(ctx, "what is over could not be put away", "error", err)
		}
	}
}

// Sweep ends sessions and operations that are over. Run calls it every second.
func (s *Server) Sweep(ctx context.Context) error {
	s.endSessions(ctx, "expired", s.stillLetIn)
	s.Standing.Sweep(ctx)
	open := func(session string) bool {
		_, open := s.Sessions.Live(session)
		return open
	}
	s.Tokens.Forget(ctx, open)
	s.Usage.Forget(open)
	s.refusedCalls.Flush(ctx, false)
	return s.Queue.Sweep(ctx)
}

// endSessions ends what is over and what keep says no to, with everything that it stood for.
func (s *Server) endSessions(ctx context.Context, action string, keep func(*session.Session) bool) {
	for _, ended := range s.Sessions.Sweep(keep) {
		s.sessionEnded(ctx, ended, action)
	}
}

// sessionEnded records a session's end, and ends what humans let it do.
func (s *Server) sessionEnded(ctx context.Context, ended *session.Session, action string) {
	r := journal.Session(auditv1.Kind_KIND_SESSION_CLOSED, auditv1.Status_STATUS_OK, ended.Principal, ended.Ref, ended.Client.Channel)
	r.Body.Action = action
	s.Journal.Note(ctx, r)
	s.Standing.SessionEnded(ctx, ended.Ref)
}

// Refused records what the chain refused before a handler saw it; a flood becomes a count.
func (s *Server) Refused(ctx context.Context, method string, caller identity.ID, err *fault.Error) {
	r := &auditv1.Record{
		Kind: auditv1.Kind_KIND_DENIED, Status: auditv1.Status_STATUS_DENIED,
		Body: &auditv1.Body{Action: "rpc-refused", Summary: clean.Line(method, 200), DecisionSource: caller.String(), Reason: err.Message},
	}
	if caller.IsZero() {
		r.Kind = auditv1.Kind_KIND_AUTHENTICATION_FAILED
	}
	if err.Code == callv1.Code_CODE_DENIED && err.Cause != nil {
		r.Body.Reason = err.Cause.Error() // which of the reasons that look alike
	}
	s.refusedCalls.Add(ctx, refusals.Kind{Peer: caller.String(), What: r.Body.Summary + " " + r.Body.Reason}, r)
}

// refused records an error of a handler that is a refusal, and returns it. A session that was found is named.
func (s *Server) refused(ctx context.Context, action, tool string, opened *session.Session, err error) error {
	r := &auditv1.Record{Tool: clean.Line(tool, 128), Body: &auditv1.Body{Action: action}}
	if opened != nil {
		r.Body.Principal, r.Body.Session, r.Body.Channel = opened.Principal, opened.Ref, opened.Client.Channel
		r.Body.Dangerous = s.dangerous(opened.Ref)
	}
	return s.recordRefused(ctx, r, err)
}

// recordRefused completes and writes the record of a refusal, and returns the refusal. What a principal's flood repeats
// becomes a count.
func (s *Server) recordRefused(ctx context.Context, r *auditv1.Record, err error) error {
	switch fault.From(err).Code {
	case callv1.Code_CODE_INTERNAL, callv1.Code_CODE_TIMEOUT, callv1.Code_CODE_UNAVAILABLE, callv1.Code_CODE_AUDIT_UNAVAILABLE:
		return err // a failure of ours, which the log is told of
	default: // a refusal
	}
	ok, suppressed := s.refusals.Allow(r.GetBody().GetPrincipal(), s.Now())
	if !ok {
		return err
	}
	r.Kind, r.Status = auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED
	r.Body.Reason, r.Body.DecisionSource = fault.From(err).Message, caller(ctx).String()
	if cause := fault.From(err).Cause; cause != nil && !fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT) {
		r.Body.Reason = cause.Error() // which of the reasons that look alike
	}
	note(r, suppressed)
	s.Journal.Note(ctx, r)
	return err
}

// caller is the identity on the connection; the chain lets nobody in without.
func caller(ctx context.Context) identity.ID {
	id, _ := rpc.Caller(ctx)
	return id
}

func denied(cause string) error {
	return fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(errors.New(cause)))
}

// note says in a record how many like it were left out.
func note(r *auditv1.Record, suppressed int) {
	if suppressed == 0 {
		return
	}
	if r.Body.Details == nil {
		r.Body.Details = map[string]string{}
	}
	r.Body.Details["suppressed"] = strconv.Itoa(suppressed)
}

// WhileItLeads refuses calls once another vault may lead: this one was stopped, or cut off from the database that they share, and what it
// knows may be old.
func (s *Server) WhileItLeads(leads func() bool) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if !leads() {
			return nil, fault.New(callv1.Code_CODE_UNAVAILABLE, "this vault leads no more, and another one takes over; try again", fault.WithRetry(time.Second))
		}
		return handle(ctx, req)
	}
}
