package sink

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// read lets a READ call run: an operator's own, one under a permit, or one under a one-call grant. It is recorded in the
// spool with how it ended; a read has no effect, so one that cannot be recorded is simply not answered.
func (a *Authority) read(ctx context.Context, c *call, handler grpc.UnaryHandler) (any, error) {
	if err := a.admitRead(ctx, c); err != nil {
		return nil, err
	}
	if err := a.judgeDesktop(ctx, c); err != nil {
		return nil, err
	}
	n := &notes{call: c}
	var response proto.Message
	request, err := a.deliver(ctx, c)
	if err == nil {
		response, err = a.look(context.WithValue(ctx, notesKey{}, n), c, request, handler)
	}
	a.settleRead(ctx, c, err == nil)
	if err == nil {
		response, err = a.tokeniseRead(ctx, c, n, response)
	} else {
		err = a.tokeniseFault(ctx, c, err)
	}
	record := a.record(auditv1.Kind_KIND_READ, auditv1.Status_STATUS_OK, c)
	record.Body.Summary, record.Body.DurationMs = n.summary, milliseconds(a.cfg.Now().Sub(c.began))
	n.note(record)
	if err != nil {
		f := fault.From(err)
		record.Status, record.Body.Summary, record.Body.Reason = failed(f), clean.Line(f.Message, 500), fault.CodeName(f.Code)
	}
	if err := a.cfg.Recorder.Spool(context.WithoutCancel(ctx), record); err != nil {
		return nil, fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, sayAudit, fault.WithCause(err))
	}
	if err != nil {
		return nil, err
	}
	if n.summary != "" || len(n.warnings) > 0 {
		rpc.SetOutcome(ctx, &callv1.Outcome{Summary: n.summary, Warnings: n.warnings, Overrides: n.overrides})
	}
	return response, nil
}

func (a *Authority) admitRead(ctx context.Context, c *call) error {
	if c.caller.Role() == optionsv1.Role_ROLE_OPERATOR && !c.tool.Leaves {
		c.who = operator(c.caller)
		return nil
	}
	rawPermit, err := header(ctx, rpc.MetadataPermit)
	if err != nil {
		return a.refuse(ctx, c, callv1.Code_CODE_DENIED, err)
	}
	rawGrant, err := header(ctx, rpc.MetadataGrant)
	if err != nil {
		return a.refuse(ctx, c, callv1.Code_CODE_DENIED, err)
	}
	switch {
	case rawGrant != nil && c.method != "":
		return a.refuse(ctx, c, callv1.Code_CODE_DENIED, errors.New("a grant for what takes a permit"))
	case rawGrant != nil:
		return a.admitByGrant(ctx, c, rawGrant)
	case rawPermit != nil && c.tool.OneCall && oneCallRequired():
		return a.refuse(ctx, c, callv1.Code_CODE_DENIED, errors.New("a permit for what takes a grant for each call"))
	case rawPermit != nil:
		if _, err := a.admitByPermit(c, rawPermit); err != nil {
			return a.refuse(ctx, c, callv1.Code_CODE_DENIED, err)
		}
		if f := a.stillPermitted(ctx, c); f != nil {
			return a.refuseWith(ctx, c, f)
		}
		return nil
	case permitRequired():
		return a.refuse(ctx, c, callv1.Code_CODE_DENIED, errors.New("a read without permit or grant"))
	default:
		return nil
	}
}

// operator is who an operator's own call is for.
func operator(caller identity.ID) who {
	return who{principal: statement.CommandPrincipal(caller.Instance()), channel: callv1.Channel_CHANNEL_CLI}
}

func (a *Authority) admitByPermit(c *call, raw []byte) (*callv1.Permit, error) {
	known, err := a.permits.verified(raw, a.cfg.Trust, a.verifyPermit)
	if err != nil {
		return nil, err
	}
	p := known.permit
	now := a.cfg.Now()
	switch {
	case !presentedBy(c.caller, p.GetPrincipal()):
		return nil, errors.New("the permit is another's")
	case !audienceIs(p.GetAudience(), a.self):
		return nil, errors.New("the permit is for another sink")
	case !epochHolds(p.GetEpoch(), a.Control().Epoch):
		return nil, errors.New("the permit is of an older epoch")
	case !permitInForce(p, now):
		return nil, errors.New("the permit is not valid at this time")
	case !slices.Contains(p.GetTools(), c.tool.Name):
		return nil, errors.New("the permit does not name the tool")
	}
	c.who = who{principal: p.GetPrincipal(), session: p.GetSession(), channel: p.GetChannel(), dangerous: p.GetDangerousUntil().AsTime().After(now)}
	c.signedPermit = known.signed
	return p, nil
}

