package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/telemetry/span"
)

// What gRPC and TLS refuse by themselves no interceptor sees: a message that is too large or cannot be read, and a peer that does
// not prove who it is. It is refused calls all the same, and told of like those that the chain refuses.

// unseen follows each call until the chain has it.
type unseen struct{ server *Server }

type reachedKey struct{}

// reached is whether the chain has a call.
type reached struct {
	method string
	chain  atomic.Bool
}

// TagRPC implements stats.Handler.
func (unseen) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, reachedKey{}, &reached{method: info.FullMethodName})
}

// HandleRPC implements stats.Handler.
func (u unseen) HandleRPC(ctx context.Context, s stats.RPCStats) {
	end, ok := s.(*stats.End)
	if !ok || end.Error == nil {
		return
	}
	if r, ok := ctx.Value(reachedKey{}).(*reached); ok && !r.chain.Load() {
		if f := unreadable(end.Error); f != nil {
			ctx, c := u.server.begin(ctx, r.method)
			_ = u.server.refuse(ctx, c, f) // gRPC has answered
			span.End(c.span, f)
		}
	}
}

// TagConn implements stats.Handler.
func (unseen) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (unseen) HandleConn(context.Context, stats.ConnStats) {}

// unreadable is what gRPC says of a message that it does not take, in one sentence for each reason; nil where the call ended otherwise,
// as when its caller is gone.
func unreadable(err error) *fault.Error {
	f := fault.From(err)
	switch status.Code(err) {
	case codes.ResourceExhausted:
		f.Cause = errors.New("the message is too large")
	case codes.Internal, codes.Unimplemented:
		f.Cause = errors.New("the message cannot be read")
	default:
		return nil
	}
	return f
}

// peers tells of those that do not prove who they are.
type peers struct {
	credentials.TransportCredentials
	server *Server
}

func (p peers) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	out, info, err := p.TransportCredentials.ServerHandshake(conn)
	if err != nil && !errors.Is(err, io.EOF) { // who says nothing asks for nothing
		_ = p.server.refuse(context.Background(), &call{}, denied(errors.New("the peer did not prove who it is")))
	}
	return out, info, err
}

func (p peers) Clone() credentials.TransportCredentials {
	return peers{p.TransportCredentials.Clone(), p.server}
}
