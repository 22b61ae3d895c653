// Command vault authenticates clients, decides, queues approvals and signs grants. It listens for the gateway, the sinks
// and operators' programs, and dials audit alone, and a collector of traces where a human configured one. It never touches
// the host. Where the state is kept by a PostgreSQL server it dials that too, and stands by while another vault leads.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/backup/statecopy"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/deepcheck"
	"durward.internal/services/platform/desktop"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/downstream/inforce"
	"durward.internal/services/platform/downstream/validator"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/recorder/spool"
	"durward.internal/services/platform/release"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/telemetry"
	"durward.internal/services/platform/trust"
	"durward.internal/services/vault/internal/changelog"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/consent"
	"durward.internal/services/vault/internal/disclosure"
	"durward.internal/services/vault/internal/halt"
	"durward.internal/services/vault/internal/issuer"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/keyring"
	"durward.internal/services/vault/internal/metrics"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/safe"
	"durward.internal/services/vault/internal/server"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/settings"
	"durward.internal/services/vault/internal/standing"
	"durward.internal/services/vault/internal/store"
	"durward.internal/services/vault/internal/token"
	"durward.internal/services/vault/internal/usage"
)

// version is the program's, as Git and the linker have it.
var version = release.Version()

// closing is how long the last records may take to reach audit.
const closing = 2 * time.Second

func main() {
	// Other processes of its user do not look into it: in its memory are the keys of the stored credentials. Where the kernel refuses, root
	// or not, they could look before too.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	var s settings.Settings
	os.Exit(process.Main(program(&s), os.Args[1:], os.Stdout, os.Stderr))
}

func program(s *settings.Settings) process.Program {
	var aside statecopy.Command
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
			aside.Flags(f)
			guardFlags(f)
		},
		Instead: func(ctx context.Context) (bool, error) { return aside.Run(ctx, part(s), os.Stdin, os.Stdout) },
		Run: func(ctx context.Context, logger *slog.Logger) error {
			for {
				err := run(ctx, s, logger)
				if !errors.Is(err, store.ErrFollows) || ctx.Err() != nil {
					return err
				}
				logger.Warn("this vault leads no more: everything that it knew is forgotten, and it stands by", "cause", err.Error())
			}
		},
	}
}

