package rules

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/rulefile"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/security/ownership"
	"durward.internal/services/platform/security/trusted"
)

// maxProject bounds a project's file, as the vault does.
const maxProject = 256 << 10

func (a *app) configTrustCommand() *cobra.Command {
	var clients []string
	var yes bool
	cmd := &cobra.Command{
		Use:   "trust FILE",
		Short: "Let a project's file tighten the rules, with your signature",
		Long: `Shows a project's file whole (settings: and tools:, as in security.yaml and tools.yaml, and domains: with block: and nothing
else) and what it would tighten, and trusts it: a copy is put beside the rules and entered in projects.yaml by its digest. The
vault and egress read that copy alone, never the project's folder: a file that is changed there counts again once you trust it
again. A project can only tighten.
` + cli.SignedChange,
		Example: "  durward config trust ~/work/shop/durward.yaml --client cursor",
		Args:    cobra.ExactArgs(1),
		RunE: a.Configured(func(ctx context.Context, cfg installdir.Config, args []string) error {
			return a.trustProject(ctx, cfg, args[0], clients, yes)
		}),
	}
	cmd.Flags().StringSliceVar(&clients, "client", nil, "the clients that it binds (default: all)")
	a.RuleFlags(cmd, nil, &yes)
	return cmd
}

func (a *app) trustProject(ctx context.Context, cfg installdir.Config, file string, clients []string, yes bool) error {
	path, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	for _, c := range clients {
		if _, err := cli.ClientUser(cfg, c); err != nil {
			return err
		}
	}
	text, err := ownership.ReadFile(path, maxProject, nil)
	if err != nil {
		return cli.Usage("", "%s cannot be read: %s", clean.Visible(path), clean.Line(err.Error(), 200))
	}
	sum := sha256.Sum256(text)
	entry := trusted.Project{Path: path, SHA256: hex.EncodeToString(sum[:]), Clients: clients, By: cfg.Operator, At: a.Now().UTC().Truncate(time.Second)}
	var plans []*signedchange.Plan
	out, err := a.ChangeRules(ctx, cfg, cli.RuleChange{Action: "config trust " + filepath.Base(path), Yes: yes, Plans: func() ([]*signedchange.Plan, error) {
		plans, err = rulefile.Trust(cfg, entry, text)
		return plans, projectsProblem(err)
	}, Before: func() error { return a.showTightening(cfg, entry, plans) }})
	return a.ReportRules(out, err, clean.Visible(path)+" is trusted as it is now")
}

// projectsProblem says what to do about a file of projects that is not good.
func projectsProblem(err error) error {
	if _, bad := errors.AsType[*rulefile.ProjectsError](err); bad {
		return cli.Usage("Correct the file and try again.", "%s", clean.Block(err.Error(), 1000))
	}
	return err
}

// showTightening says what a project's file changes for those that it binds.
func (a *app) showTightening(cfg installdir.Config, entry trusted.Project, plans []*signedchange.Plan) error {
	overlay := map[string][]byte{}
	for _, p := range plans {
		overlay[p.Name] = p.After
	}
	before, _ := security.Look(cfg.Security(), nil)
	after, _ := security.Look(cfg.Security(), overlay)
	if before == nil || after == nil {
		return nil
	}
	out := a.Display()
	clients := entry.Clients
	if len(clients) == 0 {
		clients = []string{"*"}
	}
	out.Printf("%s\n", out.Bold("What it tightens:"))
	nothing := true
	for _, c := range clients {
		userName := ""
		if c != "*" {
			var err error
			if userName, err = cli.ClientUser(cfg, c); err != nil {
				return err
			}
		}
		was := before.Settings(c, userName)
		for i, s := range after.Settings(c, userName) {
			if s.Value != was[i].Value {
				nothing = false
				out.Printf("  %s: %s, which was %s%s\n", s.Name, s.Value, was[i].Value, map[bool]string{true: "", false: "  (" + c + ")"}[c == "*"])
			}
		}
	}
	for _, r := range after.Policies.Rules() {
		if r.Layer == policy.Project && r.File == entry.Copy() {
			nothing = false
			out.Printf("  %s  %s:%d\n", clean.Visible(r.ID), clean.Visible(entry.Path), r.Line)
		}
	}
	for _, e := range after.Domains.Block {
		if e.File == entry.Copy() {
			nothing = false
			out.Printf("  %s is blocked\n", clean.Visible(e.Domain))
		}
	}
	if nothing {
		out.Printf("  nothing: what it says is no tighter than what binds already\n")
	}
	return nil
}

func (a *app) configUntrustCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:               "untrust FILE",
		Short:             "Let a project's file count for nothing again, with your signature",
		Long:              "Takes a project's entry out of projects.yaml, and its copy away.\n" + cli.SignedChange,
		Example:           "  durward config untrust ~/work/shop/durward.yaml",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeProjects,
		RunE: a.Configured(func(ctx context.Context, cfg installdir.Config, args []string) error {
			path, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			out, err := a.ChangeRules(ctx, cfg, cli.RuleChange{Action: "config untrust " + filepath.Base(path), Yes: yes, Plans: func() ([]*signedchange.Plan, error) {
				plans, err := rulefile.Untrust(cfg, path)
				if errors.Is(err, rulefile.ErrUntrusted) {
					err = cli.Usage("See: durward config show", "no file %s is trusted", clean.Visible(path))
				}
				return plans, projectsProblem(err)
			}})
			return a.ReportRules(out, err, clean.Visible(path)+" is not trusted any more")
		}),
	}
	a.RuleFlags(cmd, nil, &yes)
	return cmd
}

// completeProjects completes the files that are trusted.
func (a *app) completeProjects(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.CompleteFrom(args, func(cfg installdir.Config) (out []string, err error) {
		known, err := rulefile.Projects(cfg)
		for _, p := range known {
			out = append(out, clean.Visible(p.Path))
		}
		return out, err
	})
}
