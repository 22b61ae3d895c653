// Command audit writes history: an append-only Merkle log with signed checkpoints, which every process of Durward must
// reach before it acts and which nobody needs to believe. It dials nobody but a collector of traces, where a human configured
// one.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/metrics"
	"durward.internal/services/audit/internal/server"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/keyfile"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/telemetry"
)

// version is set by the linker.
var version = "development"

// settings is audit.yaml.
type settings struct {
	config.Common `yaml:",inline"`
	// LogKey is the file of the key that signs checkpoints: a sumdb/note signer key named like the log, which is audit's
	// identity without "spiffe://". Its public half stands in the trust folder's log_keys. Required, absolute, 0600.
	LogKey string `yaml:"log_key"`
}

// Validate checks the whole file.
func (s *settings) Validate() error {
	var problem error
	if !filepath.IsAbs(s.LogKey) {
		problem = errors.New("log_key: must be an absolute path")
	}
	return errors.Join(s.Common.Validate(), problem)
}

func main() {
	s := &settings{}
	os.Exit(process.Main(process.Program{
		Name: "audit", Version: version, Settings: s, Flags: guardFlags,
		Check: func() error { return keyfile.Check(s.LogKey) },
		Run:   func(ctx context.Context, logger *slog.Logger) error { return run(ctx, s, logger) },
	}, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, s *settings, logger *slog.Logger) error {
	roots, self, closeIdentity, err := process.OpenIdentity(ctx, logger, s.Shared())
	if err != nil {
		return err
	}
	defer closeIdentity()
	seen, err := telemetry.Open(telemetry.Config{Service: "audit", Version: version, Settings: s.Telemetry, NotAfter: self.NotAfter})
	if err != nil {
		return err
	}
	defer seen.Close()
	signer, err := log.LoadSigner(s.LogKey)
	if err != nil {
		return err
	}
	if name := logproof.Origin(self.ID().String()); signer.Name() != name {
		return fmt.Errorf("log_key: the key is named %q; the log of this process is %q", signer.Name(), name)
	}
	kept, err := reserve.Open(s.StateDir, reserve.Default)
	if err != nil {
		return err
	}
	var db *store.Store
	// A full disk is no reason not to start: what stops things has to be recorded.
	if err := kept.Write(true, func() (err error) { db, err = store.Open(ctx, s.StateDir); return err }); err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // everything that matters was committed
	history, err := log.Open(ctx, log.Config{
		Store: db, Signer: signer, Reserve: kept, Logger: logger, Keys: func() []note.Verifier { return roots.Current().LogKeys },
	})
	if err != nil {
		return err
	}
	defer history.Close()
	services, err := server.New(server.Config{Log: history, Store: db, Version: version, Identity: self.ID()})
	if err != nil {
		return err
	}
	rpcs := rpc.NewServer(rpc.ServerConfig{
		Identity: self, Logger: logger, Tracer: seen.Tracer(),
		Unary: []grpc.UnaryServerInterceptor{metrics.New(seen.Metrics, history, db).Unary()},
	})
	services.Register(rpcs)
	lis, err := rpc.Listen(s.Listen, s.AllowRemote)
	if err != nil {
		return err
	}
	health, err := rpc.Listen(s.HealthListen, false)
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	if err := services.RecordStart(ctx); err != nil {
		return errors.Join(fmt.Errorf("record the start: %w", err), lis.Close(), health.Close())
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return rpcs.Serve(ctx, lis) })
	group.Go(func() error { return seen.Serve(ctx, health, history.Ready) })
	err = group.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	return errors.Join(err, services.RecordStop(last))
}
