// Command vault authenticates clients, decides, queues approvals and signs grants. It listens for the gateway, the sinks
// and operators' programs, and dials audit alone, and a collector of traces where a human configured one. It never touches
// the host.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/desktop"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/recorder/spool"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/telemetry"
	"durward.internal/services/platform/trust"
	"durward.internal/services/vault/internal/changelog"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/consent"
	"durward.internal/services/vault/internal/halt"
	"durward.internal/services/vault/internal/issuer"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/metrics"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/server"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/settings"
	"durward.internal/services/vault/internal/standing"
	"durward.internal/services/vault/internal/store"
	"durward.internal/services/vault/internal/token"
	"durward.internal/services/vault/internal/usage"
)

// version is set by the linker.
var version = "development"

// closing is how long the last records may take to reach audit.
const closing = 2 * time.Second

func main() {
	var s settings.Settings
	os.Exit(process.Main(program(&s), os.Args[1:], os.Stdout, os.Stderr))
}

func program(s *settings.Settings) process.Program {
	return process.Program{
		Name: "vault", Version: version, Settings: s,
		Check: func() error {
			err := s.Check()
			for _, warning := range s.Warnings() {
				fmt.Fprintf(os.Stderr, "vault: warning: %s\n", warning)
			}
			return err
		},
		Flags: func(f *flag.FlagSet) {
			f.BoolVar(&s.Development, "development", false, "one Unix user runs everything: gateway_user is not looked at")
			guardFlags(f)
		},
		Run: func(ctx context.Context, logger *slog.Logger) error { return run(ctx, s, logger) },
	}
}