// stillPermitted puts the permit of an internal program to the vault, which alone knows at once that its entry was taken away. No gateway
// lets go of such a permit, so that it would be good for its minute. Without an answer it does not hold.
func (a *Authority) stillPermitted(ctx context.Context, c *call) *fault.Error {
	if c.caller.Role() != optionsv1.Role_ROLE_TOOL || !checkRequired() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, vaultTimeout)
	defer cancel()
	_, err := a.cfg.Vault.CheckPermit(ctx, &vaultv1.CheckPermitRequest{Permit: c.signedPermit, Tool: c.tool.Name})
	if err == nil {
		return nil
	}
	cause := fmt.Errorf("the vault does not hold the permit to stand: %w", err)
	switch {
	case fault.Is(err, callv1.Code_CODE_EXPIRED):
		return fault.New(callv1.Code_CODE_EXPIRED, sayPermit, fault.WithRetry(0), fault.WithCause(cause))
	case fault.Is(err, callv1.Code_CODE_DENIED):
		return newFault(callv1.Code_CODE_DENIED, cause)
	default:
		return newFault(callv1.Code_CODE_UNAVAILABLE, cause)
	}
}

// admitted is a verified permit, as it came and as it reads.
type admitted struct {
	signed *callv1.SignedPermit
	permit *callv1.Permit
}

func (a *Authority) verifyPermit(raw []byte) (*admitted, error) {
	signed := &callv1.SignedPermit{}
	if err := parse(raw, signed); err != nil {
		return nil, err
	}
	p, err := verifyPermit(signed, a.cfg.Trust, a.cfg.Now())
	if err != nil {
		return nil, fmt.Errorf("permit: %w", err)
	}
	return &admitted{signed: signed, permit: p}, nil
}

// admitByGrant takes a one-call grant for a read. The vault spends it; nothing is kept here, since a read has no effect
// that could happen twice. A read takes no human; where policy had one asked all the same, what the human said is checked as for
// a change, so that the record tells the truth.
func (a *Authority) admitByGrant(ctx context.Context, c *call, raw []byte) error {
	if err := a.acceptGrant(ctx, c, raw); err != nil {
		return err
	}
	if len(c.grant.GetStatements()) > 0 {
		if _, err := a.verifyApproval(ctx, c); err != nil {
			return err
		}
	}
	return a.redeem(ctx, c)
}

// How often, and how far apart, the vault is told how a read that a human approved has ended.
const (
	readSettlements = 3
	readSettlePause = time.Second
)

// settleRead tells the vault how a read ended that it keeps as an operation, because a human was asked. Where it cannot be
// told, the operation ends there by itself.
func (a *Authority) settleRead(ctx context.Context, c *call, ok bool) {
	if len(c.grant.GetStatements()) == 0 {
		return
	}
	ctx = context.WithoutCancel(ctx)
	a.acting.Go(func() {
		for range readSettlements {
			err := a.settle(ctx, c.grant.GetOperationId(), c.grant.GetUse(), ok)
			if err == nil {
				return
			}
			a.cfg.Logger.DebugContext(ctx, "a read could not be settled yet", "operation", c.grant.GetOperationId(), "error", err)
			time.Sleep(readSettlePause)
		}
	})
}

// redeem asks the vault to spend the grant.
func (a *Authority) redeem(ctx context.Context, c *call) error {
	if !redemptionRequired() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, vaultTimeout)
	defer cancel()
	c.redeemed = a.cfg.Now()
	response, err := a.cfg.Vault.Redeem(ctx, &vaultv1.RedeemRequest{Grant: c.signedGrant})
	if err == nil {
		return a.adoptEpoch(ctx, c, response.GetEpoch())
	}
	f := fault.From(err)
	code := f.Code
	switch code {
	case callv1.Code_CODE_EXPIRED, callv1.Code_CODE_ALREADY_SPENT, callv1.Code_CODE_HALTED, callv1.Code_CODE_DENIED,
		callv1.Code_CODE_AUDIT_UNAVAILABLE:
	case callv1.Code_CODE_UNAVAILABLE, callv1.Code_CODE_TIMEOUT, callv1.Code_CODE_INTERNAL:
		code = callv1.Code_CODE_UNAVAILABLE
	default:
		code = callv1.Code_CODE_DENIED
	}
	return a.refuse(ctx, c, code, fmt.Errorf("the vault did not redeem: %s: %w", fault.CodeName(f.Code), f))
}

