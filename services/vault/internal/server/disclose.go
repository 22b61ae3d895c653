package server

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/reference"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/capability"
	"durward.internal/services/vault/internal/disclosure"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/store"
	"durward.internal/services/vault/internal/token"
)

// disclosureService gives sinks what references stand for.
type disclosureService struct {
	vaultv1.UnimplementedDisclosureServiceServer
	*Server
}

// disclosed is one value on its way to a sink.
type disclosed struct {
	reference.Place
	value token.Value
}

// Why a value stays. Callers are told of the first two alike.
var (
	errNoValue = errors.New("a reference in the arguments stands for nothing in this session")
	errNoRule  = errors.New("no rule of disclosure names this type, sink, tool and argument")
)

// disclosures are the values that an operation's arguments refer to. An error says why they may not be disclosed, none of them.
func (s *Server) disclosures(ctx context.Context, o *store.Operation) ([]disclosed, error) {
	places, err := reference.InJSON(o.Arguments)
	if err != nil {
		return nil, err
	}
	sink, err := identity.Parse(o.Audience)
	if err != nil {
		return nil, err
	}
	var out []disclosed
	size := 0
	for _, p := range places {
		if p.Class != reference.PII {
			continue
		}
		value, ok := s.valueOf(ctx, o.Session, p.ID)
		if !ok || value.Class != reference.PII || value.Type != p.Type || value.Text == "" {
			return nil, fmt.Errorf("%s at %s: %w", p.ID, p.Pointer, errNoValue)
		}
		// What the agent sent itself, it may send.
		if value.Origin != token.OriginAgent && !s.Disclosure.Allows(p.Type, identity.RoleName(sink.Role()), o.ToolName, p.Pointer) {
			return nil, fmt.Errorf("%s at %s: %w", p.Type, p.Pointer, errNoRule)
		}
		out, size = append(out, disclosed{p, value}), size+len(value.Text)
	}
	if len(out) > statement.MaxDisclosures || size > statement.MaxDisclosed {
		return nil, disclosure.ErrLimit
	}
	return out, nil
}

// shown is an operation as approvers see it, with what it would disclose.
func (s *Server) shown(ctx context.Context, o *vaultv1.Operation) *vaultv1.Operation {
	if o.GetState() != vaultv1.OperationState_OPERATION_STATE_PENDING {
		return o
	}
	list, err := s.disclosures(ctx, &store.Operation{
		ID: o.GetOperationId(), Session: o.GetSession(), Arguments: o.GetArguments(), Audience: o.GetAudience(), ToolName: o.GetTool().GetName(),
	})
	if err != nil {
		return o // then nothing is disclosed, and the sink refuses the call
	}
	o.Disclosures = nil
	for _, d := range list {
		ref := d.ID.String()
		salt := s.Tokens.Salt(ctx, o.GetSession(), o.GetOperationId(), d.Pointer, ref)
		o.Disclosures = append(o.Disclosures, &vaultv1.Disclosure{
			Pointer: d.Pointer, Ref: ref, Type: d.Type, Hint: token.Hint(d.value.Text),
			Commitment: statement.DisclosureCommitment(salt, d.Pointer, ref, d.Type, d.value.Text),
		})
	}
	return o
}

// mayDisclose reports whether a call that is being asked for discloses anything. An error says why it could not be carried out for what its
// arguments refer to.
func (s *Server) mayDisclose(ctx context.Context, o *store.Operation) (bool, error) {
	list, err := s.disclosures(ctx, o)
	if err == nil {
		return len(list) > 0, nil
	}
	s.noteDisclosureDenied(ctx, o, o.Audience, err)
	return false, disclosureFault(err)
}

// Deliver makes capabilities for all references of a running call. It is recorded before.
func (s *disclosureService) Deliver(ctx context.Context, req *vaultv1.DeliverRequest) (*vaultv1.DeliverResponse, error) {
	o, use, err := s.delivering(ctx, req.GetGrant())
	if err != nil {
		return nil, err
	}
	list, err := s.disclosures(ctx, o)
	if err == nil {
		size := 0
		for _, d := range list {
			size += len(d.value.Text)
		}
		err = s.Disclosure.Take(ctx, o.Session, o.Principal, len(list), size)
	}
	if err != nil {
		s.noteDisclosureDenied(ctx, o, use.Sink, err)
		return nil, disclosureFault(err)
	}
	if err := s.Journal.Must(ctx, disclosureRecord(auditv1.Kind_KIND_DELIVERED, "deliver", o, use.Sink, list)); err != nil {
		return nil, err
	}
	resp := &vaultv1.DeliverResponse{}
	for _, d := range list {
		use.Pointer = d.Pointer
		resp.Capabilities = append(resp.Capabilities, &vaultv1.Capability{Pointer: d.Pointer, Token: s.capabilities.Issue(d.ID, use)})
	}
	return resp, nil
}