func run(ctx context.Context, s *settings.Settings, logger *slog.Logger) (err error) {
	roots, self, closeIdentity, err := process.OpenIdentity(ctx, logger, s.Shared())
	if err != nil {
		return err
	}
	defer closeIdentity()
	seen, err := telemetry.Open(telemetry.Config{Service: "vault", Version: version, Settings: s.Telemetry, NotAfter: self.NotAfter})
	if err != nil {
		return err
	}
	defer seen.Close()
	key, err := grant.LoadKey(s.GrantKey)
	if err != nil {
		return err
	}
	if key.KID != s.KID {
		return fmt.Errorf("grant key: the file holds the key %q, and kid says %q", key.KID, s.KID)
	}
	issue, err := issuer.New(issuer.Config{Key: key, Keys: roots, Now: time.Now})
	if err != nil {
		return err
	}
	options, err := s.Security()
	if err != nil {
		return err
	}
	if options.Foreign == nil {
		logger.Warn("nobody's rights to the files of the rules are looked at: whoever may write them rules", "development", s.Development)
	}
	for _, warning := range s.Warnings() {
		logger.Warn(warning)
	}
	registry, err := clients.Open(clients.Config{Path: s.ClientsFile, Now: time.Now, Foreign: options.Foreign})
	if err != nil {
		return err
	}
	defer registry.Close()
	process.Watch(ctx, logger, "clients file", registry.Err)

	db, kept, err := openState(ctx, s.StateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	state, err := store.New(ctx, db, store.WithReserve(kept))
	if err != nil {
		return err
	}

	audit, err := s.AuditID()
	if err != nil {
		return err
	}
	conn, err := process.Dial(self, s.Audit, logger)
	if err != nil {
		return err
	}
	defer conn.Close()
	var waiting *spool.Store
	if err := kept.Write(true, func() (err error) { waiting, err = spool.Open(ctx, s.StateDir); return err }); err != nil {
		return err
	}
	records, err := recorder.Open(ctx, recorder.OpenConfig{
		Conn: conn, Audit: audit.String(), Writer: self.ID().String(), Trust: roots, Store: recorder.Reserved(waiting, kept), Logger: logger,
		OnAppend: seen.ObserveAppend,
	})
	if err != nil {
		return err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
		defer cancel()
		err = errors.Join(err, records.Close(last))
	}()
	seen.WatchRecorder(records)
	log := journal.New(records, time.Now, logger)

	changes, err := changelog.New(ctx, changelog.Config{DB: db, Reserve: kept, Journal: log, Now: time.Now, Logger: logger})
	if err != nil {
		return err
	}
	options.OnChange, options.Logger = func(c security.Change) { changes.Changed(judged(c, registry)) }, logger
	rules, err := security.Open(options)
	if err != nil {
		return fmt.Errorf("security configuration: %w", err)
	}
	defer rules.Close()
	changes.Complete(rules.Current().Files)
	people := server.Humans{Security: rules}

	operators := func() *trust.AllowedSigners { return roots.Current().AllowedSigners }
	control, err := halt.New(ctx, state)
	if err != nil {
		return err
	}
	seen.Halted(func() bool { return control.Now().Halted })
	sinks, err := s.SinkIDs()
	if err != nil {
		return err
	}
	audiences := make([]string, len(sinks))
	for i, sink := range sinks {
		audiences[i] = sink.String()
	}
	sessions := session.New(time.Now, s.Limits.Sessions)
	agreed := consent.New(consent.Config{Operators: operators, Now: time.Now, Clients: consent.Of(registry, people.FourEyes)})
	book, err := standing.New(ctx, standing.Config{
		Store: state, Journal: log, Halt: control, Sessions: sessions, Consent: agreed, Operators: operators, Client: registry.Lookup,
		Audiences: audiences, Limits: people.Limits, Now: time.Now, Logger: logger,
	})
	if err != nil {
		return err
	}
	queue, err := operation.New(ctx, operation.Config{
		Store: state, Journal: log, Issuer: issue, Halt: control, Consent: agreed, Standing: book, LetIn: registry.LetIn, Now: time.Now,
		Logger: logger, PendingCap: s.Limits.Pending,
	})
	if err != nil {
		return err
	}
	tokens := token.New(token.Config{Credential: func(word string) bool {
		_, known := registry.Authenticate(word)
		return known
	}})
	vault, err := server.New(server.Config{
		Self: self.ID(), Sinks: sinks, Clients: registry, Sessions: sessions, Security: rules, Usage: usage.New(db, time.Now, usage.WithReserve(kept)),
		Changes: changes, Desktop: desktop.New(time.Now), Queue: queue, Standing: book, Consent: agreed, Issuer: issue, Halt: control,
		Journal: log, Tokens: tokens, Audit: records, Operators: operators, Now: time.Now, Logger: logger, Version: version,
	})
	if err != nil {
		return err
	}
	services := rpc.NewServer(rpc.ServerConfig{
		Identity: self, Logger: logger, OnRefused: vault.Refused, Tracer: seen.Tracer(),
		Unary: []grpc.UnaryServerInterceptor{metrics.New(seen.Metrics, metrics.Sources{Queue: queue, Sessions: sessions, Standing: book, Rules: rules}).Unary()},
	})
	vault.Register(services)
	return serve(ctx, s, services, vault, log, seen, func() error {
		return errors.Join(roots.Err(), self.Err(), registry.Err(), rules.Err(), log.Check())
	})
}

// serve listens, runs and drains.
func serve(ctx context.Context, s *settings.Settings, services *rpc.Server, vault *server.Server, log *journal.Journal, seen *telemetry.Telemetry, ready func() error) error {
	listener, err := rpc.Listen(s.Listen, s.AllowRemote)
	if err != nil {
		return err
	}
	health, err := rpc.Listen(s.HealthListen, false)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	log.Note(ctx, journal.Process(auditv1.Kind_KIND_STARTED, version))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	failures := make(chan error, 2)
	for _, f := range []func() error{
		func() error { return services.Serve(ctx, listener) },
		func() error { return seen.Serve(ctx, health, ready) },
		func() error { vault.Run(ctx); return nil },
	} {
		running.Go(func() {
			if err := f(); err != nil {
				failures <- err
				stop() // one without the other is no vault
			}
		})
	}
	running.Wait()
	close(failures)
	log.Note(context.WithoutCancel(ctx), journal.Process(auditv1.Kind_KIND_STOPPED, version))
	var errs []error
	for err := range failures {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// judged has clients.yaml judged by who reads it: to the security configuration it is bytes.
func judged(c security.Change, registry *clients.Registry) security.Change {
	if c.File == settings.ClientsName && c.Problem == "" && c.After != "" {
		if err := registry.Reload(); err != nil {
			c.Problem = clean.Line(err.Error(), 300)
		}
	}
	return c
}
