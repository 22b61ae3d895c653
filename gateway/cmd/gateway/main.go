// Command gateway is the untrusted edge: agents speak MCP to it over HTTP, and it relays to the processes that decide and
// act. It holds no secret beyond its own TLS key, no database, and no state but limits and sessions in memory.
package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"durward.internal/gateway/internal/connlimit"
	"durward.internal/gateway/internal/cors"
	"durward.internal/gateway/internal/head"
	"durward.internal/gateway/internal/httpfront"
	"durward.internal/gateway/internal/limit"
	"durward.internal/gateway/internal/mcpserver"
	"durward.internal/gateway/internal/metrics"
	"durward.internal/gateway/internal/refusal"
	"durward.internal/gateway/internal/relay"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
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

// Bounds of the HTTP server. There is no write timeout: an answer may take as long as a human.
const (
	headerTimeout = 5 * time.Second
	bodyTimeout   = 15 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10
	drainTimeout  = 5 * time.Second
)

// deliverTimeout is how long the last records may take to reach audit.
const deliverTimeout = 2 * time.Second

// run serves with settings that were read from a file; without its name, nothing is read again.
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
	server, err := mcpserver.New(mcpserver.Config{
		Relay: peers, Refusals: refusals, Metrics: edgeMetrics, Logger: logger, Version: version,
		Hold:           time.Duration(s.HoldS) * time.Second,
		SessionTimeout: time.Duration(s.SessionIdleS) * time.Second,
		Limits:         &s.Limits,
		Pages:          s.Pages,
		Draining:       ctx.Done(),
	})
	if err != nil {
		return err
	}
	var direct httpfront.Direct
	if !s.ThroughSDK {
		direct = server.Direct
	}
	origins := cors.NewOrigins(s.AllowedOrigins...)
	edge, err := httpfront.New(httpfront.Config{
		Direct: direct, Sessions: peers, Stateful: server.Handler(httpfront.Stateful), Stateless: server.Handler(httpfront.Stateless),
		Refusals: refusals, Metrics: edgeMetrics, Logger: logger, Hosts: s.AllowedHosts, Origins: origins,
		SessionsPerPrincipal: s.SessionsPerPrincipal, SessionIdle: time.Duration(s.SessionIdleS) * time.Second,
		Limits: s.Limits,
	})
	if err != nil {
		return err
	}
	var shown *certificate
	if s.MCPTLS != (config.TLS{}) {
		if shown, err = openCertificate(identity.Files(s.MCPTLS)); err != nil {
			return err
		}
		process.Watch(ctx, logger, "certificate for MCP clients", shown.Reload)
	}
	listener, health, err := process.Listen(s.Shared())
	if err != nil {
		return err
	}
	conns := connlimit.New(s.Limits)
	edgeMetrics.Gauge("durward_gateway_connections", "Open connections of clients.", func() int { all, _, _ := conns.Count(); return all })
	edgeMetrics.Gauge("durward_gateway_connections_limit", "How many connections there may be.", func() int { return s.Limits.Connections })
	edgeMetrics.Gauge("durward_gateway_sessions", "Open sessions of clients, of both eras.", edge.Sessions)
	edgeMetrics.Gauge("durward_gateway_subscriptions", "Subscriptions of clients to resources.", server.Subscriptions)
	scheme := "http://"
	if shown != nil {
		scheme = "https://"
	}
	logger.Info("serving", "mcp", scheme+listener.Addr().String()+httpfront.Path)

	process.Note(ctx, records, logger, "gateway "+version, auditv1.Kind_KIND_STARTED)
	group, serving := errgroup.WithContext(ctx)
	group.Go(func() error { return tel.Serve(serving, health, nil) })
	group.Go(func() error { peers.WatchSessions(serving); return nil })
	group.Go(func() error { server.TellLists(serving); return nil })
	group.Go(func() error {
		tellHealth(serving, vaultv1.NewSessionServiceClient(vault), func(ctx context.Context) *vaultv1.GatewayHealth {
			return &vaultv1.GatewayHealth{
				ExecutorReachable: executor.Reach(ctx, reachPatience), AuditReachable: recording(ctx, records.Reachable),
				OpenSessions: uint32(max(edge.Sessions(), 0)), SpooledRecords: uint32(max(records.Depth(), 0)),
			}
		})
		return nil
	})
	if file != "" {
		again := newReloader(file, s, origins.Set, logger)
		process.Watch(serving, logger, "gateway.yaml", again.Err)
		group.Go(func() error { again.Run(serving); return nil })
	}
	draining, served := context.WithCancel(context.WithoutCancel(ctx)) // who drains may still be refused
	group.Go(func() error { refusals.Run(draining, 10*time.Second); return nil })
	group.Go(func() error {
		defer served()
		return serve(serving, listener, shown, edge, cors.Handler(origins, edge), conns)
	})
	err = group.Wait()
	process.Note(ctx, records, logger, "gateway "+version, auditv1.Kind_KIND_STOPPED)
	return err
}

// serve serves HTTP by handler, over TLS where there is a certificate, until ctx ends; then it lets calls finish and ends every session.
func serve(ctx context.Context, listener net.Listener, shown *certificate, edge *httpfront.Front, handler http.Handler, conns *connlimit.Conns) error {
	listener = conns.Listen(listener)
	if shown != nil {
		listener = tls.NewListener(listener, listenTLS(shown))
	}
	listener = head.Listen(listener)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // one request at a time on a connection, so that what bounds connections bounds requests
	web := &http.Server{
		Protocols:         protocols,
		ConnContext:       head.Context(conns.Context),
		Handler:           head.Handler(handler),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       bodyTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          log.New(io.Discard, "", 0), // it repeats what strangers send
	}
	web.RegisterOnShutdown(edge.EndStreams)
	var draining sync.WaitGroup
	draining.Add(1)
	stop := context.AfterFunc(ctx, func() {
		defer draining.Done()
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		if err := web.Shutdown(end); err != nil {
			_ = web.Close() // what did not end in time is cut off
		}
		edge.Close(end)
	})
	if err := web.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		if stop() {
			draining.Done()
		}
		return fmt.Errorf("serve MCP: %w", err)
	}
	draining.Wait()
	return nil
}
