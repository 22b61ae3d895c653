package rpc

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/telemetry/span"
)

// DefaultDeadline is given to a unary call whose context has none.
const DefaultDeadline = 2 * time.Second

// reconnectWait is how long a call waits for the connection that it had tried again: many handshakes on one machine.
const reconnectWait = 250 * time.Millisecond

// ClientConfig is what a connection needs; every field but Logger, Deadline and Dialer is required.
type ClientConfig struct {
	Identity *identity.Source
	// Address is host:port, or a Unix socket with the user who must be listening there (config.Peer).
	Address string
	// Server is the one identity that is accepted there.
	Server identity.ID
	Logger *slog.Logger
	// Deadline is given to a unary call whose context has none; 0: DefaultDeadline. Tests on a disk that is busy set it.
	Deadline time.Duration
	// Dialer makes the connection below TLS; nil: as Address says. Tests give one that stays within the process.
	Dialer func(ctx context.Context, address string) (net.Conn, error)
}

// Dial returns a connection that is made at the first call and made again by itself (waiting at most 1 s between tries).
// A call while the server cannot be reached has the connection tried at once and fails after reconnectWait; none is sent once the
// trust folder lists the server as revoked, whatever connection there is. Errors of calls are *fault.Error; the context's request id goes
// with each call, a new one if it has none that is valid. The caller closes the connection.
func Dial(cfg ClientConfig) (*grpc.ClientConn, error) {
	if cfg.Identity == nil || cfg.Server.IsZero() || cfg.Address == "" {
		return nil, errors.New("rpc: a connection needs an identity, an address and the server's identity")
	}
	cfg.Deadline = cmp.Or(cfg.Deadline, DefaultDeadline)
	c := &client{cfg: cfg}
	var options []grpc.DialOption
	if config.IsUnix(cfg.Address) {
		// TLS names the server by its identity, whatever this says; a path would be no name.
		options = append(options, grpc.WithAuthority(identity.RoleName(cfg.Server.Role())), grpc.WithContextDialer(DialContext))
	}
	if cfg.Dialer != nil {
		options = append(options, grpc.WithContextDialer(cfg.Dialer))
	}
	return grpc.NewClient("passthrough:///"+cfg.Address, append(options,
		grpc.WithTransportCredentials(credentials.NewTLS(cfg.Identity.ClientTLS(cfg.Server))),
		// The environment must not be able to lead a connection elsewhere.
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		// A call that changes something is never repeated behind its caller's back.
		grpc.WithDisableRetry(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			// Longer than a call waits, so that of a server that hangs every call says the same: it did not answer in time.
			MinConnectTimeout: 2 * DefaultDeadline,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes)),
		grpc.WithMaxHeaderListSize(maxHeaderBytes),
		grpc.WithInitialWindowSize(windowBytes),
		grpc.WithInitialConnWindowSize(windowBytes),
		grpc.WithUnaryInterceptor(c.unary),
		grpc.WithStreamInterceptor(c.stream),
	)...)
}

type client struct{ cfg ClientConfig }

func (c *client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.cfg.Deadline)
		defer cancel()
	}
	if err := c.revoked(ctx, method); err != nil {
		return err
	}
	ctx, traced := c.trace(ctx, method)
	ctx = outgoing(ctx)
	reconnect(ctx, cc)
	err := c.convert(ctx, method, invoke(ctx, method, req, reply, cc, opts...))
	span.End(traced, err)
	return err
}

// reconnect has a lost connection tried now, not when the pause between two tries is over: a server that is back is reached by
// the first call.
func reconnect(ctx context.Context, cc *grpc.ClientConn) {
	if cc.GetState() != connectivity.TransientFailure {
		return
	}
	cc.ResetConnectBackoff()
	ctx, cancel := context.WithTimeout(ctx, reconnectWait)
	defer cancel()
	cc.WaitForStateChange(ctx, connectivity.TransientFailure)
}