// permitCacheSize bounds how many verified permits are remembered. Each is renewed within a minute.
const permitCacheSize = 1024

// permitCache remembers verified permits by the digest of their bytes, so that a session's reads cost one signature check a
// minute. A change of the trust folder empties it. The zero value is ready.
type permitCache struct {
	mu sync.Mutex
	// snapshot is the trust that the permits were verified under.
	snapshot *trust.Snapshot
	// young and old are two generations: what is used moves to young, and old is dropped when young is full.
	young, old map[[sha256.Size]byte]*admitted
}

func (p *permitCache) verified(raw []byte, folder *trust.Folder, verify func([]byte) (*admitted, error)) (*admitted, error) {
	key := sha256.Sum256(raw)
	now := folder.Current()
	p.mu.Lock()
	if p.snapshot != now {
		p.snapshot, p.young, p.old = now, nil, nil
	}
	permit := p.young[key]
	if permit == nil {
		if permit = p.old[key]; permit != nil {
			p.put(key, permit)
		}
	}
	p.mu.Unlock()
	if permit != nil {
		return permit, nil
	}
	permit, err := verify(raw)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.snapshot == now {
		p.put(key, permit)
	}
	return permit, nil
}

func (p *permitCache) put(key [sha256.Size]byte, permit *admitted) {
	if p.young == nil || len(p.young) >= permitCacheSize/2 {
		p.young, p.old = map[[sha256.Size]byte]*admitted{}, p.young
	}
	p.young[key] = permit
}

// acceptGrant verifies a grant offline, as far as it is this call's at this sink.
func (a *Authority) acceptGrant(ctx context.Context, c *call, raw []byte) error {
	signed := &callv1.SignedGrant{}
	if err := parse(raw, signed); err != nil {
		return a.refuse(ctx, c, callv1.Code_CODE_DENIED, err)
	}
	g, err := verifyGrant(signed, a.cfg.Trust, a.cfg.Now())
	if err != nil {
		return a.refuse(ctx, c, callv1.Code_CODE_DENIED, fmt.Errorf("grant: %w", err))
	}
	if err := a.checkGrant(ctx, c, g); err != nil {
		return err
	}
	c.grant, c.signedGrant = g, signed
	c.who = who{principal: g.GetPrincipal(), session: g.GetSession(), channel: g.GetChannel(), dangerous: g.GetDangerous()}
	return nil
}

func (a *Authority) checkGrant(ctx context.Context, c *call, g *callv1.Grant) error {
	deny := func(why string) error { return a.refuse(ctx, c, callv1.Code_CODE_DENIED, errors.New(why)) }
	switch {
	case !presentedBy(c.caller, g.GetPrincipal()):
		return deny("the grant is another's")
	case !audienceIs(g.GetAudience(), a.self):
		return deny("the grant is for another sink")
	case (c.tool.Tier != optionsv1.Tier_TIER_READ || c.tool.Leaves) && haltHolds(a.Control().Halted):
		return a.refuse(ctx, c, callv1.Code_CODE_HALTED, errors.New("halted"))
	case !epochHolds(g.GetEpoch(), a.Control().Epoch):
		return deny("the grant is of an older epoch")
	}
	if err := a.adoptEpoch(ctx, c, g.GetEpoch()); err != nil {
		return err
	}
	switch {
	case a.cfg.Now().Add(statement.Skew).Before(g.GetNotBefore().AsTime()):
		return deny("the grant is not valid yet")
	case !toolIs(g.GetTool(), c.tool.Ref()):
		return deny("the grant is for another tool or another definition of it")
	}
	arguments, err := c.canonical()
	if err != nil {
		return a.refuse(ctx, c, callv1.Code_CODE_INTERNAL, err)
	}
	if digest := contract.Digest(arguments); !argumentsMatch(g.GetArgumentsDigest(), digest[:]) {
		return deny("the grant is for other arguments")
	}
	return nil
}
