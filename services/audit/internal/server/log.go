package server

import (
	"context"
	"errors"
	"slices"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/redaction"
	"durward.internal/services/platform/rpc"
)

// A record's own time is its writer's claim; these bounds keep it representable.
var (
	earliest = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

type logService struct {
	auditv1.UnimplementedLogServiceServer
	*Server
}

func (s logService) Append(ctx context.Context, req *auditv1.AppendRequest) (*auditv1.AppendResponse, error) {
	writer, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range req.GetRecords() {
		if !mayWrite(writer.Role(), r.GetKind()) {
			return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "this process does not write records of that kind", fault.WithField("records.kind"))
		}
		if !maySay(writer.Role(), r.GetKind(), r.GetBody()) {
			return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "this process does not speak of a human's consent in records of that kind", fault.WithField("records.body"))
		}
		if name, found := s.redactor.Find(r); found && credentialsRefused() {
			return nil, redaction.Refusal(name)
		}
		if at := r.GetTime().AsTime(); !r.GetTime().IsValid() || at.Before(earliest) || !at.Before(latest) {
			return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "a record's time is not a time of this age", fault.WithField("records.time"))
		}
	}
	if req.GetTogether() {
		return s.cfg.Log.AppendTogether(ctx, writer.String(), req.GetRecords(), req.GetKnownSize())
	}
	return s.cfg.Log.Append(ctx, writer.String(), req.GetRecords(), req.GetKnownSize())
}

func (s logService) GetHead(ctx context.Context, req *auditv1.GetHeadRequest) (*auditv1.GetHeadResponse, error) {
	writer, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	out, err := s.cfg.Log.Head(ctx, writer.String(), req.GetKnownSize())
	if err != nil {
		return nil, err
	}
	head, err := logproof.ReadCheckpoint(out.GetCheckpoint())
	if err != nil {
		return nil, unreadable(err)
	}
	out.Witnessed, out.WitnessedConsistency, err = s.witnessed(ctx, head.Size)
	return out, err
}

func (s logService) GetLast(ctx context.Context, req *auditv1.GetLastRequest) (*auditv1.GetLastResponse, error) {
	writer, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	entry, err := s.cfg.Store.Last(ctx, writer.String(), req.GetKind(), req.GetOperationId())
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, unreadable(err)
	}
	return &auditv1.GetLastResponse{Entry: entry}, nil
}

func caller(ctx context.Context) (identity.ID, error) {
	id, ok := rpc.Caller(ctx)
	if !ok {
		return identity.ID{}, fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(errors.New("the caller has no identity")))
	}
	return id, nil
}

// sinkKinds are what a process writes where effects happen.
var sinkKinds = []auditv1.Kind{
	auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME, auditv1.Kind_KIND_READ, auditv1.Kind_KIND_SINK_REFUSED, auditv1.Kind_KIND_RECOVERED,
	// What its own rules did, with no call behind it, and so with nobody's consent in it.
	auditv1.Kind_KIND_RULE,
	// A sink is halted and resumed by itself, each time that the vault is.
	auditv1.Kind_KIND_HALTED, auditv1.Kind_KIND_RESUMED,
	// What a human let a session do is ended there too.
	auditv1.Kind_KIND_STANDING_ENDED,
	// What may run there without a human's statement is in a file of its own.
	auditv1.Kind_KIND_CONFIG_FOUND, auditv1.Kind_KIND_CONFIG_REFUSED,
	auditv1.Kind_KIND_STATE,
}

// kinds says what each role may write beside KIND_STARTED and KIND_STOPPED, which every role may. Whoever took over one
// process cannot write another's part of a story: a gateway cannot claim an approval.
var kinds = map[optionsv1.Role][]auditv1.Kind{
	optionsv1.Role_ROLE_GATEWAY: {auditv1.Kind_KIND_REFUSED},
	optionsv1.Role_ROLE_VAULT: {
		auditv1.Kind_KIND_SESSION_OPENED, auditv1.Kind_KIND_SESSION_CLOSED, auditv1.Kind_KIND_AUTHENTICATION_FAILED,
		auditv1.Kind_KIND_ASKED, auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_DENIED, auditv1.Kind_KIND_EXPIRED, auditv1.Kind_KIND_WITHDRAWN,
		auditv1.Kind_KIND_GRANTED, auditv1.Kind_KIND_REDEEMED, auditv1.Kind_KIND_PERMIT_ISSUED,
		auditv1.Kind_KIND_HALTED, auditv1.Kind_KIND_RESUMED,
		auditv1.Kind_KIND_STANDING_GRANTED, auditv1.Kind_KIND_STANDING_ENDED, auditv1.Kind_KIND_MUTED,
		auditv1.Kind_KIND_CONFIG_ADOPTED, auditv1.Kind_KIND_CONFIG_FOUND, auditv1.Kind_KIND_CONFIG_REFUSED, auditv1.Kind_KIND_OVERRIDE,
		auditv1.Kind_KIND_STATE, auditv1.Kind_KIND_CREDENTIAL_CHANGED, auditv1.Kind_KIND_CREDENTIAL_USED,
		auditv1.Kind_KIND_TOKENISED, auditv1.Kind_KIND_DELIVERED, auditv1.Kind_KIND_RESOLVED, auditv1.Kind_KIND_DISCLOSURE_DENIED,
		auditv1.Kind_KIND_CAPABILITY_INVALID,
		auditv1.Kind_KIND_READ, // it answers who asks how an operation stands
	},
	optionsv1.Role_ROLE_EXECUTOR: sinkKinds,
	optionsv1.Role_ROLE_EGRESS:   sinkKinds,
	optionsv1.Role_ROLE_OPERATOR: {auditv1.Kind_KIND_CONFIG_CHANGED, auditv1.Kind_KIND_NOTE},
	// Audit itself writes when it starts and stops, and what it refused.
	optionsv1.Role_ROLE_AUDIT: {auditv1.Kind_KIND_REFUSED},
}

// mayWrite reports whether a role writes records of that kind.
func mayWrite(role optionsv1.Role, kind auditv1.Kind) bool {
	own, known := kinds[role]
	if !known {
		return false
	}
	if !kindsKept() {
		return true
	}
	return kind == auditv1.Kind_KIND_STARTED || kind == auditv1.Kind_KIND_STOPPED || slices.Contains(own, kind)
}

// maySay reports whether a role's record of that kind may say what its body says of a human's consent.
func maySay(role optionsv1.Role, kind auditv1.Kind, body *auditv1.Body) bool {
	if !kindsKept() {
		return true
	}
	return (body.GetStatement() == nil || logproof.CarriesStatement(role, kind)) &&
		(!body.GetConfirmed() && !body.GetDangerous() || logproof.CarriesConsent(role, kind))
}
