package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/egress/internal/child"
	"durward.internal/services/egress/internal/childproxy"
	"durward.internal/services/egress/internal/launcher"
	"durward.internal/services/egress/internal/sandbox"
	"durward.internal/services/platform/connections"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/downstream/inforce"
	"durward.internal/services/platform/downstream/validator"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/handover"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/security/ownership"
	"durward.internal/services/platform/sessions"
)

// others are other people's MCP servers: which are in force, and what runs of them.
type others struct {
	*inforce.Servers
	running halting
	local   *sandbox.Local // nil where durward-launcher starts them
}

// halting is what runs of them: a panic shuts its way out first.
type halting struct {
	*child.Manager
	gate *childproxy.Gate
}

// Freeze implements server.Running.
func (h halting) Freeze() error {
	h.gate.Shut()
	return h.Manager.Freeze()
}

// Thaw implements server.Running.
func (h halting) Thaw() error {
	h.gate.Open()
	return h.Manager.Thaw()
}

// none starts nothing: with egress' own user a server that breaks out would have what egress has.
type none struct{}

func (none) Start(context.Context, sandbox.Start) (*sandbox.Process, error) {
	return nil, errors.New("this installation has no launcher of other people's servers: run `durward install --egress` again, or name one under launcher in egress.yaml")
}

// openOthers reads what is in force and starts nothing.
func openOthers(
	ctx context.Context, cfg *settings, out dialer.Config, domains func() *destination.List, vault vaultv1.ReleaseServiceClient, foreign *ownership.Foreign, log process.Log, logger *slog.Logger,
) (*others, error) {
	folder := filepath.Dir(cfg.path())
	o := &others{running: halting{gate: childproxy.NewGate()}}
	var err error
	var starts sandbox.Launcher = none{}
	switch {
	case cfg.Launcher != "":
		starts = launcher.Client{Address: cfg.Launcher}
	case cfg.development:
		o.local, err = sandbox.NewLocal(sandbox.Config{
			State: filepath.Join(cfg.StateDir, "servers"), Own: []string{folder, cfg.StateDir, cfg.TrustDir}, Packages: filepath.Join(folder, downstream.PackagesDir),
			Development: true, Logger: logger,
		})
		starts = o.local
	}
	if err != nil {
		return nil, err
	}
	proxy := childproxy.New(childproxy.Config{Dialer: out, Gate: o.running.gate, Domains: domains, Record: func(v childproxy.Verdict) { recordVerdict(ctx, log, logger, v) }})
	starts = sandbox.Networked(starts, func(listener net.Listener, s sandbox.Start) {
		err := proxy.Serve(listener, childproxy.Child{Server: s.Server.Entry.ID, User: s.User, Domains: s.Server.Entry.Sandbox.Domains})
		if err != nil && !errors.Is(err, net.ErrClosed) {
			logger.Warn("a server's connections are not served any more", "server", s.Server.Entry.ID, "error", err)
		}
	})
	remote, err := o.remote(out, domains)
	if err != nil {
		return nil, err
	}
	o.running.Manager = child.New(child.Config{
		Start: func(ctx context.Context, server *downstream.Pinned, user string, env map[string]string) (*child.Process, error) {
			p, err := starts.Start(ctx, sandbox.Start{Server: server, User: user, Env: env, Network: len(server.Entry.Sandbox.Domains) > 0})
			if err != nil {
				return nil, err
			}
			return &child.Process{Stdin: p.Stdin, Stdout: p.Stdout, Stderr: p.Stderr, Wait: p.Wait, Kill: p.Kill, Freeze: p.Freeze}, nil
		},
		Env: func(ctx context.Context, server *downstream.Pinned, _ string) (map[string]string, error) {
			env := maps.Clone(server.Entry.Env)
			if env == nil {
				env = map[string]string{}
			}
			values, err := released(ctx, vault, server.Entry.ID, slices.Collect(maps.Values(server.Entry.Credentials)))
			for variable, name := range server.Entry.Credentials {
				env[variable] = values[name]
			}
			return env, err
		},
		Remote: remote,
		Bearer: func(ctx context.Context, server *downstream.Pinned, _ string) (string, error) {
			values, err := released(ctx, vault, server.Entry.ID, []string{server.Entry.Bearer})
			return values[server.Entry.Bearer], err
		},
		Ended: func(e child.End) { recordEnd(ctx, log, logger, e) },
	})
	o.Servers = inforce.Open(ctx, inforce.Config{
		Folder: folder, TrustDir: cfg.TrustDir, Foreign: foreign, Unconfined: cfg.development, Compiler: validator.Compile, OnChange: o.running.Set, Log: log, Logger: logger,
	})
	return o, nil
}