// Resolve hands out values, all or none. It is recorded before. Capabilities are used up whether or not it succeeds.
func (s *disclosureService) Resolve(ctx context.Context, req *vaultv1.ResolveRequest) (*vaultv1.ResolveResponse, error) {
	o, use, err := s.delivering(ctx, req.GetGrant())
	if err != nil {
		return nil, err
	}
	resp := &vaultv1.ResolveResponse{}
	var list []disclosed
	for _, c := range req.GetCapabilities() {
		use.Pointer = c.GetPointer()
		id, err := s.capabilities.Spend(c.GetToken(), use)
		if err == nil {
			value, ok := s.valueOf(ctx, o.Session, id)
			if ok && value.Text != "" {
				list = append(list, disclosed{reference.Place{Pointer: c.GetPointer(), Reference: value.Reference}, value})
				continue
			}
			err = errNoValue
		}
		r := disclosureRecord(auditv1.Kind_KIND_CAPABILITY_INVALID, "capability-invalid", o, use.Sink, nil)
		r.Status, r.Body.Reason = auditv1.Status_STATUS_DENIED, err.Error()
		s.Journal.Note(ctx, r)
		return nil, fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(err))
	}
	if err := s.Journal.Must(ctx, disclosureRecord(auditv1.Kind_KIND_RESOLVED, "resolve", o, use.Sink, list)); err != nil {
		return nil, err
	}
	if _, _, err := s.delivering(ctx, req.GetGrant()); err != nil { // audit was waited for: what ended meanwhile has ended, and that is recorded
		return nil, err
	}
	for _, d := range list {
		resp.Values = append(resp.Values, &vaultv1.Disclosed{
			Pointer: d.Pointer, Ref: d.ID.String(), Type: d.Type, Value: d.value.Text, Salt: s.Tokens.Salt(ctx, o.Session, o.ID, d.Pointer, d.ID.String()),
		})
	}
	return resp, nil
}

// delivering finds the operation that a grant runs for the caller at this moment, which a human approved by itself, and what a capability
// of it is for, but for the argument. What is refused is recorded.
func (s *disclosureService) delivering(ctx context.Context, signed *callv1.SignedGrant) (*store.Operation, capability.Use, error) {
	sink := caller(ctx)
	use := capability.Use{Kind: identity.RoleName(sink.Role()), Sink: sink.String()}
	g, err := s.Issuer.KnownGrant(signed)
	var o *store.Operation
	if err == nil {
		use.Session, use.Call = g.GetSession(), callDigest(g)
		if g.GetAudience() != use.Sink {
			err = errors.New("the grant is for another sink")
		} else if o, err = s.Queue.Check(ctx, g, use.Sink); err == nil {
			switch {
			case o == nil || o.State != vaultv1.OperationState_OPERATION_STATE_RUNNING:
				err = errors.New("its operation does not run now")
			case o.Authority != store.ByApproval:
				err = errors.New("no human approved this very call")
			}
		}
	}
	if err == nil {
		return o, use, nil
	}
	s.noteDisclosureDenied(ctx, &store.Operation{
		ID: g.GetOperationId(), Session: g.GetSession(), Principal: g.GetPrincipal(), Channel: g.GetChannel(), ToolName: g.GetTool().GetName(),
	}, use.Sink, err)
	if fault.Is(err, callv1.Code_CODE_HALTED) || fault.Is(err, callv1.Code_CODE_EXPIRED) {
		return nil, use, err
	}
	return nil, use, fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(err))
}

// callDigest names a call: one use of one operation, by one grant.
func callDigest(g *callv1.Grant) (out [sha256.Size]byte) {
	h := sha256.New()
	for _, part := range [][]byte{
		[]byte(g.GetOperationId()), binary.BigEndian.AppendUint32(nil, g.GetUse()), []byte(g.GetId()), []byte(g.GetTool().GetName()), g.GetArgumentsDigest(),
	} {
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		_, _ = h.Write(part)
	}
	copy(out[:], h.Sum(nil))
	return out
}

// disclosureRecord begins a record about what a call discloses: how many values of which types, never which.
func disclosureRecord(kind auditv1.Kind, action string, o *store.Operation, sink string, list []disclosed) *auditv1.Record {
	r := journal.Session(kind, auditv1.Status_STATUS_OK, o.Principal, o.Session, o.Channel)
	r.OperationId, r.Tool, r.Body.Action, r.Body.ParentRequestId = o.ID, o.ToolName, action, o.RequestID
	r.Body.Details = map[string]string{"sink": sink}
	counts := map[string]int{}
	for _, d := range list {
		counts[d.Type]++
	}
	for name, n := range counts {
		r.Body.Details[name] = strconv.Itoa(n)
	}
	return r
}

func (s *Server) noteDisclosureDenied(ctx context.Context, o *store.Operation, sink string, cause error) {
	r := disclosureRecord(auditv1.Kind_KIND_DISCLOSURE_DENIED, "disclosure-denied", o, sink, nil)
	r.Status, r.Body.Reason = auditv1.Status_STATUS_DENIED, cause.Error()
	s.Journal.Note(ctx, r)
}

// disclosureFault is what callers see.
func disclosureFault(err error) error {
	cause := fault.WithCause(err)
	switch {
	case errors.Is(err, errNoValue):
		return fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "a reference in the arguments stands for nothing in this session; read again what it came from", cause)
	case errors.Is(err, errNoRule):
		return fault.New(callv1.Code_CODE_DENIED, "the operator's rules let no such personal data go there", cause)
	case errors.Is(err, disclosure.ErrLimit):
		return fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded: "+disclosure.ErrLimit.Error(), cause)
	}
	return err
}
