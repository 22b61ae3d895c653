package clients

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/operator/internal/install"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/trust"
)

func (a *app) clientAddToolCommand() *cobra.Command {
	var unixUser string
	var yes bool
	c := client.Client{Channel: "api"}
	cmd := &cobra.Command{
		Use:   "add-tool NAME --may TOOL,…",
		Short: "Let an internal program in, which calls gRPC with a certificate of its own",
		Long: `Issues a certificate for an internal program, in a folder with what it needs to connect, and enters it in clients.yaml.
The program calls vault, executor and egress itself, and is bound as an agent is: a session, permits, grants, approvals,
limits. It may call the tools that --may names, and nothing without it; rules decide beside that. The certificate is
renewed with those of the processes.
` + cli.SignedChange,
		Example: "  durward client add-tool reporter --may list_services,service_info\n" +
			"  sudo durward client add-tool night-shift --may list_services,switch_mode --unix-user batch",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.Configured(func(ctx context.Context, cfg installdir.Config, args []string) (err error) {
			c.ID = args[0]
			if err := client.CheckName(c.ID); err != nil {
				return cli.Usage("", "%v", err)
			}
			if c.TierCeiling, err = highestTier(c.May); err != nil {
				return err
			}
			tool, err := a.tool(cfg, c.ID, unixUser)
			if err != nil {
				return cli.Usage("", "%s", clean.Line(err.Error(), 300))
			}
			c.Identity = tool.ID.String()
			if err := a.enterClient(ctx, cfg, c, yes, func(*client.Client) error { return tool.Create(cfg, c.May) }, tool.Remove); err != nil {
				return err
			}
			connect := filepath.Join(tool.Dir, installdir.FileConnect)
			return a.Show(map[string]any{"client": c.ID, "identity": c.Identity, "folder": tool.Dir, "connect": connect, "may": cli.NonNil(c.May)}, func() {
				a.Out.Printf("%s %s may connect as %s, up to %s.\n  connect  %s\n", a.Out.Green("✓"), c.ID, c.Identity, c.TierCeiling, connect)
			})
		}),
	}
	cmd.Flags().StringSliceVar(&c.May, "may", nil, "the tools that it may call")
	cmd.Flags().StringVar(&c.User, "user", "", "whose program it is: the name of a folder of users/ in the security configuration")
	cmd.Flags().StringVar(&unixUser, "unix-user", "", "who runs it, on an installed host: the key is that user's alone")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask; the signing key is still needed")
	cli.CompleteFlag(cmd, "may", cli.OneOfThose(func() (names []string) {
		for _, t := range contract.Tools() {
			if t.Sink != optionsv1.Role_ROLE_VAULT {
				names = append(names, t.Name)
			}
		}
		return names
	}))
	cli.CompleteFlag(cmd, "unix-user", cli.CompleteAccounts)
	return cmd
}

// highestTier is the highest tier of the tools of those names.
func highestTier(names []string) (string, error) {
	highest := optionsv1.Tier_TIER_READ
	for i, name := range names {
		tool, ok := contract.Lookup(name)
		switch {
		case !ok:
			return "", cli.Usage("See the tools: durward client add-tool --may <TAB>", "there is no tool %s", clean.Visible(name))
		case tool.Sink == optionsv1.Role_ROLE_VAULT:
			return "", cli.Usage("Leave it out.", "%s is every client's: it is about its own session", name)
		case slices.Contains(names[:i], name):
			return "", cli.Usage("", "%s is given twice", name)
		}
		highest = max(highest, tool.Tier)
	}
	return contract.TierName(highest), nil
}

// tool is where an internal program's files are: in an installed host's folders, or in the home.
func (a *app) tool(cfg installdir.Config, name, unixUser string) (installdir.Tool, error) {
	if cfg.TrustDir == install.TrustDir {
		return install.Tool("/", name, unixUser)
	}
	return a.Home.Tool(name)
}

// planTool adds the revocation of an internal program's certificate, which every process looks at, to the plans.
func (a *app) planTool(cfg installdir.Config, name string, plans []*signedchange.Plan) ([]*signedchange.Plan, error) {
	list, err := client.Read(cfg.Clients)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(list, func(c client.Client) bool { return c.ID == name })
	if at < 0 || list[at].Identity == "" {
		return plans, nil
	}
	revoked, err := signedchange.PrepareOne(filepath.Join(cfg.TrustDir, trust.FileRevoked), "trust/"+trust.FileRevoked, func(before []byte) ([]byte, error) {
		if len(before) == 0 {
			before = []byte("revoked: []\n")
		}
		return install.Ban(before, list[at].Identity)
	})
	return append(revoked, plans...), err
}

// removeTool takes the files of an internal program away; a client that is none has none there.
func (a *app) removeTool(cfg installdir.Config, name string) error {
	if client.CheckName(name) != nil {
		return nil
	}
	tool, err := a.tool(cfg, name, "")
	if err == nil {
		err = tool.Remove()
	}
	if err != nil {
		return cli.Failed("Remove the folder.", "it is locked out, and its files are left: %s", clean.Line(err.Error(), 300))
	}
	return nil
}