// released are the values of credentials that a human lets a server have, by name, from the vault.
func released(ctx context.Context, vault vaultv1.ReleaseServiceClient, server string, names []string) (map[string]string, error) {
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
	if len(names) == 0 {
		return nil, nil
	}
	key, err := handover.NewKey()
	if err != nil {
		return nil, err
	}
	out, err := vault.ReleaseCredentials(ctx, &vaultv1.ReleaseCredentialsRequest{Service: server, Names: names, PublicKey: key.Public()})
	if f := fault.From(err); err != nil {
		if f.Code == callv1.Code_CODE_NOT_FOUND || f.Code == callv1.Code_CODE_DENIED {
			if len(names) > 1 { // the vault does not say which
				return nil, fmt.Errorf("one of the credentials %s is not stored, or not granted to it: durward credential list; durward credential grant NAME --server %s", strings.Join(names, ", "), server)
			}
			return nil, fmt.Errorf("a credential is not stored, or not granted to it: durward credential grant %s --server %s", names[0], server)
		}
		return nil, errors.New("its credentials cannot be had: " + f.Message)
	}
	opened, err := key.Open(out.GetSealed(), server)
	if err != nil {
		return nil, err
	}
	defer handover.Clear(opened)
	values := map[string]string{}
	for _, v := range opened {
		values[v.Name] = string(v.Value)
	}
	return values, nil
}

// remote is the way to servers on other hosts: to those of the entries in force alone, on the addresses that are judged.
func (o *others) remote(out dialer.Config, domains func() *destination.List) (http.RoundTripper, error) {
	out.Allow = func(_ context.Context, to destination.Destination) error { return accepted(o.Current(), domains(), to) }
	way, err := o.running.gate.Dial(out)
	return &http.Transport{
		DialContext: way, TLSClientConfig: &tls.Config{RootCAs: out.Roots, MinVersion: tls.VersionTLS12},
		MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 10 * time.Second, MaxResponseHeaderBytes: 16 << 10,
	}, err
}

// accepted refuses what is no server's, and what is blocked for everybody. What one client's list blocks, its calls are refused.
func accepted(servers []downstream.Pinned, list *destination.List, to destination.Destination) error {
	if verdict, by := list.Judge(destination.Party{}, to); verdict == destination.Blocked {
		return destination.Refuse(destination.RuleDestination, "%s is blocked, by %s", to, by.Domain)
	}
	for _, p := range servers {
		if _, at, err := destination.ParseURL(p.Entry.URL); p.Entry.URL != "" && err == nil && at == to {
			return nil
		}
	}
	return destination.Refuse(destination.RuleDestination, "%s is no server's that a human accepted", to)
}

func (o *others) Close() error {
	o.running.Close()
	if o.local != nil {
		o.local.Close()
	}
	return nil
}

// watchSessions ends what runs for a session once the vault says that it is over, until ctx ends. Which sessions ended while the vault was not
// heard nobody knows: when it is heard again, what runs for any of them ends.
func watchSessions(ctx context.Context, vault vaultv1.SessionServiceClient, end func(session string), logger *slog.Logger) {
	const lost = "the vault does not say which sessions end: what runs for them ends when it is idle, or the vault is heard again"
	sessions.Watch(ctx, vault, logger, lost, func(context.Context) { end("") }, func(m *vaultv1.WatchSessionsResponse) {
		if m.GetEnded() {
			end(m.GetSession())
		}
	})
}

// recordEnd records that a server's process is no more, and what it said last.
func recordEnd(ctx context.Context, log process.Log, logger *slog.Logger, e child.End) {
	principal, session, _ := strings.Cut(e.Principal, "/")
	r := &auditv1.Record{Kind: auditv1.Kind_KIND_RULE, Time: timestamppb.Now(), Status: auditv1.Status_STATUS_OK, Body: &auditv1.Body{
		Action: "end", Summary: "the MCP server " + e.Server + " ended", Reason: e.Why, Principal: principal, Session: session,
		Details: map[string]string{"server": e.Server, "stderr": e.Said},
	}}
	if !e.Wanted {
		r.Status = auditv1.Status_STATUS_ERROR
	}
	if err := log.Spool(context.WithoutCancel(ctx), r); err != nil {
		logger.Error("the end of a server could not be recorded", "server", e.Server, "error", err)
	}
}

// recordVerdict records what a server reached, and what it was refused.
func recordVerdict(ctx context.Context, log process.Log, logger *slog.Logger, v childproxy.Verdict) {
	if err := log.Spool(context.WithoutCancel(ctx), verdictRecord(v)); err != nil {
		logger.Error("a server's connection could not be recorded", "server", v.Server, "error", err)
	}
}

func verdictRecord(v childproxy.Verdict) *auditv1.Record {
	principal, session, _ := strings.Cut(v.User, "/")
	c := connections.Connection{Destination: v.To, Address: v.Address, Rule: string(v.Rule), Sent: v.Sent, Received: v.Received}
	r := &auditv1.Record{Kind: auditv1.Kind_KIND_READ, Time: timestamppb.Now(), Tool: connections.ServersTool, Status: auditv1.Status_STATUS_OK, Body: &auditv1.Body{
		Action: "connect", Summary: "the MCP server " + v.Server + " reached " + v.To, Principal: principal, Session: session, Details: c.Details(),
	}}
	r.Body.Details["server"] = v.Server
	switch r.Body.Reason = v.Why; {
	case v.Begun:
		r.Status, r.Body.Summary = auditv1.Status_STATUS_PENDING, "the MCP server "+v.Server+" reaches "+v.To
	case v.Rule != "":
		r.Kind, r.Status, r.Body.Summary = auditv1.Kind_KIND_SINK_REFUSED, auditv1.Status_STATUS_DENIED, "the MCP server "+v.Server+" was refused a connection"
	case v.Why != "":
		r.Status, r.Body.Summary = auditv1.Status_STATUS_ERROR, "the MCP server "+v.Server+" did not reach "+v.To
	}
	return r
}
