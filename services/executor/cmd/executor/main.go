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
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/engine"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/gpu/find"
	"durward.internal/services/executor/internal/health"
	"durward.internal/services/executor/internal/lease"
	"durward.internal/services/executor/internal/metrics"
	"durward.internal/services/executor/internal/mode"
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/executor/internal/server"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/recorder/spool"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/sink"
	"durward.internal/services/platform/telemetry"
)

// version is set by the build.
var version = "development"

// drainTime is how long a call that was begun may take to end when the process is told to. What it cuts off is found again
// at the next start.
const drainTime = 5 * time.Second

func main() {
	// Before anything is written or started: only this user may read it.
	syscall.Umask(0o077)
	cfg := &settings{}
	os.Exit(process.Main(process.Program{
		Name:     "executor",
		Version:  version,
		Settings: cfg,
		Flags: func(flags *flag.FlagSet) {
			cfg.path = func() string { return flags.Lookup("config").Value.String() }
			flags.BoolVar(&cfg.development, "development", false, "let services without run_as run as this user")
			drillFlags(flags)
		},
		Run: func(ctx context.Context, logger *slog.Logger) error { return run(ctx, cfg, logger) },
	}, os.Args[1:], os.Stdout, os.Stderr))
}

// run wires the process together and serves until ctx ends.
func run(ctx context.Context, cfg *settings, logger *slog.Logger) (err error) {
	listener, err := rpc.Listen(cfg.Listen, cfg.AllowRemote)
	if err != nil {
		return err
	}
	defer listener.Close()
	healthListener, err := rpc.Listen(cfg.HealthListen, false)
	if err != nil {
		return err
	}
	defer healthListener.Close()

	roots, self, closeIdentity, err := process.OpenIdentity(ctx, logger, cfg.Shared())
	if err != nil {
		return err
	}
	defer closeIdentity()
	seen, err := telemetry.Open(telemetry.Config{Service: "executor", Version: version, Settings: cfg.Telemetry, NotAfter: self.NotAfter})
	if err != nil {
		return err
	}
	defer seen.Close()
	auditConn, err := dial(self, cfg.Audit, logger)
	if err != nil {
		return err
	}
	defer auditConn.Close()
	vaultConn, err := dial(self, cfg.Vault, logger)
	if err != nil {
		return err
	}
	defer vaultConn.Close()
	waiting, err := spool.Open(ctx, cfg.StateDir)
	if err != nil {
		return err
	}
	kept, err := reserve.Open(cfg.StateDir, reserve.Default)
	if err != nil {
		return err
	}
	if kept.InUse() {
		logger.Error("THE DISK IS FULL: only what takes load off the host goes on until there is room")
	}
	log, err := recorder.Open(ctx, recorder.OpenConfig{
		Conn: auditConn, Audit: cfg.Audit.Identity, Writer: self.ID().String(), Trust: roots, Store: recorder.Reserved(waiting, kept), Logger: logger,
		OnAppend: seen.ObserveAppend,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeLog(log)) }()
	seen.WatchRecorder(log)

	programs, err := programsDir(cfg.ProgramsDir)
	if err != nil {
		return err
	}
	measured, hint, err := find.Source(cfg.GPU.Source, cfg.GPU.Library, cfg.GPU.Program)
	if err != nil {
		return err
	}
	if hint != "" {
		logger.Warn(hint)
	}
	if measured != nil {
		defer func() { err = errors.Join(err, measured.Close()) }()
	}
	source, err := catalog.Open(cfg.Catalog, catalog.Options{ProgramsDir: programs, Development: cfg.development, UID: os.Getuid()}, logger)
	if err != nil {
		return err
	}
	defer source.Close()
	// Who measures needs to know who may hold memory, who may start depends on what is measured, and what rules do on the sink.
	var services *service.Manager
	var authority *sink.Authority
	gpus := gpu.New(gpu.Config{
		Source: measured, Catalog: source.Current, Claims: func() []gpu.Claim { return services.Claims() }, Logger: logger,
	})
	drivers, err := openDrivers(cfg, source.Current, gpus, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drivers.Close()) }()
	durable, err := store.Open(ctx, cfg.StateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, durable.Close()) }()
	memory := reservedStore{Store: durable, kept: kept}
	book, err := openBook(ctx, cfg, bookConfig{
		Catalog: source.Current, GPUs: gpus, Memory: reservedPeaks{durable, kept}, Logger: logger,
		Definition: func(ctx context.Context, s *catalog.Service) (string, error) { return services.Definition(ctx, s) },
	})
	if err != nil {
		return err
	}
	leases := &lease.Leases{}
	proceed := func(begin func()) error { return authority.Proceed(begin) }
	rule := recordRules(log)
	services = service.New(service.Config{
		Catalog:    source.Current,
		Drivers:    drivers.byName,
		Health:     health.New(),
		Engine:     engine.New(),
		GPUs:       gpus,
		Sizes:      book.Sizes(),
		HostAsleep: book.HostAsleep,
		MarginMiB:  cfg.marginMiB(),
		Leases:     leases,
		Admit: func(ctx context.Context, s *catalog.Service) error {
			book.Observe(ctx, s)
			return capacity.Admit(book.Sizes(), gpus.Read(ctx), s, cfg.marginMiB())
		},
		Confirm: sink.Confirm,
		Rule:    rule,
		Proceed: proceed,
		Logger:  logger,
	})
	if err := services.Accept(source.Current()); err != nil {
		return fmt.Errorf("catalogue: %w", err)
	}
	hub := &progress.Hub{}
	meter := metrics.New(seen.Metrics, services, gpus, book)
	modes := mode.New(mode.Config{
		Catalog:      source.Current,
		Services:     services,
		GPUs:         gpus,
		Requirements: book,
		Leases:       leases,
		Journal:      durable,
		Margin:       cfg.marginMiB(),
		// What a call's margin_mib_override may go down to is a human's to say.
		LeastMargin: cfg.GPU.MarginOverrideMinMiB,
		Hub:         hub,
		Proceed:     proceed,
		Rule:        rule,
		Meter:       meter,
		Logger:      logger,
	})
	source.Veto(func(next *catalog.Catalog) error {
		if err := modes.Accept(next); err != nil {
			return err
		}
		return services.Accept(next)
	})
	subjects := server.Subjects{Services: services, Modes: modes}
	authority, err = sink.New(ctx, sink.Config{
		Self: self.ID(), Trust: roots, Store: memory, Recorder: log, Vault: sink.NewRedeemer(vaultConn),
		Tokeniser: vaultv1.NewTokeniseServiceClient(vaultConn), Subjects: subjects, Logger: logger,
	})
	if err != nil {
		return err
	}
	rules, err := openRules(rulesConfig{
		Path: cfg.path(), GatewayUser: cfg.GatewayUser, Development: cfg.development, Set: authority.SetUnattended, Log: log, Logger: logger,
	})
	if err != nil {
		return err
	}
	seen.Halted(func() bool { return authority.Control().Halted })
	services.Settle(ctx)
	book.Settle(ctx, services, gpus)
	// An interrupted switch has the host from here on. It is undone while this process serves, so that it can be halted and
	// looked at meanwhile; what its call is told is known when it has ended.
	interrupted, err := modes.Interrupted(ctx)
	if err != nil {
		return err
	}
	if err := authority.Recover(ctx, subjects); err != nil {
		return err
	}

	srv := rpc.NewServer(rpc.ServerConfig{
		Identity: self, Logger: logger, OnRefused: authority.OnRefused, Tracer: seen.Tracer(),
		Unary:  []grpc.UnaryServerInterceptor{meter.Unary(), authority.Unary()},
		Stream: []grpc.StreamServerInterceptor{authority.Stream()},
	})
	executorv1.RegisterToolServiceServer(srv, server.NewTools(server.ToolsConfig{Services: services, GPUs: gpus, Modes: modes, Progress: hub}))
	executorv1.RegisterEventServiceServer(srv, server.NewEvents(services, hub))
	executorv1.RegisterControlServiceServer(srv, server.NewControl(server.ControlConfig{
		Self: self.ID().String(), Services: services, GPUs: gpus, Modes: modes, Authority: authority, Log: log, Version: version,
		VaultReachable: func() bool {
			vaultConn.Connect() // wakes a connection that went idle
			return vaultConn.GetState() == connectivity.Ready
		},
	}))

	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { authority.Run(background) })
	running.Go(func() { services.Run(background) })
	running.Go(func() { rules.watch(background) })
	running.Go(func() { gpus.Run(background) })
	running.Go(func() { book.Run(background, services, gpus) })
	running.Go(func() {
		if interrupted != nil && interrupted.Undo(background) {
			if err := authority.Settle(background, interrupted.Operation, subjects); err != nil {
				logger.Error("the call of an interrupted switch could not be settled", "operation", interrupted.Operation, "error", err)
			}
		}
		if err := modes.Boot(background); err != nil {
			logger.Error("the catalogue's boot rule could not be followed", "error", err)
		}
	})
	running.Go(func() {
		if err := seen.Serve(background, healthListener, nil); err != nil {
			logger.Error("health is not served any more", "error", err)
		}
	})
	note(ctx, log, logger, auditv1.Kind_KIND_STARTED)
	logger.Info("serving", "listen", cfg.Listen, "identity", self.ID(), "development", cfg.development, "services", len(services.All()))
	// From the first sign of the end no step of a switch begins: the next start of this process looks after what is left.
	defer context.AfterFunc(ctx, modes.Stop)()
	err = srv.Serve(ctx, listener)
	modes.Stop()

	drained, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	authority.Wait(drained)
	stop()
	running.Wait()
	note(ctx, log, logger, auditv1.Kind_KIND_STOPPED)
	return err
}

