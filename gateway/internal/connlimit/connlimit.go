// Package connlimit bounds the connections of the gateway's listener: how many there are, in all, for each principal, and of
// strangers. It is told which principal a connection serves; it reads nothing that a client sends.
package connlimit

import (
	"container/list"
	"context"
	"net"
	"sync"
	"time"

	"durward.internal/gateway/internal/limit"
)

// writeTimeout is how long one write to a client may take: one that does not read its answer loses the connection.
const writeTimeout = 30 * time.Second

// Conns bounds how many connections there are, in all, for each principal, and for those who have not shown an accepted
// token. A connection that is one too many makes room by closing another instead of being turned away: strangers who hold
// connections open push out each other, and never a client that works. It is safe for concurrent use.
type Conns struct {
	total, perPrincipal, ofStrangers int

	mu  sync.Mutex
	all int
	// strangers are connections that have served no accepted client, oldest first.
	strangers *list.List
	// idle are connections of accepted clients that serve no request, the one that has been idle longest first.
	idle   *list.List
	counts map[string]int
	// moved is a test's: it has a value when any of this changed.
	moved chan struct{}
}

// New returns Conns with the bounds of conf, which must be valid.
func New(conf limit.Config) *Conns {
	return &Conns{
		total: conf.Connections, perPrincipal: conf.ConnectionsPerPrincipal, ofStrangers: conf.ConnectionsOfStrangers,
		strangers: list.New(), idle: list.New(), counts: map[string]int{},
	}
}

// Listen returns a listener whose connections are counted. For HTTP over TLS it stands below the TLS listener.
func (c *Conns) Listen(l net.Listener) net.Listener { return counted(l, c) }

// Count is how many connections there are: in all, those that have served no accepted client, and those of accepted clients that
// serve no request.
func (c *Conns) Count() (all, strangers, idle int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all, c.strangers.Len(), c.idle.Len()
}

// Context is for http.Server.ConnContext: it lets Of find the connection that a request came on.
func (c *Conns) Context(ctx context.Context, nc net.Conn) context.Context {
	if secure, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = secure.NetConn()
	}
	if mine, ok := nc.(*Conn); ok {
		return context.WithValue(ctx, connKey{}, mine)
	}
	return ctx
}

type connKey struct{}

// Of returns the counted connection that a request came on, or nil.
func Of(ctx context.Context) *Conn {
	c, _ := ctx.Value(connKey{}).(*Conn)
	return c
}

type listener struct {
	net.Listener
	conns *Conns
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &Conn{Conn: nc, conns: l.conns}
		victim, admitted := l.conns.admit(c)
		if victim != nil {
			_ = victim.Conn.Close() // its server sees that, and says goodbye to nobody
		}
		if admitted {
			return c, nil
		}
		_ = nc.Close() // every connection serves a client
	}
}

// Conn is one counted connection. It serves one request at a time: the server speaks HTTP/1.1.
type Conn struct {
	net.Conn
	conns *Conns

	// Guarded by the mutex of conns.
	in        *list.List
	place     *list.Element
	principal string
	gone      bool
}

// Write gives every write its own time.
func (c *Conn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.conns.mu.Lock()
	c.conns.drop(c)
	c.conns.mu.Unlock()
	return c.Conn.Close()
}

// admit counts a connection, and returns the one that has to be closed for it.
func (c *Conns) admit(n *Conn) (victim *Conn, admitted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.strangers.Len() >= c.ofStrangers, c.all >= c.total && c.strangers.Len() > 0:
		victim = first(c.strangers)
	case c.all >= c.total && c.idle.Len() > 0:
		victim = first(c.idle)
	case c.all >= c.total:
		return nil, false
	}
	if victim != nil {
		c.drop(victim)
	}
	c.all++
	n.move(c.strangers)
	return victim, true
}

func first(l *list.List) *Conn {
	c, _ := l.Front().Value.(*Conn)
	return c
}

// drop takes a connection out of the count. It may be called more than once. The caller holds the mutex.
func (c *Conns) drop(n *Conn) {
	if n.gone {
		return
	}
	n.gone = true
	n.move(nil)
	c.all--
	c.disown(n)
}

// disown takes a connection from its principal. The caller holds the mutex.
func (c *Conns) disown(n *Conn) {
	if n.principal == "" {
		return
	}
	if c.counts[n.principal]--; c.counts[n.principal] == 0 {
		delete(c.counts, n.principal)
	}
	n.principal = ""
}

// move puts a connection at the end of a list, or in none. The caller holds the mutex.
func (c *Conn) move(to *list.List) {
	if c.place != nil {
		c.in.Remove(c.place)
	}
	c.in, c.place = to, nil
	if to != nil {
		c.place = to.PushBack(c)
	}
	select {
	case c.conns.moved <- struct{}{}:
	default: // nobody wants to know, or it is known already
	}
}

// Serve begins a request of an accepted principal on the connection, which is its principal's from then on, and reports
// whether that one may have it. A principal at its cap loses the connection that has been idle longest. If it may, Done must
// follow.
func (c *Conn) Serve(principal string) (admitted bool) {
	victim, admitted := c.conns.claim(c, principal)
	if victim != nil {
		_ = victim.Conn.Close()
	}
	return admitted
}

// Done ends what Serve began.
func (c *Conn) Done() {
	c.conns.mu.Lock()
	defer c.conns.mu.Unlock()
	if !c.gone {
		c.move(c.conns.idle)
	}
}

func (c *Conns) claim(n *Conn, principal string) (victim *Conn, admitted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.gone {
		return nil, false
	}
	if n.principal != principal {
		if c.counts[principal] >= c.perPrincipal {
			if victim = c.idlest(principal); victim == nil {
				return nil, false
			}
			c.drop(victim)
		}
		c.disown(n)
		n.principal = principal
		c.counts[principal]++
	}
	n.move(nil)
	return victim, true
}

// idlest returns a principal's connection that has been idle longest, or nil. The caller holds the mutex.
func (c *Conns) idlest(principal string) *Conn {
	for at := c.idle.Front(); at != nil; at = at.Next() {
		if n, _ := at.Value.(*Conn); n.principal == principal {
			return n
		}
	}
	return nil
}
