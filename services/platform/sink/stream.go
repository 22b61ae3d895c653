package sink

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/share"
)

// How many streams may be open, for one principal and in all.
const (
	MaxPrincipalStreams = 32
	MaxStreams          = 256
)

// permitInterval is how often the permit of an internal program's stream is put to the vault. With the vault's own look at its files, a
// program that was taken away is out within a second.
const permitInterval = 200 * time.Millisecond

// streams counts what is open by principal.
type streams struct {
	share.Places
	// moved wakes what is open when the epoch or the halt changes.
	moved clock.Signal
}

// sayPermit is what a caller hears at the end of its permit.
const sayPermit = "the permit has expired; renew it"

// Stream returns the interceptor for streams, which belongs on every server that has Unary. A stream that the contract puts
// under a READ tool's permit is admitted as that tool's calls are, counted, and recorded once, before its first message; it
// ends with CODE_EXPIRED when the permit does or the sink's epoch leaves it behind. An operator's own stream takes no permit, and
// is counted and recorded alike. Any other stream is refused: none runs without a discipline.
func (a *Authority) Stream() grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx := ss.Context()
		caller, _ := rpc.Caller(ctx)
		c := &call{requestID: rpc.RequestID(ctx), caller: caller, began: a.cfg.Now()}
		c.method = info.FullMethod
		permitted, ok := a.under[info.FullMethod]
		if !ok && !a.operators[info.FullMethod] {
			return a.refuse(ctx, c, callv1.Code_CODE_DENIED, errors.New("a stream under no permit"))
		}
		c.tool = permitted.Tool
		moved := a.streams.moved.Wait() // before the permit is judged, so that no change of the epoch is missed
		permit, err := a.admitStream(ctx, c)
		if err != nil {
			return err
		}
		leave := a.streams.Enter(c.who.principal)
		if leave == nil {
			return a.refuseWith(ctx, c, fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded: too many streams are open",
				fault.WithRetry(time.Minute)))
		}
		defer leave()
		ctx, end := context.WithCancelCause(context.WithValue(ctx, streamKey{}, true))
		defer end(nil)
		if permit != nil {
			go a.expire(ctx, c, permit, moved, end)
		}
		err = handler(srv, &recordedStream{ServerStream: ss, ctx: ctx, authority: a, call: c})
		if ended := new(fault.Error); errors.As(context.Cause(ctx), &ended) {
			return ended
		}
		return err
	}
}

// admitStream judges the permit of a stream. It is nil for an operator, and in a build without that guard.
func (a *Authority) admitStream(ctx context.Context, c *call) (*callv1.Permit, error) {
	if c.caller.Role() == optionsv1.Role_ROLE_OPERATOR {
		c.who = operator(c.caller)
		return nil, nil
	}
	if a.operators[c.method] {
		return nil, a.refuse(ctx, c, callv1.Code_CODE_DENIED, errors.New("a stream for operators alone"))
	}
	raw, err := header(ctx, rpc.MetadataPermit)
	if err == nil && raw == nil {
		if !permitRequired() {
			return nil, nil
		}
		err = errors.New("a stream without a permit")
	}
	var permit *callv1.Permit
	if err == nil {
		permit, err = a.admitByPermit(c, raw)
	}
	if err != nil {
		return nil, a.refuse(ctx, c, callv1.Code_CODE_DENIED, err)
	}
	if f := a.stillPermitted(ctx, c); f != nil {
		return nil, a.refuseWith(ctx, c, f)
	}
	return permit, nil
}

// expire ends a stream when its permit is over, when the epoch has left the permit behind, and when an internal program may call no more.
func (a *Authority) expire(ctx context.Context, c *call, permit *callv1.Permit, moved <-chan struct{}, end context.CancelCauseFunc) {
	timer := time.NewTimer(permit.GetExpiresAt().AsTime().Sub(a.cfg.Now()))
	defer timer.Stop()
	var again <-chan time.Time
	if c.caller.Role() == optionsv1.Role_ROLE_TOOL {
		ticker := time.NewTicker(permitInterval)
		defer ticker.Stop()
		again = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-again:
			f := a.stillPermitted(ctx, c)
			if f == nil || ctx.Err() != nil {
				continue
			}
			end(f)
			return
		case <-moved:
			moved = a.streams.moved.Wait()
			if epochHolds(permit.GetEpoch(), a.Control().Epoch) {
				continue
			}
		}
		end(fault.New(callv1.Code_CODE_EXPIRED, sayPermit, fault.WithRetry(0)))
		return
	}
}

type streamKey struct{}

// Streaming returns an error unless the context is that of a stream under Stream's discipline. A handler that streams asks it
// before it sends anything, so that a server without the interceptor shows nothing.
func Streaming(ctx context.Context) error {
	if admitted, _ := ctx.Value(streamKey{}).(bool); !admitted {
		return fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(errors.New("a stream that nothing admitted")))
	}
	return nil
}

// recordedStream records the stream when its request arrives: what cannot be recorded is not answered.
type recordedStream struct {
	grpc.ServerStream
	ctx       context.Context
	authority *Authority
	call      *call
	recorded  bool
}

func (s *recordedStream) Context() context.Context { return s.ctx }

func (s *recordedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil || s.recorded {
		return err
	}
	request, ok := m.(proto.Message)
	if !ok {
		return errors.New("a stream's request is not a message")
	}
	s.call.request = request
	record := s.authority.record(auditv1.Kind_KIND_READ, auditv1.Status_STATUS_OK, s.call)
	record.Body.Summary = "changes are told until the permit ends"
	if s.call.signedPermit == nil {
		record.Body.Summary = "changes are told until the operator hangs up"
	}
	if err := s.authority.cfg.Recorder.Spool(context.WithoutCancel(s.ctx), record); err != nil {
		return fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, sayAudit, fault.WithCause(err))
	}
	s.recorded = true
	return nil
}

func (s *recordedStream) SendMsg(m any) error {
	switch {
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	case !s.recorded:
		return errors.New("a stream answers before its request was recorded")
	default:
		return s.ServerStream.SendMsg(m)
	}
}