func dial(self *identity.Source, peer config.Peer, logger *slog.Logger) (*grpc.ClientConn, error) {
	id, err := identity.Parse(peer.Identity)
	if err != nil {
		return nil, err
	}
	conn, err := rpc.Dial(rpc.ClientConfig{Identity: self, Address: peer.Address, Server: id, Logger: logger})
	if err != nil {
		return nil, err
	}
	conn.Connect()
	return conn, nil
}

// programsDir is the configured folder, or the one that this program is in.
func programsDir(configured string) (string, error) {
	if configured != "" {
		return configured, nil
	}
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("programs_dir: %w", err)
	}
	return filepath.Dir(program), nil
}

// note records that the process starts or stops.
func note(ctx context.Context, log *recorder.Recorder, logger *slog.Logger, kind auditv1.Kind) {
	err := log.Spool(ctx, &auditv1.Record{
		Kind: kind, Time: timestamppb.Now(), Status: auditv1.Status_STATUS_OK,
		Body: &auditv1.Body{Summary: "executor " + version},
	})
	if err != nil {
		logger.Error("a start or stop could not be recorded", "kind", kind.String(), "error", err)
	}
}

// closeLog gives waiting records a last chance to reach audit; the rest stays in the spool.
func closeLog(log *recorder.Recorder) error {
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	return log.Close(ctx)
}
