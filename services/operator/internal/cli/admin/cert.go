package admin

import (
	"strings"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
)

func (a *app) certCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cert",
		Short: "The processes' certificates",
		Long:  `Certificates live 24 hours. "durward up" renews them by itself at half their life.`,
	}
	status := &cobra.Command{
		Use:   "status",
		Short: "Who each certificate is for, and when it ends",
		RunE: func(*cobra.Command, []string) error {
			if _, err := a.Config(); err != nil {
				return err
			}
			return a.certStatus()
		},
	}
	renew := &cobra.Command{
		Use:   "renew",
		Short: "Issue new certificates now",
		Long:  "Issues a new certificate to every process and to this program; running processes take them up within a second.",
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.Config()
			if err != nil {
				return err
			}
			renewed, err := a.Home.RenewCertificates(cfg.Operator, a.Now(), true)
			if err != nil {
				return err
			}
			return a.Show(map[string]any{"renewed": renewed}, func() {
				a.Out.Printf("%s renewed: %s\n", a.Out.Green("✓"), strings.Join(renewed, ", "))
			})
		},
	}
	cmd.AddCommand(status, renew)
	return cmd
}

func (a *app) certStatus() error {
	certificates := a.Home.Certificates()
	now := a.Now()
	if a.JSON {
		return a.Out.Value(map[string]any{"certificates": certificates})
	}
	rows := make([][]string, 0, len(certificates))
	bad := 0
	for _, c := range certificates {
		left := a.Out.Red(c.Problem)
		switch {
		case c.Problem != "":
			bad++
		case now.After(c.NotAfter):
			bad++
			left = a.Out.Red("expired " + approval.Duration(now.Sub(c.NotAfter)) + " ago")
		default:
			left = approval.Duration(c.NotAfter.Sub(now))
		}
		rows = append(rows, []string{c.Role, c.Identity, left})
	}
	a.Out.Table([]string{"PROCESS", "IDENTITY", "EXPIRES IN"}, rows)
	if bad > 0 {
		return cli.Failed("Issue new ones: durward cert renew", "%d of %d certificates cannot be used", bad, len(certificates))
	}
	return nil
}
