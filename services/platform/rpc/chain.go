package rpc

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	middleware "github.com/grpc-ecosystem/go-grpc-middleware/v2"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/telemetry/span"
)

// call is what the chain knows of one call.
type call struct {
	method string
	caller identity.ID
	// chain is what the caller proved itself with.
	chain   []*x509.Certificate
	started time.Time
	span    trace.Span
}

type callKey struct{}

// callOf returns the call that begin put into the context.
func callOf(ctx context.Context) *call { return ctx.Value(callKey{}).(*call) }

// attributes are what each line about the call says.
func (c *call) attributes(more ...any) []any {
	return append([]any{"method", c.method, "caller", c.caller, "duration", time.Since(c.started)}, more...)
}

// begin gives the call its request id and its caller.
func (s *Server) begin(ctx context.Context, method string) (context.Context, *call) {
	if r, ok := ctx.Value(reachedKey{}).(*reached); ok {
		r.chain.Store(true)
	}
	id := ""
	if values := metadata.ValueFromIncomingContext(ctx, MetadataRequestID); len(values) == 1 && ValidRequestID(values[0]) {
		id = values[0]
	} else {
		id = NewRequestID()
	}
	c := &call{method: method, started: time.Now()}
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && info.SPIFFEID != nil {
			c.caller, _ = identity.Parse(info.SPIFFEID.String()) // a zero caller is refused
			c.chain = info.State.PeerCertificates
		}
	}
	ctx = context.WithValue(WithRequestID(ctx, id), callKey{}, c)
	if !c.caller.IsZero() {
		ctx = WithCaller(ctx, c.caller)
	}
	ctx, c.span = s.trace(ctx, c, id)
	return ctx, c
}

// trace begins the span of a call, if its caller traces it or it changes something.
func (s *Server) trace(ctx context.Context, c *call, requestID string) (context.Context, trace.Span) {
	var remote trace.SpanContext
	if values := metadata.ValueFromIncomingContext(ctx, span.Header); len(values) == 1 {
		remote = span.Parse(values[0])
	}
	if s.cfg.Tracer == nil || !remote.IsSampled() && !s.changes[c.method] {
		return ctx, noop.Span{}
	}
	name := span.Unknown
	if _, known := s.callers[c.method]; known {
		name = spanName(c.method)
	}
	if remote.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, remote)
	}
	ctx, traced := s.cfg.Tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer))
	traced.SetAttributes(span.RequestID.String(requestID), span.Peer.String(identity.RoleName(c.caller.Role())))
	return ctx, traced
}

// spanName is a method as spans name it, without the leading slash.
func spanName(method string) string { return strings.TrimPrefix(method, "/") }

// authorise lets in a caller whose role the method names. The trust folder is asked again on each call, and on each message
// of a stream, since a connection outlives a revocation and the end of a root.
func (s *Server) authorise(c *call) *fault.Error {
	callers, exists := s.callers[c.method]
	switch {
	case c.caller.IsZero():
		return denied(errors.New("the peer has no identity"))
	case s.cfg.Identity.Revoked(c.caller):
		return denied(errors.New("the caller's identity is revoked"))
	case !exists:
		return denied(errors.New("no such method"))
	case !roleAllowed(callers, c.caller.Role()):
		return denied(errors.New("the caller's role may not call this method"))
	}
	if err := s.cfg.Identity.Rooted(c.chain); err != nil {
		return denied(fmt.Errorf("the caller's certificate is not trusted any more: %w", err))
	}
	return nil
}

// denied is the one refusal that a caller ever sees; the reason is ours.
func denied(reason error) *fault.Error {
	return fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(reason))
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, c := s.begin(ctx, info.FullMethod)
	resp, err := handler(ctx, req)
	if err = s.end(ctx, c, err); err != nil {
		return nil, err
	}
	return resp, nil
}

func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, c := s.begin(ss.Context(), info.FullMethod)
	return s.end(ctx, c, handler(srv, &middleware.WrappedServerStream{ServerStream: ss, WrappedContext: ctx}))
}

