package operation

import (
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/store"
)

// The guards that matter most, one small function each, so that the drills can show what happens without them: their
// builds have the twins in deploy/e2e/weak instead.

// humanAgreed returns the verified statement if every check of it passed.
func humanAgreed(_ *callv1.HumanStatement, v *statement.Verified, err error) (*statement.Verified, error) {
	return v, err
}

// mayRun reports whether a grant may be issued for an operation in that state.
func mayRun(state vaultv1.OperationState) bool {
	switch state {
	case vaultv1.OperationState_OPERATION_STATE_APPROVED, vaultv1.OperationState_OPERATION_STATE_RUNNING,
		vaultv1.OperationState_OPERATION_STATE_DONE:
		return true
	default:
		return false
	}
}

// MustSign reports whether a client has to sign what it asks for.
func MustSign(keyBound bool) bool { return keyBound }

// boundEnough reports whether a client's call may run without a human's look at it.
func boundEnough(keyBound bool) bool { return keyBound }

// ownedBy reports whether the operation is the principal's.
func ownedBy(o *store.Operation, principal string) bool { return o.Principal == principal }

// refuseSpent returns the error of a spend as it is.
func refuseSpent(err error) error { return err }

// sinkIs reports whether a grant that names one sink is the caller's.
func sinkIs(named, caller string) bool { return named == caller }
