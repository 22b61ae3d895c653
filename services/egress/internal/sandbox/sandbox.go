// Package sandbox starts other people's MCP servers, each in a sandbox of its own (MCP-1): bubblewrap's namespaces, a filter of system calls,
// a control group. A child sees the system's programs, its own folder at /data, and what of the host a human's file gives it; nothing else
// of the host, no other process and no network but egress' proxy, through a socket that is its identity.
//
// It runs in durward-launcher, whose user has nothing to give a child that breaks out, and in development in egress itself. It trusts the
// entry that a human signed, the kernel and bubblewrap. The child is hostile.
package sandbox

import (
	"context"
	"io"
	"net"

	"durward.internal/services/platform/downstream"
)

// Start is one child to start.
type Start struct {
	Server *downstream.Pinned
	// User is whose instance it is, a client or CLIENT/SESSION: it has a folder of its own. Empty: one that all share.
	User string
	// Env are the variables that the child gets, credentials among them. None of this process' own reach it.
	Env map[string]string
	// Network: it gets what its entry's domains say. Without, it has no network at all, as while its tools are first listed.
	Network bool
}

// Launcher starts children. Its errors are one sentence for a human, which says what mends it.
type Launcher interface {
	Start(ctx context.Context, s Start) (*Process, error)
}

// Process is a running child. Its caller reads Stdout and Stderr, and calls Wait once.
type Process struct {
	Stdin          io.WriteCloser
	Stdout, Stderr io.ReadCloser
	// Proxy is where the child's connections arrive; nil without a network. Whoever starts the child closes it; Networked serves it, and does.
	Proxy net.Listener

	Control
}

// Control is how a child is held, here or in the launcher.
type Control interface {
	// Wait returns when nothing of the child is left: nil where it ended with 0, else why it ended.
	Wait() error
	// Kill ends the child and whatever it started. It does not wait.
	Kill()
	// Freeze stops every process of the child, or lets them go on.
	Freeze(frozen bool) error
}

// Networked is a launcher whose children's connections are served: serve is called for each child that has a network, and returns when the
// listener is closed, as it is once nothing of the child is left. Wait returns after serve.
func Networked(l Launcher, serve func(net.Listener, Start)) Launcher { return networked{l, serve} }

type networked struct {
	Launcher

	serve func(net.Listener, Start)
}

func (n networked) Start(ctx context.Context, s Start) (*Process, error) {
	p, err := n.Launcher.Start(ctx, s)
	if err == nil && p.Proxy != nil {
		c := served{p.Control, p.Proxy, make(chan struct{})}
		go func() {
			defer close(c.over)
			n.serve(c.proxy, s)
		}()
		p.Control = c
	}
	return p, err
}

// served is a child whose connections are served until over is closed.
type served struct {
	Control

	proxy net.Listener
	over  chan struct{}
}

// Wait implements Control.
func (c served) Wait() error {
	err := c.Control.Wait()
	_ = c.proxy.Close() // serve may have closed it
	<-c.over
	return err
}
