// Command gateway is the untrusted edge: agents speak MCP to it over HTTP, and it relays to the processes that decide and
// act. It holds no secret beyond its own TLS key, no database, and no state but limits and sessions in memory.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"durward.internal/gateway/internal/httpfront"
	"durward.internal/gateway/internal/limit"
	"durward.internal/gateway/internal/metrics"
	"durward.internal/gateway/internal/refusal"
	"durward.internal/gateway/internal/relay"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/downstream/inforce"
	"durward.internal/services/platform/downstream/validator"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/release"
	"durward.internal/services/platform/telemetry"
)

// version is the program's, as Git and the linker have it.
var version = release.Version()

// settings is the gateway's file; deploy/config/gateway.yaml is the documented example.
type settings struct {
	config.Common `yaml:",inline"`
	// Vault, Executor and Audit are the peers. Required.
	Vault    config.Peer `yaml:"vault"`
	Executor config.Peer `yaml:"executor"`
	Audit    config.Peer `yaml:"audit"`
	// Egress is where tools run that reach other hosts. Optional: without it there are none.
	Egress config.Peer `yaml:"egress"`
	// MCPTLS is the certificate and key that clients see: with it MCP is served over TLS 1.3 alone, and they are read again when
	// they change. Required with -dangerous-allow-remote. Default: none, MCP is served in clear on loopback.
	MCPTLS config.TLS `yaml:"mcp_tls"`
	// AllowedHosts are further host names, without ports, that clients may address the gateway by. Default: loopback names alone.
	AllowedHosts []string `yaml:"allowed_hosts"`
	// AllowedOrigins are web origins whose pages may call the gateway, "https://console.example". Read again when the file
	// changes. Default: none.
	AllowedOrigins []string `yaml:"allowed_origins"`
	// HoldS is how many seconds a call waits for a human's decision before it answers pending_approval: 1 to 45, since
	// clients give up at 60. Default 45.
	HoldS int `yaml:"hold_s"`
	// SessionIdleS is after how many idle seconds a client's session ends: 60 to 28800. Default 1800.
	SessionIdleS int `yaml:"session_idle_s"`
	// SessionsPerPrincipal is how many sessions a client keeps, 1 to 1024; a further one ends the one that has been idle
	// longest. Default 32.
	SessionsPerPrincipal int `yaml:"sessions_per_principal"`
	// Pages are the clients, by their ids in clients.yaml, whose tools/list holds every tool of other people's servers that they may
	// call, in pages. Default: none, what does not fit one page is found by find_tools.
	Pages []string `yaml:"pages"`
	// ThroughSDK has the MCP SDK serve every message: without it, reads of the host's state are answered where they were understood,
	// at a fraction of the cost. The answers are the same. Default false.
	ThroughSDK bool `yaml:"through_sdk"`
	// Limits are how often a client may ask, and how much it may have open. Default: those of SEC-R2.
	Limits limit.Config `yaml:"limits"`
}

// memoryLimitMiB is the default soft memory limit: more than other processes', since the SDK allocates much for each message
// and a small heap would be collected all the time.
const memoryLimitMiB = 44

// Validate implements process.Settings. It also fills in the defaults.
func (s *settings) Validate() error {
	problems := []error{s.Common.Validate(), s.Limits.Validate()}
	peers := map[string]config.Peer{"vault": s.Vault, "executor": s.Executor, "audit": s.Audit}
	if s.Egress.Address != "" || s.Egress.Identity != "" {
		peers["egress"] = s.Egress
	}
	for name, peer := range peers {
		if err := peer.Validate(); err != nil {
			problems = append(problems, fmt.Errorf("%s.%w", name, err))
		} else if _, err := identity.Parse(peer.Identity); err != nil {
			problems = append(problems, fmt.Errorf("%s.identity: %w", name, err))
		}
	}
	switch given := s.MCPTLS != (config.TLS{}); {
	case given && (!filepath.IsAbs(s.MCPTLS.Certificate) || !filepath.IsAbs(s.MCPTLS.Key)):
		problems = append(problems, errors.New("mcp_tls: takes a certificate and a key, both with absolute paths"))
	case !given && s.AllowRemote:
		problems = append(problems, errors.New("mcp_tls: is required with -dangerous-allow-remote, since tokens would cross the network in clear"))
	}
	for _, host := range s.AllowedHosts {
		if host == "" || host != strings.ToLower(host) || strings.ContainsAny(host, ":/ *") {
			problems = append(problems, fmt.Errorf("allowed_hosts: %q must be a host name in lower case, without port", host))
		}
	}
	for _, origin := range s.AllowedOrigins {
		if u, err := url.Parse(origin); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || origin != u.Scheme+"://"+u.Host {
			problems = append(problems, fmt.Errorf("allowed_origins: %q must be scheme://host[:port]", origin))
		}
	}
	s.MemoryLimitMiB = cmp.Or(s.MemoryLimitMiB, memoryLimitMiB)
	problems = append(problems, limit.Fill("", []limit.Number{
		{Name: "hold_s", Value: &s.HoldS, Standard: 45, Low: 1, Top: 45},
		{Name: "session_idle_s", Value: &s.SessionIdleS, Standard: 1800, Low: 60, Top: 28800},
		{Name: "sessions_per_principal", Value: &s.SessionsPerPrincipal, Standard: 32, Low: 1, Top: 1024},
	})...)
	return errors.Join(problems...)
}

