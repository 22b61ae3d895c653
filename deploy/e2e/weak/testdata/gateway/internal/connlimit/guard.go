package connlimit

import (
	"net"
	"time"
)

// This file makes a negative control of deploy/e2e: the edge without bounds on connections and their time.

var timeless bool

// WeakenTime takes every connection for as long as it likes.
func WeakenTime() { timeless = true }

func counted(l net.Listener, c *Conns) net.Listener {
	if timeless {
		return patient{l}
	}
	return &listener{l, c}
}

type patient struct{ net.Listener }

// Accept implements net.Listener.
func (p patient) Accept() (net.Conn, error) {
	c, err := p.Listener.Accept()
	return forever{c}, err
}

// forever is a connection whose time never comes. (A deadline in the past is how net/http interrupts its own reads.)
type forever struct{ net.Conn }

func future(t time.Time) bool { return time.Until(t) > 0 }

// SetDeadline implements net.Conn.
func (c forever) SetDeadline(t time.Time) error {
	if future(t) {
		return nil
	}
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c forever) SetReadDeadline(t time.Time) error {
	if future(t) {
		return nil
	}
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (c forever) SetWriteDeadline(t time.Time) error {
	if future(t) {
		return nil
	}
	return c.Conn.SetWriteDeadline(t)
}
