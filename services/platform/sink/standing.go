package sink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/desktop"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/statement"
)

// standing reports whether a statement is for more than the one call that it shows.
func standing(k statement.Kind) bool { return k == statement.KindScope || k == statement.KindDangerous }

// Reasons why a genuine statement does not let a call happen.
var (
	errFlag   = errors.New("the grant and the human's statement do not agree on dangerous mode")
	errBeyond = errors.New("dangerous mode is not for this tool")
	errEach   = errors.New("desktop control needs a human's word for this very action")
)

// covers holds a call to a genuine statement. The subject is what this sink itself would act on: a grant under a standing
// statement names none, since the vault cannot know it.
func (c *call) covers(v *statement.Verified, arguments []byte) error {
	g := flagged(c.grant, v.Kind)
	if err := v.Covers(g, c.tool.Ref(), c.tool.Tier, arguments, ownSubject(c.subject[:])); err != nil {
		return err
	}
	if g.GetDangerous() != (v.Kind == statement.KindDangerous) {
		return errFlag
	}
	if v.Kind == statement.KindDangerous && (!changes(c.tool) || c.tool.Source != contract.SourceNative || desktop.Controls(c.tool)) {
		return errBeyond
	}
	return nil
}

// changes reports whether the tool's tier is one that a human can let run.
func changes(t contract.Tool) bool {
	return t.Tier == optionsv1.Tier_TIER_WRITE || t.Tier == optionsv1.Tier_TIER_DESTRUCTIVE
}

// human finds the statement that covers the call. Every statement of a grant must be genuine; one must cover, and for dangerous
// mode another confirm it. It returns the statement's use.
func (a *Authority) human(ctx context.Context, c *call, arguments []byte) (*Use, error) {
	var covering *statement.Verified
	var all []*statement.Verified
	reason := errors.New("no human's statement")
	for _, h := range c.grant.GetStatements() {
		v, err := verifyStatement(h, a.cfg.Trust.Current().AllowedSigners, a.cfg.Now())
		switch {
		case errors.Is(err, statement.ErrTime):
			return nil, a.refuse(ctx, c, callv1.Code_CODE_EXPIRED, err)
		case err != nil:
			return nil, a.refuse(ctx, c, callv1.Code_CODE_DENIED, err)
		}
		all = append(all, v)
		if v.Kind == statement.KindConfirm {
			continue
		}
		if err := c.covers(v, arguments); err != nil {
			reason = err
			continue
		}
		if covering == nil {
			covering, c.statement, c.agreed = v, h, v
		}
	}
	switch {
	case covering != nil && !confirmed(covering, all):
		return nil, a.refuse(ctx, c, callv1.Code_CODE_DENIED, statement.ErrUnconfirmed)
	case covering != nil:
	case len(c.grant.GetSubjectDigest()) == 0 && errors.Is(reason, statement.ErrSubject):
		return nil, a.refuse(ctx, c, callv1.Code_CODE_CONFLICT, reason)
	default:
		return nil, a.refuse(ctx, c, callv1.Code_CODE_DENIED, reason)
	}
	// Until is later than Verify can accept the statement.
	return useOf(&Use{Digest: covering.Digest, Limit: covering.Uses, Until: covering.Ends.Add(2 * statement.Skew)}), nil
}

// EndStanding makes statements that let calls run void here, durably, whatever the vault says, and has whatever waits put to the vault again.
// When it returns, nothing begins any more under them, nor under what the vault ended before. A statement that no operator's key
// signed is void as it is. An error says that it is not durable; it is in force all the same.
func (a *Authority) EndStanding(ctx context.Context, statements []*callv1.HumanStatement) error {
	// A key that was just taken out of the trust folder counts no more.
	problem := a.cfg.Trust.Reload()
	now := a.cfg.Now()
	var ended []Use
	for _, h := range statements {
		s, err := statement.VerifySignature(h, a.cfg.Trust.Current().AllowedSigners, now)
		if err != nil || !standing(s.Kind) && s.Kind != statement.KindApprove && s.Kind != statement.KindCommand {
			continue
		}
		ended = append(ended, Use{Digest: canonical.Digest(h.GetStatement()), Until: s.Expires().Add(2 * statement.Skew)})
		r := a.controlRecord(ctx, auditv1.Kind_KIND_STANDING_ENDED, "ended here by an operator", a.Control().Epoch, nil)
		r.Body.Principal, r.Body.Session = s.Principal, s.Session
		r.Body.Details["statement"], r.Body.Details["kind"] = s.ID, string(s.Kind)
		a.spoolControl(ctx, r)
	}
	// In force before it is durable, like a halt.
	a.beginning.Lock()
	for _, u := range ended {
		a.ended[u.Digest] = u.Until
	}
	maps.DeleteFunc(a.ended, func(_ [32]byte, until time.Time) bool { return until.Before(now) })
	a.fence.Add(1)
	a.beginning.Unlock()
	for _, u := range ended {
		problem = errors.Join(problem, a.cfg.Store.EndStatement(context.WithoutCancel(ctx), u.Digest, u.Until))
	}
	if problem != nil {
		return fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(fmt.Errorf("statements ended, but not durably: %w", problem)))
	}
	return nil
}

// endedLocked reports whether the call rests on a statement that an operator ended here; beginning is held.
func (a *Authority) endedLocked(c *call) bool {
	if c.agreed == nil {
		return false
	}
	_, ended := a.ended[c.agreed.Digest]
	return endHolds(ended)
}

// judgeDesktop applies the rules of desktop control (DSK-1) to a call whose papers are in order, and counts it. A tool that
// controls no desktop is none of its business.
func (a *Authority) judgeDesktop(ctx context.Context, c *call) error {
	if !desktop.Controls(c.tool) {
		return nil
	}
	needed, err := a.desktop.Judge(c.who.session, c.tool, c.who.channel, a.cfg.DesktopAllowed != nil && a.cfg.DesktopAllowed())
	if err != nil {
		return a.refuseWith(ctx, c, fault.From(err))
	}
	asked := c.agreed != nil && !standing(c.agreed.Kind)
	if needed == desktop.Needed && !asked {
		return a.refuse(ctx, c, callv1.Code_CODE_DENIED, errEach)
	}
	if asked {
		a.desktop.Confirmed(c.who.session, c.tool)
	}
	return nil
}
