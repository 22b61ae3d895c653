package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"durward.internal/gateway/internal/connlimit"
	"durward.internal/gateway/internal/cors"
	"durward.internal/gateway/internal/head"
	"durward.internal/gateway/internal/httpfront"
	"durward.internal/gateway/internal/mcpserver"
	"durward.internal/gateway/internal/metrics"
	"durward.internal/gateway/internal/refusal"
	"durward.internal/gateway/internal/relay"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/telemetry"
)

// Bounds of the HTTP server. There is no write timeout: an answer may take as long as a human.
const (
	headerTimeout = 5 * time.Second
	bodyTimeout   = 15 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10
	drainTimeout  = 5 * time.Second
)

// ground is what the gateway stands on: the processes behind it, its way to the log and what it counts.
type ground struct {
	settings *settings
	// file is where the settings were read from; "" where nothing is read again.
	file            string
	tel             *telemetry.Telemetry
	metrics         *metrics.Metrics
	vault, executor *rpc.Any
	records         *recorder.Recorder
	refusals        *refusal.Recorder
	relay           *relay.Relay
	logger          *slog.Logger
}

// serve opens the door to clients on the ground, until ctx ends.
func (g ground) serve(ctx context.Context) error {
	s := g.settings
	server, err := mcpserver.New(mcpserver.Config{
		Relay: g.relay, Refusals: g.refusals, Metrics: g.metrics, Logger: g.logger, Version: version,
		Hold:           time.Duration(s.HoldS) * time.Second,
		SessionTimeout: time.Duration(s.SessionIdleS) * time.Second,
		Limits:         &s.Limits,
		Pages:          s.Pages,
		Draining:       ctx.Done(),
	})
	if err != nil {
		return err
	}
	var direct httpfront.Direct
	if !s.ThroughSDK {
		direct = server.Direct
	}
	origins := cors.NewOrigins(s.AllowedOrigins...)
	edge, err := httpfront.New(httpfront.Config{
		Direct: direct, Sessions: g.relay, Stateful: server.Handler(httpfront.Stateful), Stateless: server.Handler(httpfront.Stateless),
		Refusals: g.refusals, Metrics: g.metrics, Logger: g.logger, Hosts: s.AllowedHosts, Origins: origins,
		SessionsPerPrincipal: s.SessionsPerPrincipal, SessionIdle: time.Duration(s.SessionIdleS) * time.Second,
		Limits: s.Limits,
	})
	if err != nil {
		return err
	}
	var shown *certificate
	if s.MCPTLS != (config.TLS{}) {
		if shown, err = openCertificate(identity.Files(s.MCPTLS)); err != nil {
			return err
		}
		process.Watch(ctx, g.logger, "certificate for MCP clients", shown.Reload)
	}
	listener, health, err := process.Listen(s.Shared())
	if err != nil {
		return err
	}
	conns := connlimit.New(s.Limits)
	g.metrics.Gauge("durward_gateway_connections", "Open connections of clients.", func() int { all, _, _ := conns.Count(); return all })
	g.metrics.Gauge("durward_gateway_connections_limit", "How many connections there may be.", func() int { return s.Limits.Connections })
	g.metrics.Gauge("durward_gateway_sessions", "Open sessions of clients, of both eras.", edge.Sessions)
	g.metrics.Gauge("durward_gateway_subscriptions", "Subscriptions of clients to resources.", server.Subscriptions)
	scheme := "http://"
	if shown != nil {
		scheme = "https://"
	}
	g.logger.Info("serving", "mcp", scheme+listener.Addr().String()+httpfront.Path)

	process.Note(ctx, g.records, g.logger, "gateway "+version, auditv1.Kind_KIND_STARTED)
	group, serving := errgroup.WithContext(ctx)
	group.Go(func() error { return g.tel.Serve(serving, health, nil) })
	group.Go(func() error { g.relay.WatchSessions(serving); return nil })
	group.Go(func() error { server.TellLists(serving); return nil })
	group.Go(func() error {
		tellHealth(serving, vaultv1.NewSessionServiceClient(g.vault), func(ctx context.Context) *vaultv1.GatewayHealth {
			return &vaultv1.GatewayHealth{
				ExecutorReachable: g.executor.Reach(ctx, reachPatience), AuditReachable: recording(ctx, g.records.Reachable),
				OpenSessions: uint32(max(edge.Sessions(), 0)), SpooledRecords: uint32(max(g.records.Depth(), 0)),
			}
		})
		return nil
	})
	if g.file != "" {
		again := newReloader(g.file, s, origins.Set, g.logger)
		process.Watch(serving, g.logger, "gateway.yaml", again.Err)
		group.Go(func() error { again.Run(serving); return nil })
	}
	draining, served := context.WithCancel(context.WithoutCancel(ctx)) // who drains may still be refused
	group.Go(func() error { g.refusals.Run(draining, 10*time.Second); return nil })
	group.Go(func() error {
		defer served()
		return serveHTTP(serving, listener, shown, edge, cors.Handler(origins, edge), conns)
	})
	err = group.Wait()
	process.Note(ctx, g.records, g.logger, "gateway "+version, auditv1.Kind_KIND_STOPPED)
	return err
}

// serveHTTP serves HTTP by handler, over TLS where there is a certificate, until ctx ends; then it lets calls finish and ends every session.
func serveHTTP(ctx context.Context, listener net.Listener, shown *certificate, edge *httpfront.Front, handler http.Handler, conns *connlimit.Conns) error {
	listener = conns.Listen(listener)
	if shown != nil {
		listener = tls.NewListener(listener, listenTLS(shown))
	}
	listener = head.Listen(listener)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // one request at a time on a connection, so that what bounds connections bounds requests
	web := &http.Server{
		Protocols:         protocols,
		ConnContext:       head.Context(conns.Context),
		Handler:           head.Handler(handler),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       bodyTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          log.New(io.Discard, "", 0), // it repeats what strangers send
	}
	web.RegisterOnShutdown(edge.EndStreams)
	var draining sync.WaitGroup
	draining.Add(1)
	stop := context.AfterFunc(ctx, func() {
		defer draining.Done()
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		if err := web.Shutdown(end); err != nil {
			_ = web.Close() // what did not end in time is cut off
		}
		edge.Close(end)
	})
	if err := web.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		if stop() {
			draining.Done()
		}
		return fmt.Errorf("serve MCP: %w", err)
	}
	draining.Wait()
	return nil
}