func run(ctx context.Context, s *settings.Settings, logger *slog.Logger) (err error) {
	// What watches files and certificates ends with the lead, too.
	ctx, end := context.WithCancel(ctx)
	defer end()
	unlock, err := process.LockState(s.StateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	roots, self, err := process.OpenIdentity(ctx, logger, s.Shared())
	if err != nil {
		return err
	}
	defer roots.Close()
	tel, err := telemetry.Open(telemetry.Config{Service: "vault", Version: version, Settings: s.Telemetry, Lifetime: self.Lifetime})
	if err != nil {
		return err
	}
	defer tel.Close()
	key, err := grant.LoadKey(s.GrantKey)
	if err != nil {
		return err
	}
	metrics.GrantKey(tel.Metrics, func() time.Time { return roots.Current().GrantSigner(key.KID).NotAfter })
	options, err := s.Security()
	if err != nil {
		return err
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
	grants, err := issuer.New(issuer.Config{Key: key, Keys: roots, Now: time.Now, User: registry.User})
	if err != nil {
		return err
	}

	diskReserve, err := reserve.Open(s.StateDir, reserve.Default)
	if err != nil {
		return err
	}
	state, err := openState(ctx, s, diskReserve, tel, logger)
	if err != nil || state == nil {
		return err
	}
	ctx, lose := context.WithCancelCause(ctx)
	go func() { lose(state.Hold(ctx)) }()
	defer func() {
		lost := context.Cause(ctx)
		lose(nil)
		if err = errors.Join(err, state.Close()); errors.Is(lost, store.ErrFollows) {
			err = lost // whatever else failed failed for that
		}
	}()

	audit, err := s.AuditID()
	if err != nil {
		return err
	}
	conn, err := process.Dial(self, s.Audit, logger)
	if err != nil {
		return err
	}
	defer conn.Close()
	pending, err := reserve.ToStart(diskReserve, func() (*spool.Store, error) { return spool.Open(ctx, s.StateDir) })
	if err != nil {
		return err
	}
	records, err := recorder.Open(ctx, conn, audit.String(), roots, recorder.Config{
		Writer: self.ID().String(), Store: recorder.Reserved(pending, diskReserve), Logger: logger, Shared: s.Database.Shared(), OnAppend: tel.ObserveAppend,
	})
	if err != nil {
		return err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
		defer cancel()
		err = errors.Join(err, records.Close(last))
	}()
	tel.WatchRecorder(records)
	log := journal.New(records, time.Now, logger)

	changes, err := changelog.New(ctx, changelog.Config{Store: state, Journal: log, Now: time.Now, Logger: logger})
	if err != nil {
		return err
	}
	// What any client may call is made of the rules, of clients.yaml and of other people's servers.
	var lists clock.Signal
	options.Adopt = func(c security.Change) security.Change { return judged(c, registry) }
	options.OnChange, options.Logger = func(c security.Change) { changes.Changed(c); lists.Raise() }, logger
	rules, err := security.Open(options)
	if err != nil {
		return fmt.Errorf("security configuration: %w", err)
	}
	defer rules.Close()
	changes.Complete(rules.Current().Files)
	others := inforce.Open(ctx, inforce.Config{
		Folder: filepath.Dir(s.ClientsFile), TrustDir: s.TrustDir, Foreign: options.Foreign, Unconfined: true, Compiler: validator.Compile, OnChange: func([]downstream.Pinned) { lists.Raise() }, Log: records, Logger: logger,
	})
	go others.Watch(ctx)
	humans := server.Humans{Security: rules}

	operators := func() *trust.AllowedSigners { return roots.Current().AllowedSigners }
	halts, err := halt.New(ctx, state)
	if err != nil {
		return err
	}
	if err := server.HaltDamaged(ctx, state, halts, log, self.ID().String(), logger); err != nil {
		return err
	}
	tel.Halted(func() bool { return halts.Now().Halted })
	sinks, err := s.SinkIDs()
	if err != nil {
		return err
	}
	audiences := make([]string, len(sinks))
	for i, sink := range sinks {
		audiences[i] = sink.String()
	}
	sessions := session.New(time.Now, s.Limits.Sessions)
	consents := consent.New(consent.Config{Operators: operators, Now: time.Now, Clients: consent.Of(registry, humans.FourEyes)})
	approvals, err := standing.New(ctx, standing.Config{
		Store: state, Journal: log, Halt: halts, Sessions: sessions, Consent: consents, Operators: operators, Client: registry.Lookup,
		Audiences: audiences, Limits: humans.Limits, Lists: lists.Wait, Now: time.Now, Logger: logger,
	})
	if err != nil {
		return err
	}
	queue, err := operation.New(ctx, operation.Config{
		Store: state, Journal: log, Issuer: grants, Halt: halts, Consent: consents, Standing: approvals, LetIn: registry.LetIn, Now: time.Now,
		Logger: logger, PendingCap: s.Limits.Pending,
	})
	if err != nil {
		return err
	}
	detector, err := s.Privacy.Detector()
	if err != nil {
		return err
	}
	tokens := token.New(token.Config{
		Credential: func(word string) bool {
			_, known := registry.Authenticate(word)
			return known
		},
		Detector: detector, Dir: filepath.Join(s.StateDir, token.Folder), Store: state, Owner: sessions.Owner, Now: time.Now, Logger: logger,
	})
	if err := tokens.Reclaim(ctx); err != nil {
		return err
	}
	ring, err := keyring.Open(ctx, keyring.Config{
		Store: state, Source: s.CredentialKey(), File: filepath.Join(s.StateDir, keyring.File), Getenv: os.Getenv, Now: time.Now, Logger: logger,
	})
	if err != nil {
		return err
	}
	credentials := safe.New(state, ring, tokens.Release, time.Now)
	if err := credentials.Recall(ctx); err != nil && !errors.Is(err, keyring.ErrSealed) {
		return err
	}
	vault, err := server.New(server.Config{
		Self: self.ID(), Sinks: sinks, Clients: registry, Sessions: sessions, Security: rules, Usage: usage.New(state, time.Now),
		Changes: changes, Desktop: desktop.New(time.Now), Queue: queue, Standing: approvals, Consent: consents, Issuer: grants, Halt: halts,
		Journal: log, Tokens: tokens, PrivacyTypes: s.Privacy.Names(), Disclosure: disclosure.New(s.Privacy.Disclose, state, time.Now), Safe: credentials, Audit: records, History: records, Digest: state.Digest,
		Deep: deepcheck.New(logger,
			deepcheck.Check{Problem: "its state cannot be written", Ask: diskReserve.Writable(state.Probe)}),
		Now: time.Now, Logger: logger, Version: version,
	})
	if err != nil {
		return err
	}
	services := rpc.NewServer(rpc.ServerConfig{
		Identity: self, Logger: logger, OnRefused: vault.Refused, Tracer: tel.Tracer(),
		Unary: []grpc.UnaryServerInterceptor{metrics.New(tel.Metrics, metrics.Sources{Queue: queue, Sessions: sessions, Standing: approvals, Tokens: tokens, Rules: rules}).Unary(), vault.WhileItLeads(state.Leads)},
	})
	vault.Register(services)
	if err := vault.Compare(ctx); err != nil {
		logger.Warn("the vault's state is not held against the log yet", "cause", err.Error())
	}
	return serve(ctx, s, services, vault, log, tel, func() error {
		return errors.Join(roots.Err(), self.Err(), registry.Err(), rules.Err(), log.Check())
	})
}

// serve listens, runs and drains.
func serve(ctx context.Context, s *settings.Settings, services *rpc.Server, vault *server.Server, log *journal.Journal, tel *telemetry.Telemetry, ready func() error) error {
	listener, health, err := process.Listen(s.Shared())
	if err != nil {
		return err
	}
	log.Note(ctx, journal.Process(auditv1.Kind_KIND_STARTED, version))
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return services.Serve(running, listener) })
	group.Go(func() error { return tel.Serve(running, health, ready) })
	group.Go(func() error { vault.Run(running); return nil })
	err = group.Wait()
	log.Note(context.WithoutCancel(ctx), journal.Process(auditv1.Kind_KIND_STOPPED, version))
	return err
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
