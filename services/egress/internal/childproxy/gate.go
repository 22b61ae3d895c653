package childproxy

import (
	"context"
	"net"
	"net/url"
	"sync"

	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
)

// ruleHalted refuses connections while everything stands still.
const ruleHalted destination.Rule = "halted"

// Gate is the way out of every server, here or on another host. A panic shuts it: what is connected is closed, and nothing is dialled.
// It is safe for concurrent use.
type Gate struct {
	mu   sync.Mutex
	open context.Context //nolint:containedctx // it ends when the gate is shut
	shut context.CancelFunc
}

// NewGate returns one that is open.
func NewGate() *Gate {
	g := &Gate{}
	g.open, g.shut = context.WithCancel(context.Background())
	return g
}

// Shut closes every connection, and refuses new ones.
func (g *Gate) Shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut()
}

// Open lets connections be made again.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut()
	g.open, g.shut = context.WithCancel(context.Background())
}

// dial is what an http.Transport calls.
type dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Dial is a way out through the gate. Its Allow is asked again about what is sent later, so that a standing connection ends with the leave.
func (g *Gate) Dial(way dialer.Config) (dial, error) {
	out, err := dialer.New(way)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		to, err := destination.Of(&url.URL{Scheme: "http", Host: address})
		if err != nil {
			return nil, err
		}
		g.mu.Lock()
		p := &passage{open: g.open, allowed: func() error { return way.Allow(context.WithoutCancel(ctx), to) }}
		g.mu.Unlock()
		if p.open.Err() != nil {
			return nil, errHalted
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(p.open, cancel)()
		if p.Conn, err = out.DialContext(ctx, network, address); err != nil {
			return nil, err
		}
		p.leave = context.AfterFunc(p.open, p.abort)
		return p, nil
	}, nil
}

var errHalted = destination.Refuse(ruleHalted, "everything is stopped by a panic")

// passage is a connection through the gate.
type passage struct {
	net.Conn

	open    context.Context //nolint:containedctx // the gate's
	allowed func() error
	leave   func() bool
}

// Write sends nothing that may not leave any more.
func (p *passage) Write(b []byte) (int, error) {
	if p.open.Err() != nil {
		return 0, errHalted
	}
	if err := p.allowed(); err != nil {
		return 0, err
	}
	return p.Conn.Write(b)
}

// Close implements net.Conn.
func (p *passage) Close() error {
	p.leave()
	return p.Conn.Close()
}

// CloseWrite says that nothing more is sent.
func (p *passage) CloseWrite() error {
	if _, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return closeWrite(p.Conn)
	}
	return p.Close()
}

// closeWrite says that nothing more is sent, or closes a connection that cannot say so.
func closeWrite(conn net.Conn) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return conn.Close()
}

// abort closes the connection, and what the system has not sent yet is not sent.
func (p *passage) abort() {
	if tcp, ok := p.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = p.Conn.Close()
}
