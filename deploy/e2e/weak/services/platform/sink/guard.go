package sink

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/desktop"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/rollback"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/security/ownership"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// GuardOwnership is the guard against a file of rules that the gateway's user may write.
const GuardOwnership = "ownership"

// Guards are the names that Weaken takes: each switches one guard off.
var Guards = append([]string{
	"required", "grant", "permit", "in-force", "audience", "epoch", "halted", "tool", "arguments", "subject", "spent", "statement", "uses",
	"intent", "redeem", "confirm", "check", "one-call", "tokenise", "any-subject",
	"unattended-arguments", "unattended-until", "dangerous-flag", "confirmed", "ended", "state", GuardOwnership, reserve.GuardReserve, rpc.GuardCallers, rpc.GuardSpans,
}, desktop.Guards...)

var (
	weakenedMu sync.RWMutex
	weakened   = map[string]bool{}
)

// Weaken switches guards off, by comma-separated names. It exists in drill builds alone.
func Weaken(names string) error {
	weakenedMu.Lock()
	defer weakenedMu.Unlock()
	for _, name := range strings.Split(names, ",") {
		switch {
		case name == rpc.GuardCallers:
			rpc.WeakenCallers()
		case name == rpc.GuardSpans:
			rpc.WeakenSpans()
		case name == reserve.GuardReserve:
			reserve.WeakenReserve()
		case name == "state":
			database.WeakenSeals()
			rollback.Weaken()
		case name == GuardOwnership:
			ownership.WeakenOwnership()
		case slices.Contains(desktop.Guards, name):
			if err := desktop.Weaken(name); err != nil {
				return err
			}
		case !slices.Contains(Guards, name):
			return fmt.Errorf("no guard is called %q; there are %s", name, strings.Join(Guards, ", "))
		}
		weakened[name] = true
	}
	return nil
}

func weak(name string) bool {
	weakenedMu.RLock()
	defer weakenedMu.RUnlock()
	return weakened[name]
}

func verifyGrant(signed *callv1.SignedGrant, keys grant.Keys, now time.Time) (*callv1.Grant, error) {
	if weak("grant") {
		g := &callv1.Grant{}
		return g, proto.Unmarshal(signed.GetPayload(), g)
	}
	return grant.Verify(signed, keys, now)
}

func verifyPermit(signed *callv1.SignedPermit, keys grant.Keys, now time.Time) (*callv1.Permit, error) {
	if weak("permit") {
		p := &callv1.Permit{}
		return p, proto.Unmarshal(signed.GetPayload(), p)
	}
	return grant.VerifyPermit(signed, keys, now)
}

func permitRequired() bool { return !weak("permit") }

func oneCallRequired() bool { return !weak("one-call") }

func tokenisationRequired() bool { return !weak("tokenise") }

func grantRequired() bool { return !weak("required") }

func permitInForce(p *callv1.Permit, now time.Time) bool {
	return weak("in-force") ||
		!now.Add(permitSkew).Before(p.GetNotBefore().AsTime()) && now.Add(-permitSkew).Before(p.GetExpiresAt().AsTime())
}

func toolIs(granted, own *callv1.ToolRef) bool { return weak("tool") || proto.Equal(granted, own) }

func audienceIs(named, self string) bool { return weak("audience") || named == self }

func haltHolds(halted bool) bool { return halted && !weak("halted") }

func epochHolds(granted, own uint64) bool { return weak("epoch") || granted >= own }

func argumentsMatch(granted, own []byte) bool { return weak("arguments") || bytes.Equal(granted, own) }

func subjectMatches(granted, own []byte) bool { return weak("subject") || bytes.Equal(granted, own) }

func approvedSubject(granted []byte) []byte {
	if weak("subject") {
		return nil
	}
	return granted
}

func spendKey(g *callv1.Grant) string {
	if weak("spent") {
		return grant.SpendKey(g) + "/" + grant.NewID()
	}
	return grant.SpendKey(g)
}

func statementRequired(unattended bool) bool { return !weak("statement") && !unattended }

func verifyStatement(h *callv1.HumanStatement, operators *trust.AllowedSigners, now time.Time) (*statement.Verified, error) {
	return statement.Verify(h, operators, now, Skew)
}

func confirmed(v *statement.Verified, all []*statement.Verified) bool {
	return weak("confirmed") || v.Kind != statement.KindDangerous || slices.ContainsFunc(all, func(second *statement.Verified) bool { return v.ConfirmedBy(second) == nil })
}

func endHolds(ended bool) bool { return ended && !weak("ended") }

func useOf(u *Use) *Use {
	if weak("uses") {
		return nil
	}
	return u
}

func ownSubject(own []byte) []byte {
	if weak("any-subject") {
		return nil // then the grant's own counts, which may have none
	}
	return own
}

func argumentListed(values []json.RawMessage, own json.RawMessage) bool {
	return weak("unattended-arguments") || contains(values, own)
}

func entryEnded(until, now time.Time) bool {
	return !weak("unattended-until") && !until.IsZero() && !now.Before(until)
}

func flagged(g *callv1.Grant, kind statement.Kind) *callv1.Grant {
	if !weak("dangerous-flag") {
		return g
	}
	g = proto.CloneOf(g)
	g.Dangerous = kind == statement.KindDangerous
	return g
}

func intentRequired() bool { return !weak("intent") }

func confirmRequired() bool { return !weak("confirm") }

func checkRequired() bool { return !weak("check") }

func ungranted(ctx context.Context) context.Context {
	return context.WithValue(ctx, notesKey{}, &notes{
		confirm: func(_ context.Context, begin func()) error {
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

func redemptionRequired() bool { return !weak("redeem") }
