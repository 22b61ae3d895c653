package operation

import (
	"errors"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/weakness"
	"durward.internal/services/vault/internal/consent"
	"durward.internal/services/vault/internal/standing"
	"durward.internal/services/vault/internal/store"
)

// This file makes the negative controls of deploy/e2e: the vault without one of its guards.

// Guards are those that a drill build may lack.
var Guards = weakness.Of("approval", "unapproved", "owner", "spent", "proof", "sink").Also(rpc.GuardCallers, rpc.WeakenCallers).
	Also(grant.GuardIDs, grant.WeakenIDs).And(consent.Guards).Also(statement.GuardSpelling, statement.WeakenSpelling).And(standing.Guards)

// humanAgreed without "approval" takes any statement, signed by anybody, about anything.
func humanAgreed(h *callv1.HumanStatement, v *statement.Verified, err error) (*statement.Verified, error) {
	if err == nil || !Guards.Off("approval") {
		return v, err
	}
	s, parseErr := statement.Parse(h.GetStatement())
	if parseErr != nil {
		s = &statement.Statement{Operator: "nobody"}
	}
	return &statement.Verified{Statement: s, Digest: canonical.Digest(h.GetStatement()), Ends: time.Now().Add(time.Hour)}, nil
}

// mayRun without "unapproved" issues grants for what nobody has approved.
func mayRun(state vaultv1.OperationState) bool {
	return Guards.Off("unapproved") || state == vaultv1.OperationState_OPERATION_STATE_APPROVED ||
		state == vaultv1.OperationState_OPERATION_STATE_RUNNING || state == vaultv1.OperationState_OPERATION_STATE_DONE
}

// MustSign without "proof" believes whoever relays a key-bound client's token.
func MustSign(keyBound bool) bool { return keyBound && !Guards.Off("proof") }

// boundEnough without "key-bound" believes whoever relays a token that the call is the client's.
func boundEnough(keyBound bool) bool { return keyBound || Guards.Off("key-bound") }

// ownedBy without "owner" gives everybody everybody's operations.
func ownedBy(o *store.Operation, principal string) bool {
	return Guards.Off("owner") || o.Principal == principal
}

// refuseSpent without "spent" redeems a key again.
func refuseSpent(err error) error {
	if Guards.Off("spent") && errors.Is(err, store.ErrSpent) {
		return nil
	}
	return err
}

// sinkIs without "sink" takes each sink for any other.
func sinkIs(named, caller string) bool { return Guards.Off("sink") || named == caller }