// trace begins the span of a call, if the context is traced.
func (c *client) trace(ctx context.Context, method string) (context.Context, trace.Span) {
	ctx, traced := span.Start(ctx, spanName(method), trace.SpanKindClient)
	if traced.IsRecording() {
		traced.SetAttributes(span.Peer.String(identity.RoleName(c.cfg.Server.Role())))
	}
	return ctx, traced
}

func (c *client) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if err := c.revoked(ctx, method); err != nil {
		return nil, err
	}
	// The trace of a stream is its server's: how long somebody watched says little.
	ctx = outgoing(ctx)
	reconnect(ctx, cc)
	s, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, c.convert(ctx, method, err)
	}
	return &clientStream{ClientStream: s, client: c, method: method}, nil
}

// revoked returns a fault when the server is no longer let in. The trust folder is asked on each call, since a connection
// outlives a revocation.
func (c *client) revoked(ctx context.Context, method string) error {
	if !c.cfg.Identity.Revoked(c.cfg.Server) {
		return nil
	}
	return c.convert(ctx, method, fault.New(callv1.Code_CODE_UNAVAILABLE,
		spoken(c.cfg.Server.Role())+" cannot be reached", fault.WithRetry(time.Second), fault.WithCause(errRevoked)))
}

var errRevoked = errors.New("the server's identity is revoked")

// spoken is a process as sentences name it: the vault, the executor, the gateway; audit and egress have no article.
func spoken(role optionsv1.Role) string {
	name := identity.RoleName(role)
	if role == optionsv1.Role_ROLE_AUDIT || role == optionsv1.Role_ROLE_EGRESS {
		return name
	}
	return "the " + name
}

// outgoing puts the request id, and the trace if there is one, into the call's metadata.
func outgoing(ctx context.Context) context.Context {
	id := RequestID(ctx)
	if !ValidRequestID(id) {
		id = NewRequestID()
	}
	md, ok := metadata.FromOutgoingContext(ctx)
	if ok {
		md = md.Copy()
	} else {
		md = metadata.MD{}
	}
	md.Set(MetadataRequestID, id)
	if traceparent := span.Format(ctx); traceparent != "" {
		md.Set(span.Header, traceparent)
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// convert makes a *fault.Error of a call's error. It returns error, not *fault.Error, so that success is a nil interface.
func (c *client) convert(ctx context.Context, method string, err error) error {
	if err == nil {
		return nil
	}
	f := fault.From(err)
	if f.Code == callv1.Code_CODE_UNAVAILABLE && !fault.FromPeer(err) && !errors.Is(err, errRevoked) && !errors.Is(ctx.Err(), context.Canceled) {
		// Whoever reads it wants to know which process.
		problem := " cannot be reached"
		if status.Code(err) == codes.DeadlineExceeded {
			problem = " did not answer in time"
		}
		f = fault.New(f.Code, spoken(c.cfg.Server.Role())+problem, fault.WithRetry(time.Second), fault.WithCause(err))
	}
	if c.cfg.Logger != nil {
		c.cfg.Logger.DebugContext(ctx, "call to peer failed", "method", method, "server", c.cfg.Server, "fault", f)
	}
	return f
}

type clientStream struct {
	grpc.ClientStream
	client *client
	method string
}

func (s *clientStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	return md, s.convert(err)
}

func (s *clientStream) CloseSend() error { return s.convert(s.ClientStream.CloseSend()) }

func (s *clientStream) SendMsg(m any) error {
	if err := s.client.revoked(s.Context(), s.method); err != nil {
		return err
	}
	return s.convert(s.ClientStream.SendMsg(m))
}

// RecvMsg drops what a server sends that was revoked while the stream was open.
func (s *clientStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if refused := s.client.revoked(s.Context(), s.method); refused != nil {
		return refused
	}
	return s.convert(err)
}

// convert leaves io.EOF, which says that a stream ended well.
func (s *clientStream) convert(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return s.client.convert(s.Context(), s.method, err)
}
