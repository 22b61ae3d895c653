package standing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/desktop"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/consent"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/store"
)

// proposal is a dangerous mode that nobody has confirmed: it allows nothing.
type proposal struct {
	*statement.Verified
	human               *callv1.HumanStatement
	session             *session.Session
	notBefore, notAfter time.Time
}

// withdraw takes proposals back, records it, and shows what they were.
func (b *Approvals) withdraw(ctx context.Context, why, by string, which func(*proposal) bool) []*vaultv1.Standing {
	var gone []*proposal
	b.mu.Lock()
	for ref, p := range b.proposals {
		if which(p) {
			delete(b.proposals, ref)
			gone = append(gone, p)
		}
	}
	b.mu.Unlock()
	slices.SortFunc(gone, func(x, y *proposal) int { return strings.Compare(x.ID, y.ID) })
	var out []*vaultv1.Standing
	for _, p := range gone {
		r := journal.Session(auditv1.Kind_KIND_STANDING_ENDED, auditv1.Status_STATUS_OK, p.Principal, p.Session, p.session.Client.Channel)
		r.Body.Action, r.Body.Reason, r.Body.DecisionSource, r.Body.Dangerous = "standing-withdrawn", why, by, true
		r.Body.Details = map[string]string{"statement": p.ID, "kind": string(p.Kind), "used": "0"}
		b.Journal.Note(ctx, r)
		out = append(out, &vaultv1.Standing{
			StandingId: p.ID, Kind: string(p.Kind), Operator: p.Operator, Principal: p.Principal, Session: p.Session,
			ClientName: p.session.ClientName, ExpiresAt: timestamppb.New(p.Ends), Statement: p.human,
		})
	}
	return out
}

// GrantScope puts a scope into force, if the statement is a human's, signed, of kind "scope", for a live session of a key-bound
// client and within the limits. first, where not nil, is an operation that it has to cover. caller is the identity that brought
// it. Errors: CODE_DENIED with why in one sentence, CODE_ALREADY_SPENT, CODE_RATE_LIMITED, CODE_HALTED, CODE_EXPIRED,
// CODE_AUDIT_UNAVAILABLE.
func (b *Approvals) GrantScope(ctx context.Context, h *callv1.HumanStatement, first *store.Operation, caller string) (*vaultv1.Standing, error) {
	revoked := b.revoked.Load()
	v, live, err := b.grantable(h, statement.KindScope)
	if err == nil {
		err = b.scope(v, live)
	}
	if err == nil {
		err = b.fresh(ctx, v)
	}
	if err == nil && first != nil && covers(v, first) != nil {
		err = refused("the scope does not cover the operation that it was granted for")
	}
	if err != nil {
		return nil, b.refuse(ctx, h, caller, err)
	}
	return b.enforce(ctx, &entry{Verified: v, human: h, session: live},
		&store.UsedStatement{Digest: v.Digest[:], Kind: string(v.Kind), Operator: v.Operator, UsedAt: b.Now()}, caller, revoked)
}

// ProposeDangerous takes a statement of kind "dangerous" and returns when it may be confirmed. It uses the statement up, and
// nothing is in force. One session has one proposal at a time: CODE_CONFLICT. Other errors are GrantScope's.
func (b *Approvals) ProposeDangerous(ctx context.Context, h *callv1.HumanStatement, caller string) (id string, notBefore, notAfter time.Time, err error) {
	v, live, err := b.grantable(h, statement.KindDangerous)
	if err == nil {
		err = b.dangerous(v, live)
	}
	if err == nil {
		err = b.fresh(ctx, v)
	}
	if err != nil {
		return "", time.Time{}, time.Time{}, b.refuse(ctx, h, caller, err)
	}
	now := b.Now()
	p := &proposal{Verified: v, human: h, session: live, notBefore: now.Add(ConfirmAfter), notAfter: now.Add(ConfirmWithin)}
	b.mu.Lock()
	old, waits := b.proposals[v.Session]
	if waits = waits && !now.After(old.notAfter); !waits {
		b.proposals[v.Session] = p
	}
	b.mu.Unlock()
	if waits {
		return "", time.Time{}, time.Time{}, fault.New(callv1.Code_CODE_CONFLICT, "dangerous mode is proposed for this session already: confirm it, or wait until it lapses")
	}
	r := b.record(v, h, live, auditv1.Status_STATUS_PENDING, caller)
	r.Body.Action = "dangerous-asked"
	err = b.Journal.Do(ctx, r, func() error {
		return b.Store.UseStatement(context.WithoutCancel(ctx), store.UsedStatement{Digest: v.Digest[:], Kind: string(v.Kind), Operator: v.Operator, UsedAt: now})
	})
	if err != nil {
		b.mu.Lock()
		if b.proposals[v.Session] == p { // it may have been taken back, and another proposed
			delete(b.proposals, v.Session)
		}
		b.mu.Unlock()
		return "", time.Time{}, time.Time{}, statementUsed(err)
	}
	return v.ID, p.notBefore, p.notAfter, nil
}

