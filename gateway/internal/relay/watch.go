package relay

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/metadata"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
)

// Bounds of the pause before a watch that broke off goes on, and how long it must have lasted to be taken as sound.
const (
	minPause = 250 * time.Millisecond
	maxPause = 30 * time.Second
	sound    = time.Second
)

// errOver ends a watch: there is nothing more to tell.
var errOver = errors.New("nothing more will change")

// WatchServices calls tell with the id of each service whose state changes, until ctx or the session ends. A change that
// happens while the watch is broken off is told when it goes on; if it could not begin at once, every service is told when it
// begins, since nobody knows what changed meanwhile.
//
// The executor bounds how many watches there are. One that it refuses, for that or any other reason, is tried again with
// pauses that grow to half a minute, and the log says so: until then its client hears of nothing.
//
// A watch has no credential and no proof, only the session's permit, which lives for a minute. A bearer client's is renewed
// for as long as the vault knows the session. A key-bound client must sign each renewal, and whoever's session the vault lost
// must show the credential again: then the watch pauses until another request of the session has done so.
func (r *Relay) WatchServices(ctx context.Context, s *Session, tell func(id string)) {
	known := map[string]executorv1.ServiceState{}
	asked, began := time.Now(), false
	r.follow(ctx, s, optionsv1.Role_ROLE_EXECUTOR, func(ctx context.Context, permit string) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := r.events.WatchServices(metadata.AppendToOutgoingContext(ctx, rpc.MetadataPermit, permit), &executorv1.WatchServicesRequest{})
		if err != nil {
			return fault.From(err)
		}
		first := !began && time.Since(asked) < sound
		for {
			m, err := stream.Recv()
			if err != nil {
				return fault.From(err)
			}
			began = true
			if known[m.GetServiceId()] == m.GetState() {
				continue
			}
			known[m.GetServiceId()] = m.GetState()
			if !first || !m.GetInitial() {
				tell(m.GetServiceId())
			}
		}
	})
}

// WatchProgress calls tell with each step of an operation that the executor carries out: those that are known, then each as it
// begins, moves on or ends. It returns when the operation or ctx ends, tell fails, or the watch breaks off: a call whose steps
// nobody hears of goes on all the same.
func (r *Relay) WatchProgress(ctx context.Context, s *Session, by Caller, operationID string, tell func(*executorv1.WatchProgressResponse) error) {
	err := r.withPermit(ctx, s, by, optionsv1.Role_ROLE_EXECUTOR, func(permit string) error {
		ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, rpc.MetadataPermit, permit))
		defer cancel()
		stream, err := r.events.WatchProgress(ctx, &executorv1.WatchProgressRequest{OperationId: operationID})
		if err != nil {
			return fault.From(err)
		}
		for {
			step, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return fault.From(err)
			}
			if err := tell(step); err != nil {
				return err
			}
		}
	})
	if err != nil && ctx.Err() == nil {
		r.conf.Logger.DebugContext(ctx, "the steps of an operation are not told", "operation", operationID, "fault", fault.From(err))
	}
}

// follow calls once again and again, each time with a permit that is in force, until it returns errOver or ctx or the session
// ends. What fails is tried again after a pause that grows.
func (r *Relay) follow(ctx context.Context, s *Session, role optionsv1.Role, once func(ctx context.Context, permit string) error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	pause, stale, refused := minPause, "", false
	for ctx.Err() == nil {
		renewed := s.renewed.Wait() // before the permit is looked at, so that no renewal is missed
		permit, err := r.standing(ctx, s, role, stale)
		began := time.Now()
		if err == nil {
			err = once(ctx, permit)
		}
		lasted := time.Since(began) >= sound
		if lasted {
			pause, refused = minPause, false
		}
		stale = ""
		if r.stale(s, role, permit, err) {
			stale = permit
		}
		switch {
		case errors.Is(err, errOver):
			return
		case lasted && (err == nil || fault.Is(err, callv1.Code_CODE_EXPIRED)):
			continue
		case fault.Is(err, callv1.Code_CODE_PROOF_REQUIRED), fault.Is(err, callv1.Code_CODE_UNAUTHENTICATED):
			select {
			case <-ctx.Done():
			case <-renewed:
			}
			continue
		}
		switch {
		case err == nil:
		case lasts(err) && stale == "" && !refused:
			refused = true
			r.conf.Logger.WarnContext(ctx, "a watch is refused: its client hears of nothing until it is let in",
				"session", s.Ref(), "fault", fault.From(err))
		default:
			r.conf.Logger.DebugContext(ctx, "a watch broke off and goes on soon", "fault", fault.From(err), "pause", pause)
		}
		clock.Sleep(ctx, pause/2+rand.N(pause)) //nolint:gosec // spreads watches that broke off together
		pause = min(pause*2, maxPause)
	}
}

// lasts reports whether an error is a refusal, which a moment's patience does not change, rather than a failure.
func lasts(err error) bool {
	return fault.Is(err, callv1.Code_CODE_RATE_LIMITED) || fault.Is(err, callv1.Code_CODE_DENIED)
}

// standing returns a permit for what no request stands behind.
func (r *Relay) standing(ctx context.Context, s *Session, role optionsv1.Role, stale string) (string, error) {
	if !s.KeyBound() {
		return r.permit(ctx, s, Caller{}, role, stale)
	}
	current := s.state.Load().permits[role]
	if current.signed == "" || current.signed == stale || time.Until(current.expires) <= 0 {
		return "", proofRequired(callv1.Proof_PURPOSE_RENEW)
	}
	return current.signed, nil
}
