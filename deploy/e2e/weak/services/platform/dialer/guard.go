package dialer

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
)

// This file makes the negative controls of deploy/e2e: a dialer without one of its guards.

// Guards are the names that Weaken takes: an address that is judged before it is dialled, as others do, and a redirect that may leave TLS.
var Guards = []string{"dial-judged-before", "dial-downgrade"}

var (
	weakenedMu sync.RWMutex
	weakened   = map[string]bool{}
)

// Weaken switches guards off, by comma-separated names. It exists in drill builds alone.
func Weaken(names string) error {
	weakenedMu.Lock()
	defer weakenedMu.Unlock()
	for _, name := range strings.Split(names, ",") {
		if !slices.Contains(Guards, name) {
			return fmt.Errorf("no guard is called %q; there are %s", name, strings.Join(Guards, ", "))
		}
		weakened[name] = true
	}
	return nil
}

func weak(name string) bool {
	weakenedMu.RLock()
	defer weakenedMu.RUnlock()
	return weakened[name]
}

func (d *Dialer) dial(ctx context.Context, to Destination) (net.Conn, error) {
	_, isAddress := to.addr()
	switch {
	case d.cfg.Upstream.IsValid():
		return d.through(ctx, to)
	case isAddress:
		return d.direct(ctx, to.String())
	case weak("dial-judged-before"):
		addrs, err := d.lookup(ctx, to)
		for _, addr := range addrs {
			if err == nil {
				err = d.judge(addr)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	to.Host += "."
	return d.direct(ctx, to.String())
}

func (d *Dialer) direct(ctx context.Context, address string) (net.Conn, error) {
	dialer := net.Dialer{Resolver: d.cfg.Resolver}
	if !weak("dial-judged-before") {
		dialer.ControlContext = d.connecting
	}
	return dialer.DialContext(ctx, "tcp", address)
}

func downgrade(from, to string) bool {
	return from == "https" && to != "https" && !weak("dial-downgrade")
}
