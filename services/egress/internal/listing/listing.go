// Package listing runs another people's MCP server once and says which tools it lists, for a human who decides on it (durward server add).
// The server is in its sandbox and has no network and no credentials; a remote one is asked over https.
//
// It runs in a process of its own, as the operator's user, and ends with it: what the server says is bounded in size and in time, and what
// it does to the reader it does to nothing else. It decides nothing.
package listing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"durward.internal/services/egress/internal/child"
	"durward.internal/services/egress/internal/sandbox"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/downstream"
)

// patience bounds the whole.
const patience = time.Minute

// Run answers one ListRequest. Why there is no listing stands in the answer.
func Run(ctx context.Context, in io.Reader, out io.Writer) error {
	var asked downstream.ListRequest
	if err := json.NewDecoder(io.LimitReader(in, 1<<20)).Decode(&asked); err != nil {
		return errors.New("the standard input describes no server")
	}
	var answer downstream.ListAnswer
	listing, err := list(ctx, asked)
	if answer.Listing = listing; err != nil {
		answer.Listing, answer.Problem = nil, err.Error()
	}
	return json.NewEncoder(out).Encode(answer)
}

func list(ctx context.Context, asked downstream.ListRequest) (_ *downstream.Listing, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it did not list its tools within %v", patience))
	defer cancel()
	if asked.Entry.URL != "" {
		return remote(ctx, asked)
	}
	state, err := os.MkdirTemp("", "durward-list-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(state)) }()
	// Where an operator's user may make no control group, the limits of a process are enough for a minute.
	launcher, err := sandbox.NewLocal(sandbox.Config{State: filepath.Join(state, "launcher"), Own: asked.Own, Packages: asked.Packages, Development: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	defer launcher.Close()
	env := map[string]string{}
	maps.Copy(env, asked.Entry.Env)
	for name := range asked.Entry.Credentials {
		env[name] = "not-given" // a server that asks for one at its start is still listed, and gets none
	}
	return said(ctx, child.Config{
		Start: func(ctx context.Context, server *downstream.Pinned, _ string, env map[string]string) (*child.Process, error) {
			p, err := launcher.Start(ctx, sandbox.Start{Server: server, Env: env})
			if err != nil {
				return nil, err
			}
			return &child.Process{Stdin: p.Stdin, Stdout: p.Stdout, Stderr: p.Stderr, Wait: p.Wait, Kill: p.Kill, Freeze: p.Freeze}, nil
		},
		Env: func(context.Context, *downstream.Pinned, string) (map[string]string, error) { return env, nil },
	}, asked)
}

// said is what a server says of itself, or why it says nothing.
func said(ctx context.Context, config child.Config, asked downstream.ListRequest) (*downstream.Listing, error) {
	listing, err := child.List(ctx, config, downstream.Pinned{Entry: asked.Entry, ProgramDigest: asked.ProgramDigest})
	if problem := (*child.Error)(nil); errors.As(err, &problem) {
		err = fmt.Errorf("it did not list its tools: %s", clean.Line(problem.Text, 300))
	} else if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return listing, err
}

// remote asks a server elsewhere, at public addresses alone, without the credential of its entry: only the vault gives one, and to egress alone,
// which asks once an operator signed the entry.
func remote(ctx context.Context, asked downstream.ListRequest) (*downstream.Listing, error) {
	endpoint, err := url.Parse(asked.Entry.URL)
	if err != nil {
		return nil, err
	}
	cfg := dialer.Config{Allow: func(_ context.Context, to destination.Destination) error {
		if !strings.EqualFold(to.Host, endpoint.Hostname()) {
			return errors.New("it leads elsewhere")
		}
		return nil
	}}
	if local, err := netip.ParseAddrPort(endpoint.Host); err == nil && local.Addr().IsLoopback() {
		cfg.Local = []netip.AddrPort{local} // a human named this very address
	}
	judged, err := dialer.New(cfg)
	if err != nil {
		return nil, err
	}
	var shut atomic.Bool
	way := &http.Transport{DialContext: judged.DialContext, Proxy: nil, ForceAttemptHTTP2: true}
	listing, err := said(ctx, child.Config{Remote: noting(func(r *http.Request) (*http.Response, error) {
		response, err := way.RoundTrip(r)
		if err == nil && response.StatusCode == http.StatusUnauthorized {
			shut.Store(true)
		}
		return response, err
	})}, asked)
	switch {
	case err == nil:
	case asked.Entry.Bearer != "":
		err = fmt.Errorf("%w; it was asked without its credential, which the vault gives to egress alone", err)
	case shut.Load():
		err = fmt.Errorf("%w: it wants a credential; store its token with durward credential add NAME --variable TOKEN, and name it with --bearer NAME", err)
	}
	return listing, err
}

// noting is a way to a server that is watched.
type noting func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (n noting) RoundTrip(r *http.Request) (*http.Response, error) { return n(r) }
