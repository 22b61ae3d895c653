package rpc

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
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
	if !ok || end.Error == nil || !unseenTold() {
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
	if err != nil && !errors.Is(err, io.EOF) && unseenTold() { // who says nothing asks for nothing
		cause := errors.New("the peer did not prove who it is")
		if errors.Is(err, identity.ErrTime) { // its certificate is one of ours
			cause = err
		}
		_ = p.server.refuse(context.Background(), &call{}, denied(cause))
	}
	if tls, ok := info.(credentials.TLSInfo); ok && err == nil {
		out = p.server.connected(&peerConn{Conn: out, raw: conn, chain: tls.State.PeerCertificates, server: p.server})
	}
	return out, info, err
}

// peerConn is a connection, and what its peer proved itself with.
type peerConn struct {
	net.Conn
	raw    net.Conn
	chain  []*x509.Certificate
	server *Server
	// since is when it was found to have no root any more.
	since time.Time
}

func (s *Server) connected(c *peerConn) net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = struct{}{}
	return c
}

// Close implements net.Conn.
func (c *peerConn) Close() error {
	c.server.mu.Lock()
	delete(c.server.conns, c)
	c.server.mu.Unlock()
	return c.Conn.Close()
}

// unrooted are the connections whose calls have been refused for unrootedTime, since their root was taken away. Their peers may have
// other certificates by now, with which they come back; else they would be refused for as long as the connection lasts.
func (s *Server) unrooted() (out []*peerConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		switch now := time.Now(); {
		case s.cfg.Identity.Rooted(c.chain) == nil:
			c.since = time.Time{}
		case c.since.IsZero():
			c.since = now
		case now.Sub(c.since) >= unrootedTime:
			out = append(out, c)
		}
	}
	return out
}

func (p peers) Clone() credentials.TransportCredentials {
	return peers{p.TransportCredentials.Clone(), p.server}
}