// admitUnary lets a call through whose caller is let in, and reports a refusal, its own or that of the rules behind it.
func (s *Server) admitUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	c := callOf(ctx)
	if refused := s.authorise(c); refused != nil {
		return nil, s.refuse(ctx, c, refused)
	}
	leave, refused := s.tools.enter(c.caller)
	if refused != nil {
		return nil, s.refuse(ctx, c, refused)
	}
	defer leave()
	describe(c.span, req)
	resp, err := handler(ctx, req)
	if refused := broken(err); refused != nil {
		return nil, s.refuse(ctx, c, refused)
	}
	return resp, err
}

// admitStream is admitUnary for a stream, which ends when the server is told to stop, and when its caller is let in no more;
// a unary call is left to finish.
func (s *Server) admitStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	ctx, end := context.WithCancelCause(ss.Context())
	defer end(nil)
	defer context.AfterFunc(s.draining, func() { end(nil) })()
	checked := &checkedStream{ServerStream: ss, ctx: ctx, end: end, server: s, call: callOf(ctx)}
	// It is known before its caller is let in, so that no change of trust falls between.
	defer s.enlist(checked)()
	refused := s.authorise(checked.call)
	var leave func()
	if refused == nil {
		leave, refused = s.tools.enter(checked.call.caller)
	}
	if refused == nil {
		defer leave()
		err = handler(srv, checked)
		refused = broken(err)
	}
	if ended, ok := errors.AsType[*fault.Error](context.Cause(ctx)); ok {
		refused = ended
	}
	if refused != nil {
		return s.refuse(context.WithoutCancel(ctx), checked.call, refused)
	}
	return err
}

// enlist makes a stream one of those that askAgain looks after. What it returns ends that.
func (s *Server) enlist(stream *checkedStream) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[stream] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, stream)
	}
}

// askAgain ends the streams whose callers are let in no more, and connections without a root, until ctx ends. A stream that sends and
// receives asks by itself; one that is quiet would never.
func (s *Server) askAgain(ctx context.Context) {
	for clock.Every(ctx, askInterval) {
		s.mu.Lock()
		for stream := range s.open {
			_ = stream.ask() // it ends the stream
		}
		s.mu.Unlock()
		for _, c := range s.unrooted() {
			_ = c.raw.Close() // gRPC closes the rest
		}
	}
}

// reported marks a fault that is in the log already.
type reported struct{ fault *fault.Error }

func (r reported) Error() string { return r.fault.Error() }

func (r reported) Unwrap() error { return r.fault }

// refuse logs a refusal and tells the service of it.
func (s *Server) refuse(ctx context.Context, c *call, err *fault.Error) error {
	s.cfg.Logger.WarnContext(ctx, "call refused", "method", c.method, "caller", c.caller, "fault", err)
	if s.cfg.OnRefused != nil {
		s.cfg.OnRefused(ctx, c.method, c.caller, err)
	}
	return reported{err}
}

// panicked logs a panic with its stack, which the peer must not see.
func (s *Server) panicked(ctx context.Context, value any) error {
	f := fault.From(fmt.Errorf("panic: %v", value))
	s.cfg.Logger.ErrorContext(ctx, "call panicked", callOf(ctx).attributes("fault", f, "stack", string(debug.Stack()))...)
	return reported{f}
}

// end turns a handler's error into the status that the peer sees, and logs it once.
func (s *Server) end(ctx context.Context, c *call, err error) error {
	span.End(c.span, err)
	if err == nil {
		s.cfg.Logger.DebugContext(ctx, "call", c.attributes()...)
		return nil
	}
	f := fault.From(err)
	switch _, done := errors.AsType[reported](err); {
	case done:
	case f.Code == callv1.Code_CODE_INTERNAL:
		s.cfg.Logger.ErrorContext(ctx, "call failed", c.attributes("fault", f)...)
	default:
		s.cfg.Logger.DebugContext(ctx, "call", c.attributes("fault", f)...)
	}
	return f.GRPCStatus(RequestID(ctx)).Err()
}
