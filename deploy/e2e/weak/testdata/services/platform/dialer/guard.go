package dialer

import (
	"context"
	"net"

	"durward.internal/services/platform/weakness"

	"durward.internal/services/platform/destination"
)

// This file makes the negative controls of deploy/e2e: a dialer without one of its guards.

// Guards are those that a drill build may lack: an address that is judged before it is dialled, as others do, and a redirect that may
// leave TLS.
var Guards = weakness.Of("dial-judged-before", "dial-downgrade")

func (d *Dialer) dial(ctx context.Context, to destination.Destination) (net.Conn, error) {
	_, isAddress := to.Addr()
	switch {
	case d.cfg.Upstream.IsValid():
		return d.through(ctx, to)
	case isAddress:
		return d.direct(ctx, to.String())
	case Guards.Off("dial-judged-before"):
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
	if !Guards.Off("dial-judged-before") {
		dialer.ControlContext = d.connecting
	}
	return dialer.DialContext(ctx, "tcp", address)
}

func downgrade(from, to string) bool {
	return from == "https" && to != "https" && !Guards.Off("dial-downgrade")
}
