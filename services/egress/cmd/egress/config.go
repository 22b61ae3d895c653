package main

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/egress/internal/server"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/sink/wiring"
	"durward.internal/services/platform/suspicion"
)

// settings is egress' configuration file.
type settings struct {
	config.Common  `yaml:",inline"`
	config.Guarded `yaml:",inline"`

	// Vault redeems grants and is told of outcomes. Required.
	Vault config.Peer `yaml:"vault"`
	// Audit gets every record. Required.
	Audit config.Peer `yaml:"audit"`
	// Domains is the list of domains that agents may reach, and of those that they may not: domains.yaml in the vault's security_dir, which
	// judges by it too. Beside it, users/USER/domains.yaml is for the clients of one user, and projects.yaml names the projects that may block
	// more. Read again within a second of a change. One that is not there lists nothing. Required, absolute.
	Domains string `yaml:"domains"`
	// Unattended lists calls beyond READ that run here on a grant without a human's statement, as in the executor's file. DANGEROUS:
	// whoever controls the vault can then make them. A tool of another's server is SERVER__TOOL; while no server in force has it the
	// entry lets nothing run, and the log says so. Empty: none. Read again within a second when the file changes.
	Unattended []any `yaml:"unattended"`

	// Launcher is where durward-launcher listens, which starts other people's MCP servers under a Unix user of its own:
	// "unix:/run/durward/launcher/launcher.sock,user=durward-launcher". Empty: none is started, and in development egress starts them itself.
	Launcher string `yaml:"launcher"`

	// RefuseSuspicious is from which severity on (low, medium or high) a suspicious host that is on no list is refused, whatever a human
	// says to one call; such flags stand on the card in any case. Empty or off: none is.
	RefuseSuspicious string `yaml:"refuse_suspicious"`

	// Reports is what agents' reports on their own requests (security_report) hold.
	Reports struct {
		// Severity is from which severity on what is wrong with a name is told: low, medium or high. Empty: low.
		Severity string `yaml:"severity"`
		// SeverityOverrideMax is the highest that a call's severity_override may ask for: the lower, the less an agent can leave out.
		// Empty: severity, so that a call can ask for more alone.
		SeverityOverrideMax string `yaml:"severity_override_max"`
	} `yaml:"reports"`

	// Ports are those of other hosts that are dialled. Not given: 80 and 443.
	Ports []uint16 `yaml:"ports"`
	// Local are loopback, private and other special addresses, each with its port, that may be dialled all the same: "127.0.0.1:8080".
	// DANGEROUS: an agent whose list has the address then reaches that service, past whatever keeps others out. Empty: none.
	Local []netip.AddrPort `yaml:"local"`
	// Catalogue is the executor's, a file or a folder: no service's port is dialled on loopback, though Local names it. It is read when such an
	// address is to be dialled; one that cannot be read lets none be. Optional, absolute; empty: none is read.
	Catalogue string `yaml:"catalogue"`
	// Own are the addresses at which Durward's processes listen: never dialled, though Local names them. One of loopback stands for its port
	// on every address of loopback.
	Own []netip.AddrPort `yaml:"own"`
	// Upstream is an HTTP proxy, IP:PORT, through which other hosts are reached; it is asked for judged addresses, never for names. Empty:
	// they are dialled directly. No variable of the environment names one.
	Upstream string `yaml:"upstream"`
	// Authorities is a PEM file of the authorities of TLS servers, an absolute path. Empty: the system's.
	Authorities string `yaml:"authorities"`
	// Redirects is how many are followed in one call, 0 to 20. Not given: 5.
	Redirects *int `yaml:"redirects"`
	// Limits bound each request.
	Limits struct {
		// WholeS is the most seconds that one takes, redirects and body too, 1 to 600; 0 means 30.
		WholeS int `yaml:"whole_s"`
		// BodyKiB is the most of an answer, as it comes and decompressed, 1 to 16384; 0 means 1024.
		BodyKiB int `yaml:"body_kib"`
	} `yaml:"limits"`

	// development is set by -development and by nothing else.
	development bool
	// path is the file's own, by the command line.
	path func() string
}

// InDevelopment and Obeyed implement process.Guarded.
func (s *settings) InDevelopment() bool { return s.development }
func (s *settings) Obeyed() []string    { return []string{filepath.Dir(s.Domains)} }

// Rules implements wiring.Settings.
func (s *settings) Rules() (unattended []any, others any) {
	rest := *s
	rest.Unattended, rest.path, rest.development = nil, nil, false
	return s.Unattended, rest
}

