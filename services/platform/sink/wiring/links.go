// Package wiring is what the programs of sinks are put together from: who the process is, whom it trusts, its connections and its way
// to the log; its store on a disk that can become full; and the list of what runs unattended, which follows its file.
//
// It runs in the sinks' programs and trusts their configuration, a human's.
package wiring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/deepcheck"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/recorder/spool"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/rollback"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/sink"
	"durward.internal/services/platform/sink/control"
	"durward.internal/services/platform/sink/sinkstore"
	"durward.internal/services/platform/telemetry"
	"durward.internal/services/platform/trust"
)

// Closers are closed in the reverse of the order in which they were opened.
type Closers []func() error

// Add adds one more to close.
func (c *Closers) Add(f func() error) { *c = append(*c, f) }

// Close closes all, whatever becomes of one.
func (c *Closers) Close() error {
	var problems []error
	for _, f := range slices.Backward(*c) {
		problems = append(problems, f())
	}
	return errors.Join(problems...)
}

// Config is what a sink's links are opened from; everything is required.
type Config struct {
	// Service is the sink's name, "executor"; Version its program's.
	Service, Version string
	Shared           *config.Common
	Vault, Audit     config.Peer
	// Relief is what still goes on while the disk is full, in the words of the log.
	Relief string
	Logger *slog.Logger
}

// drainTime is how long calls that were begun have to end when the process is told to, and then records that wait to reach audit.
const drainTime = 5 * time.Second

// Links are what ties a sink to the other processes.
type Links struct {
	Closers
	Trust     *trust.Folder
	Self      *identity.Source
	Telemetry *telemetry.Telemetry
	Vault     *rpc.Any
	Log       *recorder.Recorder
	// Reserve is what is left to write on a full disk.
	Reserve *reserve.Reserve

	listen           string
	listener, health net.Listener
}

// Open takes the process's state and where it is reached, so that a second one goes no further, and opens its links. The caller closes what
// is opened, also after an error.
func Open(ctx context.Context, cfg Config) (l *Links, err error) {
	l = &Links{listen: cfg.Shared.Listen}
	unlock, err := process.LockState(cfg.Shared.StateDir)
	if err != nil {
		return l, err
	}
	l.Add(unlock)
	if l.listener, l.health, err = process.Listen(cfg.Shared); err != nil {
		return l, err
	}
	for _, listener := range []net.Listener{l.listener, l.health} {
		l.Add(func() error { _ = listener.Close(); return nil }) // it may have been served, which closes it
	}
	if l.Trust, l.Self, err = process.OpenIdentity(ctx, cfg.Logger, cfg.Shared); err != nil {
		return l, err
	}
	l.Add(func() error { l.Trust.Close(); return nil })
	l.Telemetry, err = telemetry.Open(telemetry.Config{Service: cfg.Service, Version: cfg.Version, Settings: cfg.Shared.Telemetry, Lifetime: l.Self.Lifetime})
	if err != nil {
		return l, err
	}
	l.Add(func() error { l.Telemetry.Close(); return nil })
	audit, err := process.Dial(l.Self, cfg.Audit, cfg.Logger)
	if err != nil {
		return l, err
	}
	l.Add(audit.Close)
	if l.Vault, err = process.Dial(l.Self, cfg.Vault, cfg.Logger); err != nil {
		return l, err
	}
	l.Add(l.Vault.Close)
	if l.Reserve, err = reserve.Open(cfg.Shared.StateDir, reserve.Default); err != nil {
		return l, err
	}
	pending, err := reserve.ToStart(l.Reserve, func() (*spool.Store, error) { return spool.Open(ctx, cfg.Shared.StateDir) })
	if err != nil {
		return l, err
	}
	if l.Reserve.InUse() {
		cfg.Logger.Error("THE DISK IS FULL: only " + cfg.Relief + " goes on until there is room")
	}
	l.Log, err = recorder.Open(ctx, audit, cfg.Audit.Identity, l.Trust, recorder.Config{
		Writer: l.Self.ID().String(), Store: recorder.Reserved(pending, l.Reserve), Logger: cfg.Logger, OnAppend: l.Telemetry.ObserveAppend,
	})
	if err != nil {
		return l, err
	}
	l.Add(func() error {
		// Records that wait have a last chance to reach audit; the rest stays in the spool.
		ctx, cancel := context.WithTimeout(context.Background(), drainTime)
		defer cancel()
		return l.Log.Close(ctx)
	})
	l.Telemetry.WatchRecorder(l.Log)
	l.Telemetry.WatchDisk(l.Reserve.InUse)
	return l, nil
}

// Authority opens the discipline of this sink over its store, and halts it where the store is not what it wrote.
func (l *Links) Authority(ctx context.Context, store *sinkstore.Store, logger *slog.Logger) (*sink.Authority, error) {
	a, err := sink.New(ctx, sink.Config{
		Self: l.Self.ID(), Trust: l.Trust, Store: reservedStore{Store: store, kept: l.Reserve}, Recorder: l.Log, Witnessed: l.Log.Witnessed, History: l.Log,
		Vault: sink.NewRedeemer(l.Vault), Tokeniser: vaultv1.NewTokeniseServiceClient(l.Vault), Discloser: vaultv1.NewDisclosureServiceClient(l.Vault), Logger: logger,
	})
	if err != nil {
		return nil, err
	}
	err = rollback.Damaged(ctx, logger, store.Damage(), func(ctx context.Context, reason string) error {
		_, err := a.Halt(ctx, reason, 0)
		return err
	}, func(ctx context.Context) error {
		return l.Reserve.Write(true, func() error { return store.Accept(ctx) })
	})
	if err != nil {
		return nil, err
	}
	l.Telemetry.Halted(func() bool { return a.Control().Halted })
	return a, nil
}

// Control is what operators are served by every sink.
func (l *Links) Control(a *sink.Authority, deep *deepcheck.Checks, version string) *control.Sink {
	return control.New(control.Config{
		Self: l.Self.ID(), Authority: a, Log: l.Log, Deep: deep, Version: version, VaultReachable: func() bool {
			l.Vault.Connect() // one that went idle is woken
			return l.Vault.Spoken()
		},
	})
}

// CheckPeers holds what a sink's configuration says of vault and audit to their roles.
func CheckPeers(vault, audit config.Peer) error {
	var problems []error
	for _, peer := range []struct {
		key  string
		peer config.Peer
		role optionsv1.Role
	}{{"vault", vault, optionsv1.Role_ROLE_VAULT}, {"audit", audit, optionsv1.Role_ROLE_AUDIT}} {
		if err := peer.peer.Validate(); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", peer.key, err))
			continue
		}
		id, err := identity.Parse(peer.peer.Identity)
		switch {
		case err != nil:
			problems = append(problems, fmt.Errorf("%s.identity: %w", peer.key, err))
		case id.Role() != peer.role:
			problems = append(problems, fmt.Errorf("%s.identity: is not an identity of role %s", peer.key, peer.key))
		}
	}
	return errors.Join(problems...)
}
