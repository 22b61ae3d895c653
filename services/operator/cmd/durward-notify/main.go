// Command durward-notify tells an operator that something waits for a decision. It runs as the operator's user, in the foreground,
// with a certificate that lets it see who waits for what and nothing else; `durward notify` starts it. It links no signing key, no
// approval, and nothing of the host but the session bus.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/notify"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/coredump"
	"durward.internal/services/platform/process"
	"durward.internal/services/platform/release"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/trust"
)

// version is the program's, as Git and the linker have it.
var version = release.Version()

func main() {
	_ = coredump.Off() // to lower a limit is never refused
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program; it returns its exit code: 0 done, 1 failed, 2 wrong usage or configuration.
func run(ctx context.Context, args []string, out, problems io.Writer) int {
	flags := flag.NewFlagSet("durward-notify", flag.ContinueOnError)
	flags.SetOutput(problems)
	file := flags.String("config", "", "configuration `file`, notify.yaml")
	check := flags.Bool("check", false, "check the configuration and exit")
	test := flags.Bool("test", false, "send a made-up notification to each destination and exit")
	asJSON := flags.Bool("json", false, "with -test: print the result as JSON")
	show := flags.Bool("version", false, "print the version and exit")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case *show:
		fmt.Fprintln(out, "durward-notify", version)
		return 0
	case *file == "" || flags.NArg() > 0:
		fmt.Fprintln(problems, "usage: durward-notify -config FILE [-check | -test [-json]]")
		return 2
	}
	cfg, err := notify.Load(*file)
	if err != nil {
		fmt.Fprintln(problems, clean.Block(err.Error(), 4000))
		return 2
	}
	switch {
	case *check:
		return 0
	case *test:
		return tested(notify.Test(ctx, cfg, time.Now()), *asJSON, out)
	}
	if err := serve(ctx, cfg, out); err != nil {
		fmt.Fprintln(problems, clean.Block(err.Error(), 4000))
		return 1
	}
	return 0
}

func tested(all []notify.Tried, asJSON bool, out io.Writer) int {
	type destination struct {
		Name    string `json:"name"`
		Kind    string `json:"kind"`
		Reached bool   `json:"reached"`
		Problem string `json:"problem,omitempty"`
	}
	code, told := 0, []destination{}
	for _, t := range all {
		d := destination{Name: t.Name, Kind: t.Kind, Reached: t.Err == nil}
		if t.Err != nil {
			code, d.Problem = 1, clean.Line(t.Err.Error(), 300)
		}
		told = append(told, d)
	}
	if asJSON {
		if json.NewEncoder(out).Encode(map[string]any{"destinations": told}) != nil {
			return 1
		}
		return code
	}
	for _, d := range told {
		if d.Reached {
			fmt.Fprintf(out, "✓ %s (%s)\n", d.Name, d.Kind)
		} else {
			fmt.Fprintf(out, "✗ %s (%s): %s\n", d.Name, d.Kind, d.Problem)
		}
	}
	return code
}

// serve tells until ctx ends.
func serve(ctx context.Context, cfg *notify.Config, out io.Writer) error {
	roots, err := trust.Open(cfg.TrustDir)
	if err != nil {
		return err
	}
	defer roots.Close()
	self, err := rpc.OpenIdentity(ctx, cfg.TLS, optionsv1.Role_ROLE_NOTIFIER, roots)
	if err != nil {
		return err
	}
	process.WatchCertificate(ctx, slog.New(slog.NewTextHandler(out, nil)), self)
	conn, err := process.Dial(self, cfg.Vault, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is under way any more
	fmt.Fprintf(out, "Telling %s what waits. Ctrl-C ends it.\n", clean.Count(len(cfg.Destinations), "destination"))
	return notify.Run(ctx, cfg, vaultv1.NewNoticeServiceClient(conn), func(line string) { fmt.Fprintln(out, clean.Line(line, 500)) })
}