// Validate checks the whole file.
func (s *settings) Validate() error {
	problems := []error{
		s.Common.Validate(), wiring.CheckPeers(s.Vault, s.Audit),
		config.CheckAbsolute(map[string]string{"domains": s.Domains}, map[string]string{"catalogue": s.Catalogue, "authorities": s.Authorities}),
	}
	if at, err := config.ParseUnix(s.Launcher); s.Launcher != "" && (err != nil || len(at.Users) != 1 || len(at.Groups) > 0) {
		problems = append(problems, errors.New("launcher: must be unix:PATH,user=NAME, with the one user who listens there"))
	}
	if s.Redirects != nil && (*s.Redirects < 0 || *s.Redirects > 20) {
		problems = append(problems, errors.New("redirects: must be 0 to 20"))
	}
	if s.Limits.WholeS < 0 || s.Limits.WholeS > 600 {
		problems = append(problems, errors.New("limits.whole_s: must be 1 to 600, or 0 for 30"))
	}
	if s.Limits.BodyKiB < 0 || s.Limits.BodyKiB > 16<<10 {
		problems = append(problems, errors.New("limits.body_kib: must be 1 to 16384, or 0 for 1024"))
	}
	if _, err := suspicion.ParseSeverity(s.RefuseSuspicious); err != nil {
		problems = append(problems, fmt.Errorf("refuse_suspicious: %w", err))
	}
	if _, err := s.reports(); err != nil {
		problems = append(problems, err)
	}
	if _, err := wiring.CheckUnattended(s.Unattended, optionsv1.Role_ROLE_EGRESS); err != nil {
		problems = append(problems, err)
	}
	if _, err := s.dialer(); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// reports is what agents' own reports hold.
func (s *settings) reports() (r server.Reports, err error) {
	if r.From, err = suspicion.ParseSeverity(cmp.Or(s.Reports.Severity, suspicion.Low.String())); err != nil {
		return r, fmt.Errorf("reports.severity: %w", err)
	}
	if r.Most, err = suspicion.ParseSeverity(cmp.Or(s.Reports.SeverityOverrideMax, r.From.String())); err != nil {
		return r, fmt.Errorf("reports.severity_override_max: %w", err)
	}
	if r.From == suspicion.None || r.Most < r.From {
		return r, errors.New("reports: severity must be low, medium or high, and severity_override_max no lower")
	}
	r.Version = version
	return r, nil
}

// dialer is the way out that the file describes; where it leads is the list's to say.
func (s *settings) dialer() (dialer.Config, error) {
	cfg := dialer.Config{
		Ports: s.Ports, Local: s.Local, Own: s.own, Redirects: 5,
		Limits: dialer.Limits{Whole: time.Duration(s.Limits.WholeS) * time.Second, Body: int64(s.Limits.BodyKiB) << 10},
	}
	cfg.Limits.Whole = cmp.Or(cfg.Limits.Whole, 30*time.Second)
	if s.Redirects != nil {
		cfg.Redirects = *s.Redirects
	}
	if s.Upstream != "" {
		var err error
		if cfg.Upstream, err = netip.ParseAddrPort(s.Upstream); err != nil {
			return cfg, errors.New("upstream: must be IP:PORT")
		}
	}
	if s.Authorities != "" {
		pem, err := os.ReadFile(s.Authorities)
		if err != nil {
			return cfg, fmt.Errorf("authorities: %w", err)
		}
		cfg.Roots = x509.NewCertPool()
		if !cfg.Roots.AppendCertsFromPEM(pem) {
			return cfg, errors.New("authorities: holds no certificate")
		}
	}
	for _, local := range s.Local {
		if s.own(local) {
			return cfg, fmt.Errorf("local: %s is Durward's own, or a service's: it is never dialled", local)
		}
	}
	return cfg, nil
}

// own reports whether Durward itself, or a service of the catalogue, listens at an address.
func (s *settings) own(a netip.AddrPort) bool {
	if here := a.Addr().IsLoopback() || a.Addr().IsUnspecified(); here && s.Catalogue != "" {
		if ports, err := catalog.Ports(s.Catalogue); err != nil || ports[a.Port()] {
			return true
		}
	}
	return slices.ContainsFunc(s.Own, func(o netip.AddrPort) bool {
		return o == a || o.Port() == a.Port() && o.Addr().IsLoopback() && (a.Addr().IsLoopback() || a.Addr().IsUnspecified())
	})
}
