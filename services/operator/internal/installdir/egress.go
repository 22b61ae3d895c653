package installdir

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"

	"durward.internal/services/operator/internal/edit"
)

// egressOffset is egress' port, from the gateway's.
const egressOffset = 4

// egressValues fill in the template of egress.yaml.
type egressValues struct {
	Config       Config
	Home         Home
	GRPC, Health string
}

// TLS is a file of egress' identity, and Domains the list of domains.
func (v egressValues) TLS(file string) string { return v.Home.TLS(roleEgress, file) }
func (v egressValues) Domains() string        { return v.Home.Security("domains.yaml") }

// Identity writes a process's SPIFFE ID.
func (v egressValues) Identity(role string) (string, error) {
	id, err := ProcessIdentity(role, v.Config.Operator)
	return id.String(), err
}

// Own are the addresses at which the installation listens.
func (v egressValues) Own() []string {
	return append(notifyValues{Config: v.Config}.Own(), v.GRPC, v.Health)
}

// AddEgress adds egress to a home that has none: its folder, its certificate and its configuration, and to the files of those who speak to
// it where it is. It reports whether there was none.
func (h Home) AddEgress(cfg Config) (added bool, err error) {
	if cfg.Egress != nil {
		return false, nil
	}
	if !h.hasAuthority() {
		return false, errors.New("this folder has no certificate authority, so it can have no process of its own")
	}
	// Its ports lie beside the gateway's own.
	gateway, err := netip.ParseAddrPort(cfg.Health.Gateway)
	if err != nil {
		return false, errors.New("the gateway's health listener is not at an address and port, so egress has none beside it")
	}
	at := func(port int) string { return net.JoinHostPort(gateway.Addr().String(), strconv.Itoa(port)) }
	health := int(gateway.Port()) + egressOffset
	v := egressValues{Config: cfg, Home: h, GRPC: at(health - healthOffset), Health: at(health)}
	if own, err := ReadListeners(h.Config(roleEgress)); err == nil { // it is there, and operator.yaml is new
		v.GRPC, v.Health = own.Listen, own.HealthListen
	}
	if err := os.MkdirAll(h.State(roleEgress), 0o700); err != nil {
		return false, err
	}
	id, err := h.certify(roleEgress, cfg.Operator)
	if err != nil {
		return false, err
	}
	for template, path := range map[string]string{roleEgress: h.Config(roleEgress), "domains": v.Domains()} {
		if _, err := renderOnce(path, template, v); err != nil {
			return false, err
		}
	}
	peer := "\n# The process that reaches other hosts.\negress:\n  address: " + v.GRPC + "\n  identity: " + id.String() + "\n"
	// The operator's file last: it says that egress is there.
	for _, change := range []struct {
		name string
		make func([]byte) ([]byte, error)
	}{
		{"vault", func(raw []byte) ([]byte, error) {
			if bytes.Contains(raw, []byte(id.String())) {
				return raw, nil
			}
			return edit.Append(raw, "sinks", "role: "+roleEgress+"\nidentity: "+id.String())
		}},
		{"gateway", func(raw []byte) ([]byte, error) { return withPeer(raw, peer), nil }},
		{"operator", func(raw []byte) ([]byte, error) {
			return bytes.Replace(withPeer(raw, peer), []byte("\nhealth:\n"), []byte("\nhealth:\n  egress: "+v.Health+"\n"), 1), nil
		}},
	} {
		before, err := os.ReadFile(h.Config(change.name))
		if err != nil {
			return false, err
		}
		after, err := change.make(before)
		if err != nil {
			return false, err
		}
		if !bytes.Equal(before, after) {
			if err := WriteFile(h.Config(change.name), after, 0o600); err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

func withPeer(raw []byte, peer string) []byte {
	if bytes.Contains(raw, []byte("\negress:\n")) {
		return raw
	}
	return append(bytes.TrimRight(raw, "\n"), []byte("\n"+peer)...)
}
