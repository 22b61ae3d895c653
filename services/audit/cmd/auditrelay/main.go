// Command auditrelay is what goes out for audit, which dials nobody: it carries checkpoints of the log to witnesses, and their
// cosignatures back, and forwards records to collectors of others' where audit's file allows it. It has a Unix user and a certificate of
// its own (spiffe://TRUST_DOMAIN/relay/main), and no key of the log's.
package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/audit/internal/relay"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/release"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/telemetry"
)

// version is the program's, as Git and the linker have it.
var version = release.Version()

const (
	// defaultInterval is how often witnesses are asked.
	defaultInterval = 10 * time.Second
	minInterval     = time.Second
	maxInterval     = 24 * time.Hour
	// patience is how long a witness may take.
	patience = 10 * time.Second
	// maxAnswer bounds what a witness answers.
	maxAnswer = 16 << 10
)

// settings is auditrelay.yaml.
type settings struct {
	config.Guarded `yaml:",inline"`
	// Audit is where audit is. Required.
	Audit config.Peer `yaml:"audit"`
	// Witnesses are the URLs of the witnesses, to which /add-checkpoint is added. Optional. Nothing but witnesses and destinations is ever
	// dialled.
	Witnesses []string `yaml:"witnesses"`
	// Forward are the destinations of records. Optional.
	Forward []forwarding `yaml:"forward"`
	// StateDir keeps how far each destination is. Required with one.
	StateDir string `yaml:"state_dir"`
	// Authorities is a PEM file with the authorities of the witnesses' TLS certificates. Optional; the system's.
	Authorities string `yaml:"authorities"`
	// Interval is how often they are asked. Optional; 10s.
	Interval string `yaml:"interval"`
	// TrustDir and TLS are as in the other processes' files. Required.
	TrustDir string        `yaml:"trust_dir"`
	TLS      config.OwnTLS `yaml:"tls"`
	// HealthListen is where GET /health and /metrics answer, on loopback or a Unix socket. Optional; nowhere.
	HealthListen string `yaml:"health_listen"`
	// LogLevel is debug, info (the default), warn or error.
	LogLevel string `yaml:"log_level"`

	common   config.Common
	interval time.Duration
	// development is set by -development and by nothing else.
	development bool
}

// Shared implements process.Settings.
func (s *settings) Shared() *config.Common {
	s.common.TrustDir, s.common.TLS, s.common.LogLevel, s.common.StateDir, s.common.HealthListen = s.TrustDir, s.TLS, s.LogLevel, s.StateDir, s.HealthListen
	return &s.common
}

// InDevelopment and Obeyed implement process.Guarded.
func (s *settings) InDevelopment() bool { return s.development }
func (s *settings) Obeyed() []string    { return nil }

// Validate checks the whole file.
func (s *settings) Validate() error {
	var problems []error
	if err := s.Audit.Validate(); err != nil {
		problems = append(problems, fmt.Errorf("audit: %w", err))
	}
	forwarding := s.checkForward()
	problems = append(problems, config.CheckAbsolute(map[string]string{"trust_dir": s.TrustDir}, map[string]string{"authorities": s.Authorities}), s.TLS.Validate(), forwarding)
	if _, err := s.dialer(nil); err != nil && forwarding == nil {
		problems = append(problems, err)
	}
	if s.HealthListen != "" {
		if err := config.CheckListen(s.HealthListen, false); err != nil {
			problems = append(problems, fmt.Errorf("health_listen: %w", err))
		}
	}
	var err error
	if s.interval, err = time.ParseDuration(cmp.Or(s.Interval, defaultInterval.String())); err != nil || s.interval < minInterval || s.interval > maxInterval {
		problems = append(problems, fmt.Errorf("interval: must be %s to %s, like 10s", minInterval, maxInterval))
	}
	return errors.Join(problems...)
}

