package sandbox

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
)

// ending is a child with a network that ends when it is closed, and a launcher of it.
type ending struct {
	Control

	proxy net.Listener
	ended chan struct{}
}

var errEnding = errors.New("exit status 1")

func (e *ending) Start(context.Context, Start) (*Process, error) {
	return &Process{Control: e, Proxy: e.proxy}, nil
}

func (e *ending) Wait() error {
	<-e.ended
	return errEnding
}

// TestConnectionsEndWithTheChild: the socket of a child is served as long as the child is there, and whoever waits for its end hears of it when
// that is over, so that what passed last is told by then.
func TestConnectionsEndWithTheChild(t *testing.T) {
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	e := &ending{proxy: listener, ended: make(chan struct{})}
	met, told := make(chan struct{}), false
	p, err := Networked(e, func(l net.Listener, _ Start) {
		for {
			conn, err := l.Accept()
			if err != nil {
				told = errors.Is(err, net.ErrClosed)
				return
			}
			_ = conn.Close()
			met <- struct{}{}
		}
	}).Start(t.Context(), Start{})
	must(t, err)
	for range 2 {
		conn, err := net.Dial("unix", listener.Addr().String())
		must(t, err)
		<-met
		_ = conn.Close()
	}
	close(e.ended)
	if err := p.Wait(); !errors.Is(err, errEnding) || !told {
		t.Errorf("it ended with %v; its connections ended before: %v", err, told)
	}
}
