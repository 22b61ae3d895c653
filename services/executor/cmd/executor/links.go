package main

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/recorder/spool"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/telemetry"
	"durward.internal/services/platform/trust"
)

// closers are closed in the reverse of the order in which they were opened.
type closers []func() error

func (c *closers) add(f func() error) { *c = append(*c, f) }

// Close closes all, whatever becomes of one.
func (c *closers) Close() error {
	var problems []error
	for _, f := range slices.Backward(*c) {
		problems = append(problems, f())
	}
	return errors.Join(problems...)
}

// links are what ties the executor to the other processes: who it is, whom it trusts, its connections, and its way to the log.
type links struct {
	closers
	trust     *trust.Folder
	self      *identity.Source
	telemetry *telemetry.Telemetry
	vault     *rpc.Any
	log       *recorder.Recorder
	// diskReserve is what is left to write on a full disk.
	diskReserve *reserve.Reserve
}

// openLinks opens them. The caller closes what is opened, also after an error.
func openLinks(ctx context.Context, cfg *settings, logger *slog.Logger) (l *links, err error) {
	l = &links{}
	var closeIdentity func()
	if l.trust, l.self, closeIdentity, err = process.OpenIdentity(ctx, logger, cfg.Shared()); err != nil {
		return l, err
	}
	l.add(func() error { closeIdentity(); return nil })
	l.telemetry, err = telemetry.Open(telemetry.Config{Service: "executor", Version: version, Settings: cfg.Telemetry, NotAfter: l.self.NotAfter})
	if err != nil {
		return l, err
	}
	l.add(func() error { l.telemetry.Close(); return nil })
	audit, err := process.Dial(l.self, cfg.Audit, logger)
	if err != nil {
		return l, err
	}
	l.add(audit.Close)
	if l.vault, err = process.Dial(l.self, cfg.Vault, logger); err != nil {
		return l, err
	}
	l.add(l.vault.Close)
	pending, err := spool.Open(ctx, cfg.StateDir)
	if err != nil {
		return l, err
	}
	if l.diskReserve, err = reserve.Open(cfg.StateDir, reserve.Default); err != nil {
		return l, err
	}
	if l.diskReserve.InUse() {
		logger.Error("THE DISK IS FULL: only what takes load off the host goes on until there is room")
	}
	l.log, err = recorder.Open(ctx, recorder.OpenConfig{
		Conn: audit, Audit: cfg.Audit.Identity, Writer: l.self.ID().String(), Trust: l.trust, Store: recorder.Reserved(pending, l.diskReserve),
		Logger: logger, OnAppend: l.telemetry.ObserveAppend,
	})
	if err != nil {
		return l, err
	}
	l.add(func() error {
		// Records that wait have a last chance to reach audit; the rest stays in the spool.
		ctx, cancel := context.WithTimeout(context.Background(), drainTime)
		defer cancel()
		return l.log.Close(ctx)
	})
	l.telemetry.WatchRecorder(l.log)
	return l, nil
}
