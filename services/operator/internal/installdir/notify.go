package installdir

import (
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/pki"
)

// notifier is the role of the program that tells an operator what waits, and the name of its folder below tls/.
const notifier = "notifier"

// notifyValues fill in the template of notify.yaml.
type notifyValues struct {
	Config  Config
	Command string
	home    Home
	tls     string
}

// TLS is a file of the notifier's identity.
func (v notifyValues) TLS(file string) string { return filepath.Join(v.tls, file) }

// Keys is a file beside the operator's other secrets.
func (v notifyValues) Keys(name string) string { return v.home.Key(name) }

// Own are the addresses at which the installation listens; Unix sockets are dialled by nobody.
func (v notifyValues) Own() []string {
	c, own := v.Config, []string{}
	addresses := []string{c.Vault.Address, c.Executor.Address, c.Audit.Address, c.Health.Gateway, c.Health.Vault, c.Health.Executor, c.Health.Audit}
	if c.Egress != nil {
		addresses = append(addresses, c.Egress.Address, c.Health.Egress)
	}
	addresses = slices.Concat(addresses, c.Vault.Standbys, c.Audit.Standbys)
	if u, err := url.Parse(c.MCPURL); err == nil {
		addresses = append(addresses, net.JoinHostPort(u.Hostname(), u.Port()))
	}
	for _, address := range addresses {
		if _, err := netip.ParseAddrPort(address); err == nil && !config.IsUnix(address) {
			own = append(own, address)
		}
	}
	return own
}

// hasAuthority reports whether certificates are issued in this home, and not by root for the whole host.
func (h Home) hasAuthority() bool {
	need, err := missing(h.PKI(pki.FileCAKey))
	return err == nil && !need
}

// notifierTLS is the folder of the notifier's certificate: in this home, or beside the operators' where root issues them.
func (h Home) notifierTLS(cfg Config) string {
	if h.hasAuthority() {
		return h.path("tls", notifier)
	}
	return filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(cfg.TLS.Certificate))), notifier+"s", cfg.Operator)
}

// InitNotify makes what is missing of what durward-notify needs: its configuration, and in a home with an authority its certificate, but
// where a Workload API supplies the operator's own.
// It returns the configuration's path and whether it was made. command is how the operator calls durward.
func (h Home) InitNotify(cfg Config, command string) (path string, made bool, err error) {
	path = h.Config("notify")
	if h.hasAuthority() && cfg.TLS.WorkloadAPI == "" {
		if _, err := h.certify(notifier, cfg.Operator); err != nil {
			return path, false, err
		}
	}
	made, err = renderOnce(path, "notify", notifyValues{cfg, command, h, h.notifierTLS(cfg)})
	return path, made, err
}
