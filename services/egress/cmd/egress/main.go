// Command egress is the process that reaches other hosts for agents. It goes where a human's list of domains lets it, or where a human
// said yes to this very call, judges every connection on the address that it dials, and acts only on a grant that it has verified
// itself, that the vault has redeemed, and whose intent is in the audit log.
//
// It trusts its configuration, its trust folder and the list of domains. Whatever other hosts answer is hostile.
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/egress/internal/domains"
	"durward.internal/services/egress/internal/sandbox"
	"durward.internal/services/egress/internal/server"
	"durward.internal/services/platform/backup/statecopy"
	"durward.internal/services/platform/deepcheck"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/release"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/security/ownership"
	"durward.internal/services/platform/sink"
	"durward.internal/services/platform/sink/calls"
	"durward.internal/services/platform/sink/sinkstore"
	"durward.internal/services/platform/sink/wiring"
	"durward.internal/services/platform/suspicion"
)

// version is the program's, as Git and the linker have it.
var version = release.Version()

func main() {
	if len(os.Args) > 1 && os.Args[1] == sandbox.RelayWord {
		os.Exit(sandbox.Relay(os.Args[2:]))
	}
	// Before anything is written: only this user may read it. Credentials pass through this memory: it is in no dump of a crash.
	syscall.Umask(0o077)
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	cfg := &settings{}
	var aside statecopy.Command
	os.Exit(process.Main(process.Program{
		Name:     "egress",
		Version:  version,
		Settings: cfg,
		Flags: func(flags *flag.FlagSet) {
			cfg.path = func() string { return flags.Lookup("config").Value.String() }
			flags.BoolVar(&cfg.development, "development", false, "one Unix user runs every process")
			aside.Flags(flags)
			drillFlags(flags)
		},
		Instead: func(ctx context.Context) (bool, error) {
			return aside.Run(ctx, sinkstore.Part("egress", version, cfg.StateDir, openState), os.Stdin, os.Stdout)
		},
		Run: func(ctx context.Context, logger *slog.Logger) error { return run(ctx, cfg, logger) },
	}, os.Args[1:], os.Stdout, os.Stderr))
}

func openState(ctx context.Context, folder string) (*sinkstore.Store, error) {
	return sinkstore.Open(ctx, sinkstore.Config{Service: "egress", StateDir: folder})
}

// run wires the process together and serves until ctx ends.
func run(ctx context.Context, cfg *settings, logger *slog.Logger) (err error) {
	l, err := wiring.Open(ctx, wiring.Config{
		Service: "egress", Version: version, Shared: cfg.Shared(), Vault: cfg.Vault, Audit: cfg.Audit, Relief: "a halt", Logger: logger,
	})
	defer func() { err = errors.Join(err, l.Close()) }()
	if err != nil {
		return err
	}
	state, err := reserve.ToStart(l.Reserve, func() (*sinkstore.Store, error) { return openState(ctx, cfg.StateDir) })
	if err != nil {
		return err
	}
	l.Add(state.Close)
	authority, err := l.Authority(ctx, state, logger)
	if err != nil {
		return err
	}
	list, err := domains.Open(domains.Config{Path: cfg.Domains, Foreign: cfg.Gateway, Log: l.Log, Logger: logger})
	if err != nil {
		return err
	}
	out, err := cfg.dialer()
	if err != nil {
		return err
	}
	threshold, err := suspicion.ParseSeverity(cfg.RefuseSuspicious)
	if err != nil {
		return err
	}
	reports, err := cfg.reports()
	if err != nil {
		return err
	}
	hosts, err := server.OpenHosts(filepath.Join(cfg.StateDir, "hosts"))
	if err != nil {
		return err
	}
	l.Add(hosts.Close)
	foreign, err := ownership.Gateway(cfg.GatewayUser, cfg.development)
	if err != nil {
		return err
	}
	servers, err := openOthers(ctx, cfg, out, list.Current, vaultv1.NewReleaseServiceClient(l.Vault), foreign, l.Log, logger)
	if err != nil {
		return err
	}
	l.Add(servers.Close)
	// After the servers' tools: only now can be told which entries are for none.
	rules, err := wiring.OpenRules(wiring.RulesConfig{
		Name: "egress.yaml", Path: cfg.path(), Role: optionsv1.Role_ROLE_EGRESS, Empty: func() wiring.Settings { return &settings{} },
		GatewayUser: cfg.GatewayUser, Development: cfg.development, Set: authority.SetUnattended, Log: l.Log, Logger: logger,
	})
	if err != nil {
		return err
	}
	tools, err := server.NewTools(server.Config{
		Dialer: out, Domains: list.Current, Refuse: threshold, Vault: vaultv1.NewReleaseServiceClient(l.Vault), Reports: reports, Hosts: hosts, Metrics: l.Telemetry.Metrics,
	})
	if err != nil {
		return err
	}
	if err := authority.Compare(ctx); err != nil {
		logger.Warn("this process's state is not held against the log yet: it will be before a change", "cause", err.Error())
	}
	if err := authority.Recover(ctx, server.Subjects{}); err != nil {
		return err
	}
	srv := newServer(l, authority, logger)
	egressv1.RegisterToolServiceServer(srv, tools)
	egressv1.RegisterServerServiceServer(srv, server.NewServers(tools, servers.running, servers))
	deep := deepcheck.New(logger,
		deepcheck.Check{Problem: "its state cannot be written", Ask: l.Reserve.Writable(state.Probe)})
	egressv1.RegisterControlServiceServer(srv, server.NewControl(server.ControlConfig{
		Sink: l.Control(authority, deep, version), Tools: tools, DomainsRefused: list.Refused, Running: servers.running, Pinned: servers,
	}))

	return l.Serve(ctx, wiring.Serving{
		Service: "egress", Version: version, Server: srv, Authority: authority, Logger: logger,
		Note: []any{"development", cfg.development, "domains", len(list.Current().Allow)},
		Background: []func(context.Context){rules.Watch, list.Watch, servers.Watch, func(ctx context.Context) {
			watchSessions(ctx, vaultv1.NewSessionServiceClient(l.Vault), servers.running.EndSession, logger)
		}},
	})
}

// newServer serves the gateway and operators; every call passes the authority.
func newServer(l *wiring.Links, authority *sink.Authority, logger *slog.Logger) *rpc.Server {
	return rpc.NewServer(rpc.ServerConfig{
		Identity: l.Self, Logger: logger, OnRefused: authority.OnRefused, Tracer: l.Telemetry.Tracer(),
		Unary:  []grpc.UnaryServerInterceptor{calls.New(l.Telemetry.Metrics, "egress").Unary(), authority.Unary(server.Subjects{})},
		Stream: []grpc.StreamServerInterceptor{authority.Stream()},
	})
}