// ConfirmDangerous takes the second statement of a proposal, and puts it into force by the vault's clock between ConfirmAfter and
// ConfirmWithin of it. Errors: CODE_NOT_FOUND, CODE_CONFLICT for too early, CODE_EXPIRED for too late; others are GrantScope's.
func (b *Approvals) ConfirmDangerous(ctx context.Context, h *callv1.HumanStatement, caller string) (*vaultv1.Standing, error) {
	second, live, err := b.grantable(h, statement.KindConfirm)
	if err == nil {
		err = b.dangerous(second, live)
	}
	if err != nil {
		return nil, b.refuse(ctx, h, caller, err)
	}
	now := b.Now()
	b.mu.Lock()
	revoked := b.revoked.Load()
	p := b.proposals[second.Session]
	found := p != nil && second.Confirms == canonical.FormatDigest(p.Digest[:])
	soon := found && early(now.Before(p.notBefore))
	if found && !soon {
		delete(b.proposals, p.Session) // whatever comes of it: it is confirmed once
	}
	b.mu.Unlock()
	switch {
	case !found:
		return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "what this confirms was taken back or has lapsed; propose it again")
	case soon:
		return nil, fault.New(callv1.Code_CODE_CONFLICT, "it is too early to confirm: read again what it means", fault.WithRetry(p.notBefore.Sub(now)))
	case now.After(p.notAfter):
		return nil, fault.New(callv1.Code_CODE_EXPIRED, "it was not confirmed in time; propose it again")
	}
	// The second is by the same key, for the same party and until the same end, or it is refused. So what five seconds could have
	// changed of the first, its key, its session, its client, a halt, was looked at with the second.
	if err = confirmed(p.Verified, second); err == nil {
		err = b.fresh(ctx, second)
	}
	if err != nil {
		return nil, b.refuse(ctx, h, caller, err)
	}
	return b.enforce(ctx, &entry{Verified: p.Verified, human: p.human, confirmation: h, session: live},
		&store.UsedStatement{Digest: second.Digest[:], Kind: string(second.Kind), Operator: second.Operator, UsedAt: now}, caller, revoked)
}

// grantable verifies a statement and finds the live session that it is for: one of a key-bound client, as the statement says.
func (b *Approvals) grantable(h *callv1.HumanStatement, kind statement.Kind) (*statement.Verified, *session.Session, error) {
	s, err := statement.Parse(h.GetStatement())
	if err != nil {
		return nil, nil, err
	}
	v, err := b.Consent.Verify(h, s.Principal)
	if err != nil {
		return nil, nil, err
	}
	if v.Kind != kind {
		return nil, nil, fmt.Errorf("%w: it is of kind %s", statement.ErrCover, v.Kind)
	}
	if err := b.Halt.Within(v.Epoch, func() error { return nil }); err != nil {
		return nil, nil, err
	}
	live, ok := b.Sessions.Live(v.Session)
	if !ok {
		return nil, nil, refused("no such session is open")
	}
	client, ok := b.Client(v.Principal)
	switch {
	case !ok || live.Principal != v.Principal || !stillIn(client, live):
		return nil, nil, refused("the session is not that client's")
	case b.isMuted(v.Principal):
		return nil, nil, refused("the client is muted: end the mute first")
	case !boundEnough(live.Client.KeyBound()):
		return nil, nil, refused("the client does not sign its requests: only a key-bound client may act without a human's look at each call")
	case statement.ChannelName(client.Channel) != v.Channel:
		return nil, nil, refused("the session is on another channel")
	case !slices.Contains(b.Audiences, v.Audience):
		return nil, nil, refused("the statement is for a process that is not this vault's")
	case !b.Now().Before(v.Ends):
		return nil, nil, refused("the statement has expired")
	}
	return v, live, nil
}

