package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/engine"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/gpu/find"
	"durward.internal/services/executor/internal/health"
	"durward.internal/services/executor/internal/lease"
	"durward.internal/services/executor/internal/memreq"
	"durward.internal/services/executor/internal/metrics"
	"durward.internal/services/executor/internal/mode"
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/executor/internal/server"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/deepcheck"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/sink"
	"durward.internal/services/platform/sink/wiring"
)

// host is what this executor knows of its host and may do to it.
type host struct {
	wiring.Closers
	catalog      *catalog.Source
	gpus         *gpu.Monitor
	requirements *memreq.Tracker
	authority    *sink.Authority
	services     *service.Manager
	modes        *mode.Switcher
	progress     *progress.Hub
	metrics      *metrics.Metrics
	deep         *deepcheck.Checks
}

// openHost opens it. The caller closes what is opened, also after an error.
func openHost(ctx context.Context, cfg *settings, l *wiring.Links, logger *slog.Logger) (h *host, err error) {
	h = &host{progress: &progress.Hub{}}
	programs, err := programsDir(cfg.ProgramsDir)
	if err != nil {
		return h, err
	}
	measured, hint, err := find.Source(cfg.GPU.Source, cfg.GPU.Library, cfg.GPU.Program)
	if err != nil {
		return h, err
	}
	if hint != "" {
		logger.Warn(hint)
	}
	if measured != nil {
		h.Add(measured.Close)
	}
	h.catalog, err = catalog.Open(cfg.Catalog, catalog.Options{
		ProgramsDir: programs, Development: cfg.development, UID: os.Getuid(), Foreign: cfg.Gateway, Lenient: true, Drivers: cfg.drivers(), InContainer: cfg.InContainer,
	}, logger)
	if err != nil {
		return h, err
	}
	h.Add(func() error { h.catalog.Close(); return nil })
	current := h.catalog.Current
	h.gpus = gpu.New(gpu.Config{Source: measured, Catalog: current, Logger: logger})
	drivers, err := openDrivers(cfg, current, h.gpus, releaseBy(vaultv1.NewReleaseServiceClient(l.Vault)), logger)
	if err != nil {
		return h, err
	}
	h.Add(drivers.Close)
	state, err := reserve.ToStart(l.Reserve, func() (*store.Store, error) { return store.Open(ctx, cfg.StateDir) })
	if err != nil {
		return h, err
	}
	h.Add(state.Close)
	h.deep = deepcheck.New(logger,
		deepcheck.Check{Problem: "its state cannot be written", Ask: l.Reserve.Writable(state.Probe)},
		deepcheck.Check{Problem: "not all GPUs answer", Ask: func(ctx context.Context) error { return h.gpus.Read(ctx).Err() }})
	h.requirements, err = openRequirements(ctx, cfg, memreq.Config{
		Catalog: current, GPUs: h.gpus, Memory: reservedPeaks{state, l.Reserve}, Logger: logger, Definition: drivers.Definition,
	})
	if err != nil {
		return h, err
	}
	if h.authority, err = l.Authority(ctx, state.Store, logger); err != nil {
		return h, err
	}

	leases, rule := &lease.Leases{}, recordRules(l.Log)
	h.services = service.New(service.Config{
		Catalog:    current,
		Drivers:    drivers.byName,
		Health:     health.New(),
		Engine:     engine.New(),
		GPUs:       h.gpus,
		Sizes:      h.requirements.Sizes(),
		HostAsleep: h.requirements.HostAsleep,
		MarginMiB:  cfg.marginMiB(),
		Leases:     leases,
		Admit: func(ctx context.Context, s *catalog.Service) error {
			h.requirements.Observe(ctx, s)
			return capacity.Admit(h.requirements.Sizes(), h.gpus.Read(ctx), s, cfg.marginMiB())
		},
		Confirm: sink.Confirm, Late: sink.Late,
		Rule:    rule,
		Proceed: h.authority.Proceed,
		Logger:  logger,
	})
	h.gpus.Claimed(h.services.Claims)
	if err := h.services.Accept(current()); err != nil {
		return h, fmt.Errorf("catalogue: %w", err)
	}
	h.metrics = metrics.New(l.Telemetry.Metrics, h.services, h.gpus, h.requirements)
	h.modes = mode.New(mode.Config{
		Catalog:      current,
		Services:     h.services,
		GPUs:         h.gpus,
		Requirements: h.requirements,
		Leases:       leases,
		Journal:      state,
		Margin:       cfg.marginMiB(),
		// What a call's margin_mib_override may go down to is a human's to say.
		LeastMargin: cfg.GPU.MarginOverrideMinMiB,
		Hub:         h.progress,
		Proceed:     h.authority.Proceed,
		Rule:        rule,
		Meter:       h.metrics,
		Logger:      logger,
	})
	h.catalog.Veto(func(next *catalog.Catalog) error {
		if err := h.modes.Accept(next); err != nil {
			return err
		}
		return h.services.Accept(next)
	})
	return h, nil
}

// subjects are what calls act on.
func (h *host) subjects() server.Subjects {
	return server.Subjects{Services: h.services, Modes: h.modes}
}

// recover looks after what an earlier process left. An interrupted switch has the host from here on. It is undone while this
// process serves, so that it can be halted and looked at meanwhile; what its call is told is known when it has ended.
func (h *host) recover(ctx context.Context, logger *slog.Logger) (*mode.Interruption, error) {
	if err := h.authority.Compare(ctx); err != nil {
		logger.Warn("this executor's state is not held against the log yet: it will be before a change", "cause", err.Error())
	}
	h.services.Settle(ctx)
	h.requirements.Settle(ctx, h.services, h.gpus)
	interrupted, err := h.modes.Interrupted(ctx)
	if err != nil {
		return nil, err
	}
	return interrupted, h.authority.Recover(ctx, h.subjects())
}

// resume undoes an interrupted switch, and does what the catalog wants of a host that has booted.
func (h *host) resume(ctx context.Context, interrupted *mode.Interruption, logger *slog.Logger) {
	if interrupted != nil && interrupted.Undo(ctx) {
		if err := h.authority.Settle(ctx, interrupted.Operation, h.subjects()); err != nil {
			logger.Error("the call of an interrupted switch could not be settled", "operation", interrupted.Operation, "error", err)
		}
	}
	if err := h.modes.Boot(ctx); err != nil {
		logger.Error("the catalogue's boot rule could not be followed", "error", err)
	}
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
