// Command executor is the process that touches the host. It starts and stops services that a human wrote in its catalog,
// and acts only on a grant that it has verified itself, that the vault has redeemed, and whose intent is in the audit log.
//
// It trusts its configuration, its trust folder, the catalog and the kernel. It dials vault and audit, and asks services
// on loopback for their health.
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"syscall"

	"google.golang.org/grpc"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/executor/internal/driver/launch"
	driverprocess "durward.internal/services/executor/internal/driver/process"
	"durward.internal/services/executor/internal/server"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/backup/statecopy"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/release"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/sink/sinkstore"
	"durward.internal/services/platform/sink/wiring"
)

// version is the program's, as Git and the linker have it.
var version = release.Version()

func main() {
	// Before anything is written or started: only this user may read it.
	syscall.Umask(0o077)
	if len(os.Args) > 1 && os.Args[1] == driverprocess.KeepLog {
		os.Exit(driverprocess.KeepLogMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == launch.Word {
		os.Exit(launch.Main(os.Args[2:]))
	}
	cfg := &settings{}
	var aside statecopy.Command
	os.Exit(process.Main(process.Program{
		Name:     "executor",
		Version:  version,
		Settings: cfg,
		Flags: func(flags *flag.FlagSet) {
			cfg.path = func() string { return flags.Lookup("config").Value.String() }
			flags.BoolVar(&cfg.development, "development", false, "let services without run_as run as this user")
			aside.Flags(flags)
			drillFlags(flags)
		},
		Instead: func(ctx context.Context) (bool, error) {
			return aside.Run(ctx, sinkstore.Part("executor", version, cfg.StateDir, openShared), os.Stdin, os.Stdout)
		},
		Run: func(ctx context.Context, logger *slog.Logger) error { return run(ctx, cfg, logger) },
	}, os.Args[1:], os.Stdout, os.Stderr))
}

// openShared opens the part of the store that all sinks have.
func openShared(ctx context.Context, folder string) (*sinkstore.Store, error) {
	s, err := store.Open(ctx, folder)
	if err != nil {
		return nil, err
	}
	return s.Store, nil
}

// run wires the process together and serves until ctx ends.
func run(ctx context.Context, cfg *settings, logger *slog.Logger) (err error) {
	l, err := wiring.Open(ctx, wiring.Config{
		Service: "executor", Version: version, Shared: cfg.Shared(), Vault: cfg.Vault, Audit: cfg.Audit,
		Relief: "what takes load off the host", Logger: logger,
	})
	defer func() { err = errors.Join(err, l.Close()) }()
	if err != nil {
		return err
	}
	h, err := openHost(ctx, cfg, l, logger)
	defer func() { err = errors.Join(err, h.Close()) }()
	if err != nil {
		return err
	}
	rules, err := wiring.OpenRules(wiring.RulesConfig{
		Name: "executor.yaml", Path: cfg.path(), Role: optionsv1.Role_ROLE_EXECUTOR, Empty: func() wiring.Settings { return &settings{} },
		GatewayUser: cfg.GatewayUser, Development: cfg.development, Set: h.authority.SetUnattended, Log: l.Log, Logger: logger,
	})
	if err != nil {
		return err
	}
	interrupted, err := h.recover(ctx, logger)
	if err != nil {
		return err
	}
	return l.Serve(ctx, wiring.Serving{
		Service: "executor", Version: version, Server: newServer(l, h, logger), Authority: h.authority, Logger: logger,
		Note: []any{"development", cfg.development, "services", len(h.services.All())},
		Background: []func(context.Context){
			h.services.Run, rules.Watch, h.gpus.Run,
			func(ctx context.Context) { h.requirements.Run(ctx, h.services, h.gpus) },
			func(ctx context.Context) { h.resume(ctx, interrupted, logger) },
		},
		// From the first sign of the end no step of a switch begins: the next start of this process looks after what is left.
		Stopping: h.modes.Stop,
	})
}

// newServer serves the host to the gateway and to operators; every call passes the authority.
func newServer(l *wiring.Links, h *host, logger *slog.Logger) *rpc.Server {
	srv := rpc.NewServer(rpc.ServerConfig{
		Identity: l.Self, Logger: logger, OnRefused: h.authority.OnRefused, Tracer: l.Telemetry.Tracer(),
		Unary:  []grpc.UnaryServerInterceptor{h.metrics.Unary(), h.authority.Unary(h.subjects())},
		Stream: []grpc.StreamServerInterceptor{h.authority.Stream()},
	})
	executorv1.RegisterToolServiceServer(srv, server.NewTools(server.ToolsConfig{Services: h.services, GPUs: h.gpus, Modes: h.modes, Progress: h.progress}))
	executorv1.RegisterEventServiceServer(srv, server.NewEvents(h.services, h.progress))
	executorv1.RegisterControlServiceServer(srv, server.NewControl(server.ControlConfig{
		Sink: l.Control(h.authority, h.deep, version), Services: h.services, GPUs: h.gpus, Modes: h.modes, Refused: h.catalog.Refused,
	}))
	return srv
}
