package sink

import (
	"bytes"
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// The guards that stand between a call and its effect, one small function each, so that a drill can show what happens
// without one: its builds have the twins in deploy/e2e/weak instead.

func verifyGrant(signed *callv1.SignedGrant, keys grant.Keys, now time.Time) (*callv1.Grant, error) {
	return grant.Verify(signed, keys, now)
}

func verifyPermit(signed *callv1.SignedPermit, keys grant.Keys, now time.Time) (*callv1.Permit, error) {
	return grant.VerifyPermit(signed, keys, now)
}

// presentedBy reports whether the caller may come with a principal's permit or grant: the gateway with any, and an internal program with its
// own alone, whose name is its instance.
func presentedBy(caller identity.ID, principal string) bool {
	return caller.Role() != optionsv1.Role_ROLE_TOOL || caller.Instance() == principal
}

// permitRequired reports whether a relayed read needs a permit or a grant.
func permitRequired() bool { return true }

// oneCallRequired reports whether a read whose calls the vault sees one by one takes no permit.
func oneCallRequired() bool { return true }

// tokenisationRequired reports whether text from outside is looked through before it leaves.
func tokenisationRequired() bool { return true }

// grantRequired reports whether a change needs a grant.
func grantRequired() bool { return true }

// permitInForce reports whether a permit is valid now, within permitSkew.
func permitInForce(p *callv1.Permit, now time.Time) bool {
	return !now.Add(permitSkew).Before(p.GetNotBefore().AsTime()) && now.Add(-permitSkew).Before(p.GetExpiresAt().AsTime())
}

// toolIs reports whether the granted tool is the one that is called, by its very definition.
func toolIs(granted, own *callv1.ToolRef) bool { return proto.Equal(granted, own) }

func audienceIs(named, self string) bool { return named == self }

// haltHolds reports whether what is halted stays so.
func haltHolds(halted bool) bool { return halted }

func epochHolds(granted, own uint64) bool { return granted >= own }

func argumentsMatch(granted, own []byte) bool { return bytes.Equal(granted, own) }

func subjectMatches(granted, own []byte) bool { return bytes.Equal(granted, own) }

// approvedSubject is what a handler is told that its call was approved for.
func approvedSubject(granted []byte) []byte { return granted }

// spendKey names what can be spent once.
func spendKey(g *callv1.Grant) string { return grant.SpendKey(g) }

// statementRequired reports whether a call needs a human.
func statementRequired(unattended bool) bool { return !unattended }

func verifyStatement(h *callv1.HumanStatement, operators *trust.AllowedSigners, now time.Time) (*statement.Verified, error) {
	return statement.Verify(h, operators, now)
}

// confirmed reports whether a statement needs no second one, or has it among all.
func confirmed(v *statement.Verified, all []*statement.Verified) bool {
	return v.Kind != statement.KindDangerous || slices.ContainsFunc(all, func(second *statement.Verified) bool { return v.ConfirmedBy(second) == nil })
}

// endHolds reports whether what an operator ended here stays so.
func endHolds(ended bool) bool { return ended }

// useOf returns the use of a statement that is counted; nil counts nothing.
func useOf(u *Use) *Use { return u }

// ownSubject is what a standing statement's subjects are compared with: what this sink itself would act on.
func ownSubject(own []byte) []byte { return own }

// flagged is the grant as it says itself whether it is for dangerous mode.
func flagged(g *callv1.Grant, _ statement.Kind) *callv1.Grant { return g }

// intentRequired reports whether nothing is done unless its record is proved to be in the log.
func intentRequired() bool { return true }

// confirmRequired reports whether what was checked when a call arrived is checked again when its effect begins.
func confirmRequired() bool { return true }

// checkRequired reports whether the vault is asked again about a call that waited and that no human approved as it is, and about an
// internal program's permit.
func checkRequired() bool { return true }

// ungranted is the context of a handler that runs without a grant; there is none.
func ungranted(ctx context.Context) context.Context { return ctx }

// redemptionRequired reports whether the vault must agree at the moment of use.
func redemptionRequired() bool { return true }
