package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/deepcheck"
	"durward.internal/services/platform/desktop"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/downstream/inforce"
	"durward.internal/services/platform/downstream/validator"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/recorder"
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

// ground is what the vault stands on: who it is, whom it knows, its state and its way to the log.
type ground struct {
	settings *settings.Settings
	self     *identity.Source
	roots    *trust.Folder
	tel      *telemetry.Telemetry
	security security.Options
	clients  *clients.Registry
	grants   *issuer.Issuer
	state    *store.Store
	reserve  *reserve.Reserve
	records  *recorder.Recorder
	log      *journal.Journal
	logger   *slog.Logger
}

// decide puts together what decides on the ground, and serves it until ctx ends.
func (g ground) decide(ctx context.Context) error {
	changes, err := changelog.New(ctx, changelog.Config{Store: g.state, Journal: g.log, Now: time.Now, Logger: g.logger})
	if err != nil {
		return err
	}
	// What any client may call is made of the rules, of clients.yaml and of other people's servers.
	var lists clock.Signal
	options := g.security
	options.Adopt = func(c security.Change) security.Change { return judged(c, g.clients) }
	options.OnChange, options.Logger = func(c security.Change) { changes.Changed(c); lists.Raise() }, g.logger
	rules, err := security.Open(options)
	if err != nil {
		return fmt.Errorf("security configuration: %w", err)
	}
	defer rules.Close()
	changes.Complete(rules.Current().Files)
	others := inforce.Open(ctx, inforce.Config{
		Folder: filepath.Dir(g.settings.ClientsFile), TrustDir: g.settings.TrustDir, Foreign: options.Foreign, Unconfined: true, Compiler: validator.Compile, OnChange: func([]downstream.Pinned) { lists.Raise() }, Log: g.records, Logger: g.logger,
	})
	go others.Watch(ctx)
	humans := server.Humans{Security: rules}

	operators := func() *trust.AllowedSigners { return g.roots.Current().AllowedSigners }
	halts, err := halt.New(ctx, g.state)
	if err != nil {
		return err
	}
	if err := server.HaltDamaged(ctx, g.state, halts, g.log, g.self.ID().String(), g.logger); err != nil {
		return err
	}
	g.tel.Halted(func() bool { return halts.Now().Halted })
	sinks, err := g.settings.SinkIDs()
	if err != nil {
		return err
	}
	audiences := make([]string, len(sinks))
	for i, sink := range sinks {
		audiences[i] = sink.String()
	}
	sessions := session.New(time.Now, g.settings.Limits.Sessions)
	consents := consent.New(consent.Config{Operators: operators, Now: time.Now, Clients: consent.Of(g.clients, humans.FourEyes)})
	approvals, err := standing.New(ctx, standing.Config{
		Store: g.state, Journal: g.log, Halt: halts, Sessions: sessions, Consent: consents, Operators: operators, Client: g.clients.Lookup,
		Audiences: audiences, Limits: humans.Limits, Lists: lists.Wait, Now: time.Now, Logger: g.logger,
	})
	if err != nil {
		return err
	}
	queue, err := operation.New(ctx, operation.Config{
		Store: g.state, Journal: g.log, Issuer: g.grants, Halt: halts, Consent: consents, Standing: approvals, LetIn: g.clients.LetIn, Now: time.Now,
		Logger: g.logger, PendingCap: g.settings.Limits.Pending,
	})
	if err != nil {
		return err
	}
	detector, err := g.settings.Privacy.Detector()
	if err != nil {
		return err
	}
	tokens := token.New(token.Config{
		Credential: func(word string) bool {
			_, known := g.clients.Authenticate(word)
			return known
		},
		Detector: detector, Dir: filepath.Join(g.settings.StateDir, token.Folder), Store: g.state, Owner: sessions.Owner, Now: time.Now, Logger: g.logger,
	})
	if err := tokens.Reclaim(ctx); err != nil {
		return err
	}
	ring, err := keyring.Open(ctx, keyring.Config{
		Store: g.state, Source: g.settings.CredentialKey(), File: filepath.Join(g.settings.StateDir, keyring.File), Getenv: os.Getenv, Now: time.Now, Logger: g.logger,
	})
	if err != nil {
		return err
	}
	credentials := safe.New(g.state, ring, tokens.Release, time.Now)
	if err := credentials.Recall(ctx); err != nil && !errors.Is(err, keyring.ErrSealed) {
		return err
	}
	vault, err := server.New(server.Config{
		Self: g.self.ID(), Sinks: sinks, Clients: g.clients, Sessions: sessions, Security: rules, Usage: usage.New(g.state, time.Now),
		Changes: changes, Desktop: desktop.New(time.Now), Queue: queue, Standing: approvals, Consent: consents, Issuer: g.grants, Halt: halts,
		Journal: g.log, Tokens: tokens, PrivacyTypes: g.settings.Privacy.Names(), Disclosure: disclosure.New(g.settings.Privacy.Disclose, g.state, time.Now), Safe: credentials, Audit: g.records, History: g.records, Digest: g.state.Digest,
		Deep: deepcheck.New(g.logger,
			deepcheck.Check{Problem: "its state cannot be written", Ask: g.reserve.Writable(g.state.Probe)}),
		Now: time.Now, Logger: g.logger, Version: version,
	})
	if err != nil {
		return err
	}
	services := rpc.NewServer(rpc.ServerConfig{
		Identity: g.self, Logger: g.logger, OnRefused: vault.Refused, Tracer: g.tel.Tracer(),
		Unary: []grpc.UnaryServerInterceptor{metrics.New(g.tel.Metrics, metrics.Sources{Queue: queue, Sessions: sessions, Standing: approvals, Tokens: tokens, Rules: rules}).Unary(), vault.WhileItLeads(g.state.Leads)},
	})
	vault.Register(services)
	if err := vault.Compare(ctx); err != nil {
		g.logger.Warn("the vault's state is not held against the log yet", "cause", err.Error())
	}
	return g.serve(ctx, services, vault, func() error {
		return errors.Join(g.roots.Err(), g.self.Err(), g.clients.Err(), rules.Err(), g.log.Check())
	})
}

// serve listens, runs and drains.
func (g ground) serve(ctx context.Context, services *rpc.Server, vault *server.Server, ready func() error) error {
	listener, health, err := process.Listen(g.settings.Shared())
	if err != nil {
		return err
	}
	g.log.Note(ctx, journal.Process(auditv1.Kind_KIND_STARTED, version))
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return services.Serve(running, listener) })
	group.Go(func() error { return g.tel.Serve(running, health, ready) })
	group.Go(func() error { vault.Run(running); return nil })
	err = group.Wait()
	g.log.Note(context.WithoutCancel(ctx), journal.Process(auditv1.Kind_KIND_STOPPED, version))
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
