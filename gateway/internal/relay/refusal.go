package relay

import (
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

// SentenceWrong is for a token that the vault does not take.
const SentenceWrong = "The token is not known or was revoked. Ask the operator for a new one (durward client add)."

func ended() error {
	return fault.New(callv1.Code_CODE_UNAUTHENTICATED, "the session has ended; connect again")
}

// ProofNeeded is the cause of a CODE_PROOF_REQUIRED that arises here; it says which proof the client should bring.
type ProofNeeded struct{ Purpose callv1.Proof_Purpose }

func (ProofNeeded) Error() string { return "a proof is required" }

func proofRequired(purpose callv1.Proof_Purpose) error {
	return fault.New(callv1.Code_CODE_PROOF_REQUIRED, "the client must sign this request",
		fault.WithRetry(0), fault.WithCause(ProofNeeded{purpose}))
}
