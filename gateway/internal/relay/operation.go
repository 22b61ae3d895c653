package relay

import (
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"
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

// How many looks the vault holds for this gateway at a time, of the 1,024 calls that one connection carries, and how many of
// the others it answers at once: each of those every lookPause or so, and all together no more than looksPerS a second.
const (
	maxHeld   = 256
	lookPause = 5 * time.Second
	looksPerS = 50
)

// looks are the places and the pace of WatchOperation.
type looks struct {
	held chan struct{}
	rate *rate.Limiter
}

func newLooks() looks {
	return looks{held: make(chan struct{}, maxHeld), rate: rate.NewLimiter(looksPerS, looksPerS)}
}

// place waits for a place among the looks that are held, and returns what gives it back; nil if there was none for a while,
// or ctx ended.
func (l looks) place(ctx context.Context) (leave func()) {
	give := func() { <-l.held }
	select {
	case l.held <- struct{}{}:
		return give
	default:
	}
	select {
	case l.held <- struct{}{}:
		return give
	case <-ctx.Done():
	case <-time.After(lookPause/2 + rand.N(lookPause)): //nolint:gosec // spreads looks that came together
	}
	return nil
}

// Operation asks the vault where one of the caller's own operations stands. CODE_NOT_FOUND for one that is not there and for
// somebody else's.
func (r *Relay) Operation(ctx context.Context, s *Session, by Caller, id string) (*vaultv1.GetOperationResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, r.conf.DecideTimeout)
	defer cancel()
	var out *vaultv1.GetOperationResponse
	err := r.withPermit(ctx, s, by, optionsv1.Role_ROLE_VAULT, func(permit string) (err error) {
		out, err = lookOnce(ctx, r.stands, permit, &vaultv1.GetOperationRequest{OperationId: &id})
		return err
	})
	return out, err
}

func lookOnce(ctx context.Context, at vaultv1.OperationServiceClient, permit string, req *vaultv1.GetOperationRequest) (*vaultv1.GetOperationResponse, error) {
	out, err := at.GetOperation(metadata.AppendToOutgoingContext(ctx, rpc.MetadataPermit, permit), req)
	if err != nil {
		return nil, fault.From(late(ctx, err))
	}
	return out, nil
}

// final reports whether an operation stays in that state.
func final(state vaultv1.OperationState) bool {
	switch state {
	case vaultv1.OperationState_OPERATION_STATE_DONE, vaultv1.OperationState_OPERATION_STATE_DENIED, vaultv1.OperationState_OPERATION_STATE_EXPIRED,
		vaultv1.OperationState_OPERATION_STATE_WITHDRAWN:
		return true
	default:
		return false
	}
}

// WatchOperation calls tell with each state that one of the session's own operations comes to after known; UNSPECIFIED if
// there is no such operation any more. It returns when the state is final, there is no such operation, or ctx or the session
// ends. It pauses as WatchServices does. While very many operations are watched, a change is told some seconds later.
func (r *Relay) WatchOperation(ctx context.Context, s *Session, id string, known vaultv1.OperationState, tell func(now vaultv1.OperationState)) {
	r.follow(ctx, s, optionsv1.Role_ROLE_VAULT, func(ctx context.Context, permit string) error {
		if final(known) {
			return errOver
		}
		out, err := r.change(ctx, permit, id, known)
		switch {
		case fault.Is(err, callv1.Code_CODE_NOT_FOUND):
			tell(vaultv1.OperationState_OPERATION_STATE_UNSPECIFIED)
			return errOver
		case err == nil && out != known:
			known = out
			tell(known)
		}
		return err
	})
}

// change returns an operation's state when it is another than known, or after a while. The vault holds the call if there is
// a place for it.
func (r *Relay) change(ctx context.Context, permit, id string, known vaultv1.OperationState) (vaultv1.OperationState, error) {
	at, wait := r.changes, uint32(lookWait)
	if leave := r.looks.place(ctx); leave != nil {
		defer leave()
	} else {
		if ctx.Err() != nil || !r.looks.rate.Allow() {
			return known, ctx.Err()
		}
		at, wait = r.stands, 0
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(wait)*time.Second+lookSpare)
	defer cancel()
	out, err := lookOnce(ctx, at, permit, &vaultv1.GetOperationRequest{OperationId: &id, KnownState: &known, WaitS: &wait})
	return out.GetState(), err
}
