package dialer

import (
	"context"
	"net"

	"durward.internal/services/platform/destination"
)

// The guards between a name and a connection, one small function each, so that a drill can show what happens without one: its builds
// have the twins in deploy/e2e/weak instead.

// dial connects to a destination that was admitted. The address is judged where it is connected to.
func (d *Dialer) dial(ctx context.Context, to destination.Destination) (net.Conn, error) {
	switch _, isAddress := to.Addr(); {
	case d.cfg.Upstream.IsValid():
		return d.through(ctx, to)
	case isAddress:
		return d.direct(ctx, to.String())
	default:
		to.Host += "." // a name of the whole network, not one below the host's own domain
		return d.direct(ctx, to.String())
	}
}

// direct connects without a proxy.
func (d *Dialer) direct(ctx context.Context, address string) (net.Conn, error) {
	dialer := net.Dialer{Resolver: d.cfg.Resolver, ControlContext: d.connecting}
	return dialer.DialContext(ctx, "tcp", address)
}

// downgrade reports whether a redirect leaves TLS.
func downgrade(from, to string) bool { return from == "https" && to != "https" }
