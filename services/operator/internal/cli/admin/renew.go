package admin

import (
	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/install"
	"durward.internal/services/platform/clean"
)

func (a *app) renewCommand() *cobra.Command {
	var all bool
	var root string
	cmd := &cobra.Command{
		Use:   "renew",
		Short: "Issue new certificates of this host's installation that are due",
		Long: `For a host on which Durward was installed (durward install): issues a new certificate and key to every
process and operator whose own ends within 8 hours. durward-renew.service runs it as root, hourly and before the
processes start; running processes take new certificates up within a second.`,
		Example:           "  sudo durward renew\n  sudo durward renew --all",
		PersistentPreRunE: a.plain,
		RunE: func(*cobra.Command, []string) error {
			renewals, err := install.Renew(root, a.Now(), all)
			shown := a.Show(map[string]any{"certificates": renewals}, func() {
				n := 0
				for _, r := range renewals {
					if r.Renewed {
						n++
						a.Out.Printf("%s %s, until %s\n", a.Out.Green("✓"), clean.Visible(r.Name), r.NotAfter.Format("2006-01-02 15:04 MST"))
					}
				}
				a.Out.Printf("%d of %d certificates are new.\n", n, len(renewals))
			})
			if err != nil {
				return cli.Failed("The authority is root's: sudo durward renew", "%s", clean.Block(err.Error(), 2000))
			}
			return shown
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "renew what is not due as well")
	cmd.Flags().StringVar(&root, "root", "/", "`folder` below which it was installed")
	return cmd
}
