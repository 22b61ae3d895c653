package relay

import (
	"context"
	"time"

	"google.golang.org/grpc/metadata"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
)

// lookWait is how long the vault holds a look at an operation that does not change, in seconds, and lookSpare how much longer
// its answer may take.
const (
	lookWait  = 45
	lookSpare = 5 * time.Second
)

// Operation asks the vault where one of the caller's own operations stands. CODE_NOT_FOUND for one that is not there and for
// somebody else's.
func (r *Relay) Operation(ctx context.Context, s *Session, by Caller, id string) (*vaultv1.GetOperationResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, r.conf.DecideTimeout)
	defer cancel()
	permit, err := r.permit(ctx, s, by, optionsv1.Role_ROLE_VAULT, "")
	if err != nil {
		return nil, err
	}
	req := &vaultv1.GetOperationRequest{OperationId: &id}
	out, err := r.lookOnce(ctx, permit, req)
	if s.stale(optionsv1.Role_ROLE_VAULT, permit, err) {
		if permit, err = r.permit(ctx, s, by, optionsv1.Role_ROLE_VAULT, permit); err != nil {
			return nil, err
		}
		out, err = r.lookOnce(ctx, permit, req)
	}
	return out, err
}

func (r *Relay) lookOnce(ctx context.Context, permit string, req *vaultv1.GetOperationRequest) (*vaultv1.GetOperationResponse, error) {
	out, err := r.stands.GetOperation(metadata.AppendToOutgoingContext(ctx, rpc.MetadataPermit, permit), req)
	if err != nil {
		return nil, fault.From(late(ctx, err))
	}
	return out, nil
}

// final reports whether an operation stays in that state.
func final(state vaultv1.OperationState) bool {
	switch state {
	case vaultv1.OperationState_OPERATION_STATE_DONE, vaultv1.OperationState_OPERATION_STATE_DENIED, vaultv1.OperationState_OPERATION_STATE_EXPIRED:
		return true
	default:
		return false
	}
}

// WatchOperation calls tell each time when one of the session's own operations leaves the state known and whatever comes
// after it. It returns when the state is final, there is no such operation, or ctx or the session ends. It pauses as
// WatchServices does.
func (r *Relay) WatchOperation(ctx context.Context, s *Session, id string, known vaultv1.OperationState, tell func()) {
	wait := uint32(lookWait)
	r.follow(ctx, s, optionsv1.Role_ROLE_VAULT, func(ctx context.Context, permit string) error {
		if final(known) {
			return errOver
		}
		ctx, cancel := context.WithTimeout(ctx, lookWait*time.Second+lookSpare)
		defer cancel()
		out, err := r.lookOnce(ctx, permit, &vaultv1.GetOperationRequest{OperationId: &id, KnownState: &known, WaitS: &wait})
		switch {
		case fault.Is(err, callv1.Code_CODE_NOT_FOUND):
			tell()
			return errOver
		case err == nil && out.GetState() != known:
			known = out.GetState()
			tell()
		}
		return err
	})
}