// dialer returns what dials the witnesses and the destinations and nobody else. One that the file names by its address may be anywhere,
// also on this machine; one that it names by a name is reached on public addresses alone.
func (s *settings) dialer(roots *x509.CertPool) (*dialer.Dialer, error) {
	cfg := dialer.Config{Roots: roots, Ports: []uint16{}, Limits: dialer.Limits{Whole: patience, Body: maxAnswer}}
	var only []destination.Destination
	for i, url := range s.Witnesses {
		_, to, err := destination.ParseURL(url)
		if err != nil {
			return nil, fmt.Errorf("witnesses[%d]: %w", i, err)
		}
		only = append(only, to)
	}
	for i, d := range s.Forward {
		to, err := d.to()
		if err != nil {
			return nil, fmt.Errorf("forward[%d]: %w", i, err)
		}
		only = append(only, to)
	}
	for _, to := range only {
		cfg.Ports = append(cfg.Ports, to.Port)
		if addr, err := netip.ParseAddr(to.Host); err == nil && dialer.Special(addr) != "" {
			cfg.Local = append(cfg.Local, netip.AddrPortFrom(addr, to.Port))
		}
	}
	cfg.Allow = destination.Only(only...)
	return dialer.New(cfg)
}

func main() {
	s := &settings{}
	os.Exit(process.Main(process.Program{
		Name: "auditrelay", Version: version, Settings: s,
		Flags: func(f *flag.FlagSet) {
			f.BoolVar(&s.development, "development", false, "one Unix user runs everything: gateway_user is not looked at")
		},
		Check: s.check,
		Run:   func(ctx context.Context, logger *slog.Logger) error { return run(ctx, s, logger) },
	}, os.Args[1:], os.Stdout, os.Stderr))
}

// authorities reads a PEM file; nil for "".
func authorities(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("authorities: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("authorities: %s holds no certificate", path)
	}
	return pool, nil
}

// check looks at the files that the configuration names.
func (s *settings) check() error {
	_, err := authorities(s.Authorities)
	problems := []error{err}
	for i, d := range s.Forward {
		if _, err := d.tls(); err != nil {
			problems = append(problems, fmt.Errorf("forward[%d]: %w", i, err))
		}
	}
	return errors.Join(problems...)
}

func run(ctx context.Context, s *settings, logger *slog.Logger) error {
	roots, self, err := process.OpenIdentity(ctx, logger, s.Shared())
	if err != nil {
		return err
	}
	defer roots.Close()
	pool, err := authorities(s.Authorities)
	if err != nil {
		return err
	}
	out, err := s.dialer(pool)
	if err != nil {
		return err
	}
	conn, err := process.Dial(self, s.Audit, logger)
	if err != nil {
		return err
	}
	defer conn.Close()
	forwarders, closeForwarders, err := s.forwarders(auditv1.NewForwardServiceClient(conn), logger)
	if err != nil {
		return err
	}
	defer closeForwarders()
	var working sync.WaitGroup
	if s.HealthListen != "" {
		tel, err := telemetry.Open(telemetry.Config{Service: "auditrelay", Version: version, Lifetime: self.Lifetime})
		if err != nil {
			return err
		}
		defer tel.Close()
		health, err := rpc.Listen(s.HealthListen, false)
		if err != nil {
			return err
		}
		working.Go(func() {
			if err := tel.Serve(ctx, health, func() error { return nil }); err != nil {
				logger.Error("nobody can ask how the relay is", "error", err)
			}
		})
	}
	logger.Info("relaying", "witnesses", len(s.Witnesses), "interval", s.interval.String(), "destinations", len(s.Forward))
	if len(s.Witnesses) == 0 && len(s.Forward) == 0 {
		logger.Warn("there is nothing to do: the file names no witness and no destination")
		<-ctx.Done()
	}
	for _, f := range forwarders {
		working.Go(func() { f.Run(ctx) })
	}
	if len(s.Witnesses) > 0 {
		working.Go(func() {
			relay.New(relay.Config{
				Audit: auditv1.NewWitnessServiceClient(conn), URLs: s.Witnesses, Do: out, Interval: s.interval, Logger: logger,
				Witnesses: func() logproof.Witnesses { return roots.Current().Witnesses },
			}).Run(ctx)
		})
	}
	working.Wait()
	return nil
}
