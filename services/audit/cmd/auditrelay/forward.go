package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/audit/internal/forward"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/keyfile"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/process"
)

// maxDestinations is how many audit remembers.
const maxDestinations = 8

// forwarding is where records go. One of Syslog and OTLP is required.
type forwarding struct {
	// Name is what the file that keeps how far it is, logs and metrics call it: lower case letters, digits and dashes. Required. With
	// another name the whole log goes there again.
	Name string `yaml:"name"`
	// Syslog is the HOST:PORT of a receiver of syslog over TLS (RFC 5424, 5425).
	Syslog string `yaml:"syslog"`
	// OTLP is the HOST:PORT of a collector that takes OTLP logs over gRPC, with TLS; at a loopback address in clear, without Authorities.
	OTLP string `yaml:"otlp"`
	// Authorities is a PEM file with the authorities of its certificate. Optional; the system's. This file and the next two are read again for
	// each connection.
	Authorities string `yaml:"authorities"`
	// ServerName is the name in its certificate. Optional; HOST.
	ServerName string `yaml:"server_name"`
	// Certificate and Key are what the relay shows it, where it wants to see a certificate. Optional. No key of Durward's.
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`
	// MaxMessage bounds a message of syslog, in bytes. Optional; 8000.
	MaxMessage int `yaml:"max_message"`
	// CloseUnsaid takes the end of the TCP connection for the receiver's word that it has read everything.
	CloseUnsaid bool `yaml:"dangerous_close_unsaid"`
}

var destinationName = pattern.New(`^[a-z][a-z0-9-]{0,31}$`)

// checkForward checks the destinations.
func (s *settings) checkForward() error {
	var problems []error
	if len(s.Forward) > maxDestinations {
		problems = append(problems, fmt.Errorf("forward: %d destinations at most", maxDestinations))
	}
	if len(s.Forward) > 0 {
		problems = append(problems, config.CheckAbsolute(map[string]string{"state_dir": s.StateDir}, nil))
	}
	names := map[string]bool{}
	for i, d := range s.Forward {
		if err := d.validate(); err != nil {
			problems = append(problems, fmt.Errorf("forward[%d]: %w", i, err))
		}
		if names[d.Name] {
			problems = append(problems, fmt.Errorf("forward[%d]: there is another destination %q", i, d.Name))
		}
		names[d.Name] = true
	}
	return errors.Join(problems...)
}

func (d forwarding) validate() error {
	if !destinationName().MatchString(d.Name) {
		return errors.New("name: must be 1 to 32 lower case letters, digits and dashes, a letter first")
	}
	if (d.Syslog == "") == (d.OTLP == "") {
		return errors.New("must name one of syslog and otlp")
	}
	to, err := d.to()
	if err != nil {
		return err
	}
	if err := config.CheckAbsolute(nil, map[string]string{"authorities": d.Authorities, "certificate": d.Certificate, "key": d.Key}); err != nil {
		return err
	}
	switch {
	case (d.Certificate == "") != (d.Key == ""):
		return errors.New("certificate and key go together")
	case d.clear(to) && (d.ServerName != "" || d.Certificate != ""):
		return errors.New("authorities: is required for TLS at a loopback address")
	case d.OTLP != "" && (d.MaxMessage != 0 || d.CloseUnsaid):
		return errors.New("max_message and dangerous_close_unsaid are syslog's")
	case d.MaxMessage != 0 && (d.MaxMessage < forward.LeastMessage || d.MaxMessage > forward.MostMessage):
		return fmt.Errorf("max_message: must be %d to %d", forward.LeastMessage, forward.MostMessage)
	}
	return nil
}

// to is where it is.
func (d forwarding) to() (destination.Destination, error) {
	address := d.Syslog + d.OTLP
	if _, _, err := net.SplitHostPort(address); err != nil {
		return destination.Destination{}, fmt.Errorf("%q is no HOST:PORT", address)
	}
	_, to, err := destination.ParseURL("https://" + address + "/")
	if err == nil && to.String() != address {
		err = fmt.Errorf("%q: write it as %s", address, to)
	}
	return to, err
}

// clear reports whether it is spoken to in clear: a collector on this machine, for which no authority is named.
func (d forwarding) clear(to destination.Destination) bool {
	addr, err := netip.ParseAddr(to.Host)
	return d.OTLP != "" && d.Authorities == "" && err == nil && addr.IsLoopback()
}

// tls is the TLS of its connections; nil: in clear.
func (d forwarding) tls() (*tls.Config, error) {
	to, err := d.to()
	if err != nil || d.clear(to) {
		return nil, err
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: to.Host}
	if d.ServerName != "" {
		cfg.ServerName = d.ServerName
	}
	if cfg.RootCAs, err = authorities(d.Authorities); err != nil {
		return nil, err
	}
	if d.Certificate != "" {
		if err := keyfile.Check(d.Key); err != nil {
			return nil, err
		}
		pair, err := tls.LoadX509KeyPair(d.Certificate, d.Key)
		if err != nil {
			return nil, fmt.Errorf("certificate: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// forwarders opens the destinations; closing them ends what they hold.
func (s *settings) forwarders(audit auditv1.ForwardServiceClient, logger *slog.Logger) (_ []*forward.Forwarder, closeAll func(), err error) {
	var closers []func()
	closeAll = func() {
		for _, f := range closers {
			f()
		}
	}
	defer func() {
		if err != nil {
			closeAll()
		}
	}()
	if len(s.Forward) == 0 {
		return nil, closeAll, nil
	}
	// A second relay would write over what this one keeps.
	unlock, err := process.LockState(s.StateDir)
	if err != nil {
		return nil, closeAll, err
	}
	closers = append(closers, func() { _ = unlock() })
	host, err := os.Hostname()
	if err != nil {
		return nil, closeAll, err
	}
	out, err := s.dialer(nil)
	if err != nil {
		return nil, closeAll, err
	}
	origin := logproof.Origin(s.Audit.Identity)
	var all []*forward.Forwarder
	for _, d := range s.Forward {
		if _, err := d.tls(); err != nil {
			return nil, closeAll, fmt.Errorf("destination %s: %w", d.Name, err)
		}
		var to forward.Destination
		if d.Syslog != "" {
			to = forward.NewSyslog(forward.SyslogConfig{
				Dial: out.DialContext, Address: d.Syslog, TLS: d.tls, Origin: origin, Host: host,
				MaxMessage: max(d.MaxMessage, forward.LeastMessage), CloseUnsaid: d.CloseUnsaid,
			})
		} else {
			conn, err := collector(d.OTLP, d.tls, out)
			if err != nil {
				return nil, closeAll, fmt.Errorf("destination %s: %w", d.Name, err)
			}
			closers = append(closers, func() { _ = conn.Close() })
			to = forward.NewOTLP(conn, origin)
		}
		f, err := forward.New(forward.Config{Audit: audit, Name: d.Name, To: to, Origin: origin, Dir: s.StateDir, Logger: logger})
		if err != nil {
			return nil, closeAll, err
		}
		all = append(all, f)
	}
	return all, closeAll, nil
}

// reached is a connection to a collector. Where it cannot be made, the error of a call is why, as this program found: gRPC gives it in a
// status, in words that a collector could send too.
type reached struct {
	*grpc.ClientConn
	failed *atomic.Pointer[error]
}

// Invoke implements grpc.ClientConnInterface.
func (r reached) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	err := r.ClientConn.Invoke(ctx, method, args, reply, opts...)
	if failed := r.failed.Load(); err != nil && failed != nil {
		return *failed
	}
	return err
}

// handshakes makes each with what the files say then, and keeps why one failed.
type handshakes struct {
	credentials.TransportCredentials
	secure func() (*tls.Config, error)
	failed *atomic.Pointer[error]
}

// ClientHandshake implements credentials.TransportCredentials.
func (h handshakes) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (conn net.Conn, info credentials.AuthInfo, err error) {
	speaks, err := speaking(h.secure)
	if err == nil {
		conn, info, err = speaks.ClientHandshake(ctx, authority, raw)
	}
	h.failed.Store(nil)
	if err != nil {
		h.failed.Store(&err)
	}
	return conn, info, err
}

// Clone implements credentials.TransportCredentials.
func (h handshakes) Clone() credentials.TransportCredentials {
	return handshakes{h.TransportCredentials.Clone(), h.secure, h.failed}
}

// speaking is how a connection is spoken on.
func speaking(secure func() (*tls.Config, error)) (credentials.TransportCredentials, error) {
	switch cfg, err := secure(); {
	case err != nil:
		return nil, err
	case cfg == nil:
		return insecure.NewCredentials(), nil
	default:
		return credentials.NewTLS(cfg), nil
	}
}

// collector returns a connection that the judged dialer makes.
func collector(address string, secure func() (*tls.Config, error), out *dialer.Dialer) (reached, error) {
	speaks, err := speaking(secure)
	if err != nil {
		return reached{}, err
	}
	failed := &atomic.Pointer[error]{}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(handshakes{speaks, secure, failed}), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := out.DialContext(ctx, "tcp", address)
			if err != nil {
				failed.Store(&err)
			}
			return conn, err
		}))
	return reached{conn, failed}, err
}
