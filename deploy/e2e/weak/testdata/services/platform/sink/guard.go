package sink

import (
	"bytes"
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/desktop"
	"durward.internal/services/platform/filewatch"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/rollback"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/security/ownership"
	"durward.internal/services/platform/sink/unattended"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
	"durward.internal/services/platform/weakness"
)

// GuardOwnership is the guard against a file of rules that the gateway's user may write.
const GuardOwnership = "ownership"

// Guards are those that a drill build may lack.
var Guards = weakness.Of("required", "grant", "permit", "in-force", "audience", "epoch", "halted", "tool", "arguments", "subject", "spent",
	"statement", "uses", "intent", "redeem", "confirm", "check", "one-call", "tokenise", "any-subject",
	"dangerous-flag", "confirmed", "ended", "presented").And(unattended.Guards).
	Also("state", func() {
		database.WeakenSeals()
		rollback.Weaken()
	}).
	Also(filewatch.GuardStamps, filewatch.WeakenStamps).Also(recorder.GuardSpool, recorder.WeakenSpool).
	Also(GuardOwnership, ownership.WeakenOwnership).Also(reserve.GuardReserve, reserve.WeakenReserve).
	Also(rpc.GuardCallers, rpc.WeakenCallers).Also(rpc.GuardUnseen, rpc.WeakenUnseen).Also(rpc.GuardSpans, rpc.WeakenSpans).And(desktop.Guards).
	Also(statement.GuardSpelling, statement.WeakenSpelling)

func verifyGrant(signed *callv1.SignedGrant, keys grant.Keys, now time.Time) (*callv1.Grant, error) {
	if Guards.Off("grant") {
		g := &callv1.Grant{}
		return g, proto.Unmarshal(signed.GetPayload(), g)
	}
	return grant.Verify(signed, keys, now)
}

func verifyPermit(signed *callv1.SignedPermit, keys grant.Keys, now time.Time) (*callv1.Permit, error) {
	if Guards.Off("permit") {
		p := &callv1.Permit{}
		return p, proto.Unmarshal(signed.GetPayload(), p)
	}
	return grant.VerifyPermit(signed, keys, now)
}

func presentedBy(caller identity.ID, principal string) bool {
	return Guards.Off("presented") || caller.Role() != optionsv1.Role_ROLE_TOOL || caller.Instance() == principal
}

func permitRequired() bool { return !Guards.Off("permit") }

func oneCallRequired() bool { return !Guards.Off("one-call") }

func tokenisationRequired() bool { return !Guards.Off("tokenise") }

func grantRequired() bool { return !Guards.Off("required") }

func permitInForce(p *callv1.Permit, now time.Time) bool {
	return Guards.Off("in-force") ||
		!now.Add(permitSkew).Before(p.GetNotBefore().AsTime()) && now.Add(-permitSkew).Before(p.GetExpiresAt().AsTime())
}

func toolIs(granted, own *callv1.ToolRef) bool {
	return Guards.Off("tool") || proto.Equal(granted, own)
}

func audienceIs(named, self string) bool { return Guards.Off("audience") || named == self }

func haltHolds(halted bool) bool { return halted && !Guards.Off("halted") }

func epochHolds(granted, own uint64) bool { return Guards.Off("epoch") || granted >= own }

func argumentsMatch(granted, own []byte) bool {
	return Guards.Off("arguments") || bytes.Equal(granted, own)
}

func subjectMatches(granted, own []byte) bool {
	return Guards.Off("subject") || bytes.Equal(granted, own)
}

func approvedSubject(granted []byte) []byte {
	if Guards.Off("subject") {
		return nil
	}
	return granted
}

func spendKey(g *callv1.Grant) string {
	if Guards.Off("spent") {
		return grant.SpendKey(g) + "/" + grant.NewID()
	}
	return grant.SpendKey(g)
}

func statementRequired(unattended bool) bool { return !Guards.Off("statement") && !unattended }

func verifyStatement(h *callv1.HumanStatement, operators *trust.AllowedSigners, now time.Time) (*statement.Verified, error) {
	return statement.Verify(h, operators, now)
}

func confirmed(v *statement.Verified, all []*statement.Verified) bool {
	return Guards.Off("confirmed") || v.Kind != statement.KindDangerous || slices.ContainsFunc(all, func(second *statement.Verified) bool { return v.ConfirmedBy(second) == nil })
}

func endHolds(ended bool) bool { return ended && !Guards.Off("ended") }

func useOf(u *Use) *Use {
	if Guards.Off("uses") {
		return nil
	}
	return u
}

func ownSubject(own []byte) []byte {
	if Guards.Off("any-subject") {
		return nil // then the grant's own counts, which may have none
	}
	return own
}

func flagged(g *callv1.Grant, kind statement.Kind) *callv1.Grant {
	if !Guards.Off("dangerous-flag") {
		return g
	}
	g = proto.CloneOf(g)
	g.Dangerous = kind == statement.KindDangerous
	return g
}

func intentRequired() bool { return !Guards.Off("intent") }

func confirmRequired() bool { return !Guards.Off("confirm") }

func checkRequired() bool { return !Guards.Off("check") }

func ungranted(ctx context.Context) context.Context {
	return context.WithValue(ctx, notesKey{}, &notes{
		call: &call{}, // nobody's
		confirm: func(_ context.Context, _ bool, begin func()) error {
			begin()
			return nil
		},
		proceed: func(begin func()) error {
			begin()
			return nil
		},
		begun: true,
	})
}

func redemptionRequired() bool { return !Guards.Off("redeem") }