func main() {
	s := new(settings)
	var file *flag.Flag
	os.Exit(process.Main(process.Program{
		Name: "gateway", Version: version, Settings: s,
		Flags: func(flags *flag.FlagSet) {
			file = flags.Lookup("config")
			guardFlags(flags)
		},
		Run: func(ctx context.Context, logger *slog.Logger) error { return run(ctx, s, file.Value.String(), logger) },
	}, os.Args[1:], os.Stdout, os.Stderr))
}

// deliverTimeout is how long the last records may take to reach audit.
const deliverTimeout = 2 * time.Second

// run opens what the gateway stands on, and serves upon it, with settings that were read from a file; without its name, nothing is read
// again.
func run(ctx context.Context, s *settings, file string, logger *slog.Logger) (err error) {
	roots, self, err := process.OpenIdentity(ctx, logger, s.Shared())
	if err != nil {
		return err
	}
	defer roots.Close()
	tel, err := telemetry.Open(telemetry.Config{
		Service: "gateway", Version: version, Settings: s.Telemetry, Lifetime: self.Lifetime, Methods: httpfront.Methods(),
	})
	if err != nil {
		return err
	}
	defer tel.Close()
	edgeMetrics := metrics.New(tel, httpfront.Methods())
	vault, err := process.Dial(self, s.Vault, logger)
	if err != nil {
		return err
	}
	defer vault.Close()
	waits, err := process.Dial(self, s.Vault, logger)
	if err != nil {
		return err
	}
	defer waits.Close()
	executor, err := process.Dial(self, s.Executor, logger)
	if err != nil {
		return err
	}
	defer executor.Close()
	audit, err := process.Dial(self, s.Audit, logger)
	if err != nil {
		return err
	}
	defer audit.Close()

	records, err := recorder.Open(ctx, audit, s.Audit.Identity, roots, recorder.Config{
		Writer: self.ID().String(), MaxSpooled: refusal.MaxWaiting, Logger: logger, OnAppend: tel.ObserveAppend,
	})
	if err != nil {
		return err
	}
	tel.WatchRecorder(records)
	// Last of all, so that records are delivered for as long as anything can still be refused.
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), deliverTimeout)
		defer cancel()
		err = errors.Join(err, records.Close(last))
	}()
	refusals, err := refusal.New(records, logger)
	if err != nil {
		return err
	}
	ways := relay.Config{Vault: vault, Waits: waits, Executor: executor, Logger: logger}
	if s.Egress.Address != "" {
		egress, err := process.Dial(self, s.Egress, logger)
		if err != nil {
			return err
		}
		defer egress.Close()
		ways.Egress = egress
	}
	peers, err := relay.New(ways)
	if err != nil {
		return err
	}
	if file != "" {
		// Changes are recorded by vault and egress: audit takes no such record from the edge.
		others := inforce.Open(ctx, inforce.Config{
			Folder: filepath.Dir(file), TrustDir: s.TrustDir, Unconfined: true, Compiler: validator.Compile, Logger: logger,
			OnChange: func([]downstream.Pinned) { peers.ListsChanged() },
		})
		go others.Watch(ctx)
	}
	return ground{
		settings: s, file: file, tel: tel, metrics: edgeMetrics, vault: vault, executor: executor, records: records, refusals: refusals,
		relay: peers, logger: logger,
	}.serve(ctx)
}