// fresh refuses a statement that was used before, so that a replay is not recorded as a grant. The store is what makes it so.
func (b *Approvals) fresh(ctx context.Context, v *statement.Verified) error {
	switch used, err := b.Store.StatementUsed(ctx, v.Digest[:]); {
	case err != nil:
		return fault.New(callv1.Code_CODE_INTERNAL, "internal error", fault.WithCause(err))
	case used:
		return statementUsed(store.ErrStatementUsed)
	default:
		return nil
	}
}

// scope holds a scope to the limits and to the tools there are.
func (b *Approvals) scope(v *statement.Verified, live *session.Session) error {
	// SameCredential says that the session and clients.yaml agree on whose it is.
	limits := b.Limits(v.Principal, live.Client.User)
	if v.Ends.Sub(b.Now()) > limits.ScopeMax {
		return refused(fmt.Sprintf("a scope lasts %s at most here", limits.ScopeMax))
	}
	if uint32(v.Uses) > limits.ScopeMaxUses { // #nosec G115 -- a statement's uses are 1 to 1000
		return refused(fmt.Sprintf("a scope has %d uses at most here", limits.ScopeMaxUses))
	}
	for _, named := range v.Tools {
		tool, ok := contract.Lookup(named.Name)
		if !ok || statement.ToolOf(tool.Ref()) != named {
			return refused("the scope names a tool that is not known here by that definition")
		}
		if err := scopable(tool); err != nil {
			return err
		}
	}
	return nil
}

// scopable refuses tools that no scope covers, whatever the configuration allows.
func scopable(tool contract.Tool) error {
	switch {
	case desktop.Controls(tool):
		return refused("desktop control is confirmed each time: no scope covers it")
	case tool.Tier == optionsv1.Tier_TIER_UNSPECIFIED:
		return refused("the scope names a tool that nothing allows")
	}
	return nil
}

func (b *Approvals) dangerous(v *statement.Verified, live *session.Session) error {
	limits := b.Limits(v.Principal, live.Client.User)
	switch {
	case !limits.DangerousAllowed:
		return refused("the security configuration does not allow dangerous mode")
	case v.Ends.Sub(b.Now()) > limits.DangerousMax:
		return refused(fmt.Sprintf("dangerous mode lasts %s at most here", limits.DangerousMax))
	}
	return nil
}

