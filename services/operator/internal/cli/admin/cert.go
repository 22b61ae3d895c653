package admin

import (
	"cmp"
	"context"
	"strings"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/output"
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
		RunE:  a.Configured(func(context.Context, installdir.Config, []string) error { return a.certStatus() }),
	}
	renew := &cobra.Command{
		Use:   "renew",
		Short: "Issue new certificates now",
		Long:  "Issues a new certificate to every process and to this program; running processes take them up within a second.",
		RunE: a.Configured(func(_ context.Context, cfg installdir.Config, _ []string) error {
			renewed, err := a.Home.RenewCertificates(cfg.Operator, a.Now(), true)
			if err != nil {
				return err
			}
			return a.Show(map[string]any{"renewed": renewed}, func() {
				a.Out.Printf("%s renewed: %s\n", a.Out.Green("✓"), strings.Join(renewed, ", "))
			})
		}),
	}
	cmd.AddCommand(status, renew)
	return cmd
}

func (a *app) certStatus() error {
	certificates := a.Home.Certificates()
	now := a.Now()
	bad := 0 // for people alone: a program reads each certificate's end
	err := a.Show(map[string]any{"certificates": certificates}, func() {
		a.Out.Table([]string{"PROCESS", "IDENTITY", "EXPIRES IN"}, output.Each(certificates, func(c installdir.Certificate) []string {
			left := approval.Duration(c.NotAfter.Sub(now))
			if c.Problem != "" || now.After(c.NotAfter) {
				bad++
				left = a.Out.Red(cmp.Or(c.Problem, "expired "+approval.Duration(now.Sub(c.NotAfter))+" ago"))
			}
			return []string{c.Role, c.Identity, left}
		}))
	})
	if err == nil && bad > 0 {
		err = cli.Failed("Issue new ones: durward cert renew", "%d of %d certificates cannot be used", bad, len(certificates))
	}
	return err
}
