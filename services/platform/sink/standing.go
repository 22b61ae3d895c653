package sink

import (
	"context"
	"errors"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/desktop"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/statement"
)

// standing reports whether a statement is for more than the one call that it shows.
func standing(k statement.Kind) bool { return k == statement.KindScope || k == statement.KindDangerous }

// Reasons why a genuine statement does not let a call happen.
var (
	errFlag    = errors.New("the grant and the human's statement do not agree on dangerous mode")
	errBeyond  = errors.New("dangerous mode is not for this tool")
	errChannel = errors.New("there is no dangerous mode over messaging")
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
	if v.Kind != statement.KindDangerous {
		return nil
	}
	switch {
	case !changes(c.tool) || c.tool.Source != contract.SourceNative || desktop.Controls(c.tool):
		return errBeyond
	case c.who.channel == callv1.Channel_CHANNEL_MESSAGING:
		return errChannel
	}
	return nil
}

// changes reports whether the tool's tier is one that a human can let run.
func changes(t contract.Tool) bool {
	return t.Tier == optionsv1.Tier_TIER_WRITE || t.Tier == optionsv1.Tier_TIER_DESTRUCTIVE
}

// human finds the statement that covers the call. Every statement of a grant must be genuine; one must cover. It returns the
// statement's use.
func (a *Authority) human(ctx context.Context, c *call, arguments []byte) (*Use, error) {
	var covering *statement.Verified
	reason := errors.New("no human's statement")
	for _, h := range c.grant.GetStatements() {
		v, err := verifyStatement(h, a.cfg.Trust.Current().AllowedSigners, a.cfg.Now())
		switch {
		case errors.Is(err, statement.ErrTime):
			return nil, a.refuse(ctx, c, callv1.Code_CODE_EXPIRED, err)
		case err != nil:
			return nil, a.refuse(ctx, c, callv1.Code_CODE_DENIED, err)
		}
		if err := c.covers(v, arguments); err != nil {
			reason = err
			continue
		}
		if covering == nil {
			covering, c.statement, c.agreed = v, h, v.Statement
		}
	}
	switch {
	case covering != nil:
	case len(c.grant.GetSubjectDigest()) == 0 && errors.Is(reason, statement.ErrSubject):
		return nil, a.refuse(ctx, c, callv1.Code_CODE_CONFLICT, reason)
	default:
		return nil, a.refuse(ctx, c, callv1.Code_CODE_DENIED, reason)
	}
	// Until is later than Verify can accept the statement.
	return useOf(&Use{Digest: covering.Digest, Limit: covering.Uses, Until: covering.Ends.Add(2 * Skew)}), nil
}

var errEach = errors.New("desktop control needs a human's word for this very action")

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

// KillDesktop ends desktop control in a session for good, in all of them if the session is "". A halt does so too.
func (a *Authority) KillDesktop(session string) { a.desktop.Kill(session) }