// enforce records a grant, keeps it as evidence, and puts it into force: on one side of a halt or the other. revoked is how many
// revocations there had been when the grant began: one that came since may have meant this too.
func (b *Approvals) enforce(ctx context.Context, e *entry, used *store.UsedStatement, caller string, revoked uint64) (*vaultv1.Standing, error) {
	v, h := e.Verified, e.human
	if err := b.underCaps(e); err != nil {
		return nil, err
	}
	now := b.Now()
	e.granted, e.until, e.left = now, v.Ends, uint32(v.Uses) // #nosec G115 -- 1 to 1000
	if ends := e.session.ExpiresAt(); ends.Before(e.until) {
		e.until = ends
	}
	// The proposal's record has the first statement of dangerous mode.
	signed := h
	if e.confirmation != nil {
		signed = e.confirmation
	}
	r := b.record(v, signed, e.session, auditv1.Status_STATUS_OK, caller)
	r.Body.Action = string(v.Kind) + "-granted"
	var replaced *entry
	late := false
	inForce := func() error {
		err := b.Store.InsertStanding(context.WithoutCancel(ctx), &store.Standing{
			ID: v.ID, Digest: v.Digest[:], Kind: string(v.Kind), Operator: v.Operator, Principal: v.Principal, Session: v.Session,
			GrantedAt: now, Statement: h.GetStatement(), Signature: h.GetSignature(),
		}, used)
		if err != nil {
			return err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if late = b.revoked.Load() != revoked; late {
			return nil
		}
		if v.Kind == statement.KindDangerous {
			for _, other := range b.held {
				if other.Kind == v.Kind && other.Session == v.Session {
					delete(b.held, other.ID)
					if !other.spent { // or its end is recorded
						replaced = other
					}
				}
			}
			b.tellLocked(dangerous(v.Session, e.until))
		}
		b.held[v.ID] = e
		return nil
	}
	err := b.Journal.Do(ctx, r, func() error { return b.Halt.Within(v.Epoch, inForce) })
	if err != nil {
		return nil, statementUsed(err)
	}
	if late {
		b.recordEnd(ctx, e, whyRevoked, "")
		return nil, b.refuse(ctx, h, caller, refused(whyRevoked))
	}
	if replaced != nil {
		b.recordEnd(ctx, replaced, whyReplace, caller)
	}
	if why := b.judge(e, false); why != "" { // its session may have ended meanwhile
		b.end(ctx, "", func(x *entry) string {
			if x == e {
				return why
			}
			return ""
		})
		return nil, b.refuse(ctx, h, caller, refused(why))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return shown(e), nil
}

// underCaps refuses what is beyond the caps. Grants that race may pass it together: a human signs each.
func (b *Approvals) underCaps(more *entry) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	own, all, size := 0, 0, proto.Size(shown(more))
	for _, e := range b.held {
		if e.spent {
			continue // it lets nothing more run
		}
		if e.Session == more.Session {
			own++
		}
		all, size = all+1, size+proto.Size(shown(e))
	}
	if own >= PerSession || all >= InAll || size > MaxBytes {
		return fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded: too much is in force already; revoke some", fault.WithRetry(time.Minute))
	}
	return nil
}

func (b *Approvals) record(v *statement.Verified, h *callv1.HumanStatement, live *session.Session, status auditv1.Status, caller string) *auditv1.Record {
	r := journal.Session(auditv1.Kind_KIND_STANDING_GRANTED, status, v.Principal, v.Session, live.Client.Channel)
	r.Body.Statement, r.Body.Confirmed, r.Body.Dangerous = h, true, v.Kind == statement.KindDangerous
	r.Body.DecisionSource = v.Operator
	r.Body.Details = map[string]string{"caller": caller, "statement": v.ID, "kind": string(v.Kind), "until": v.ExpiresAt, "uses": fmt.Sprint(v.Uses)}
	return r
}

// refusal is a reason that an operator's program may be told: nothing in it is a secret from who holds a key.
type refusal struct{ sentence string }

func (r *refusal) Error() string { return r.sentence }

func refused(sentence string) error { return &refusal{sentence} }

// refuse records a statement that was not accepted, and returns what its bearer is told.
func (b *Approvals) refuse(ctx context.Context, h *callv1.HumanStatement, caller string, cause error) error {
	principal, ref := "", ""
	if s, err := statement.Parse(h.GetStatement()); err == nil {
		principal, ref = s.Principal, s.Session
	}
	r := journal.Session(auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, "", "", 0)
	r.Body.Action, r.Body.Reason, r.Body.DecisionSource = "standing-refused", cause.Error(), caller
	// What an unverified statement says of a party is not a fact about it.
	r.Body.Details = map[string]string{"claims_principal": clip(principal), "claims_session": clip(ref)}
	b.Journal.Note(ctx, r)
	if _, known := errors.AsType[*fault.Error](cause); known {
		return cause
	}
	sentence := consent.Sentence(cause, "the statement does not allow this")
	if told, ok := errors.AsType[*refusal](cause); ok {
		sentence = told.sentence
	}
	return fault.New(callv1.Code_CODE_DENIED, sentence, fault.WithCause(cause))
}

func statementUsed(err error) error {
	if errors.Is(err, store.ErrStatementUsed) {
		return fault.New(callv1.Code_CODE_ALREADY_SPENT, "this statement was used before; sign another", fault.WithCause(err))
	}
	return err
}
