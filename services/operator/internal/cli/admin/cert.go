package admin

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/install"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/clock"
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
		Long: `Shows the certificates of this home. As root, where Durward was installed, it shows those of every process and operator,
each as its process judges it: its chain, its identity, its key and its time. The last line is about the key with which the vault
signs grants and permits: what it signs is accepted until then.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if os.Geteuid() == 0 && !a.Home.Runs() {
				if list, err := install.Certificates("/"); err == nil && slices.ContainsFunc(list, func(c installdir.Certificate) bool { return !c.NotAfter.IsZero() }) {
					return a.certStatus(list, install.TrustDir)
				}
			}
			return a.Configured(func(_ context.Context, cfg installdir.Config, _ []string) error {
				return a.certStatus(a.Home.Certificates(), cfg.TrustDir)
			})(cmd, args)
		},
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

func (a *app) certStatus(certificates []installdir.Certificate, trustDir string) error {
	now := a.Now()
	shown := map[string]any{"certificates": certificates}
	key, unread := installdir.ReadGrantKey(trustDir, now)
	if unread == nil { // else each certificate has that problem
		shown["grant_key"] = key
	}
	unusable := func(c installdir.Certificate) bool { return c.Problem != "" || now.After(c.NotAfter) }
	err := a.Show(shown, func() {
		a.Out.Table([]string{"PROCESS", "IDENTITY", "EXPIRES IN"}, output.Each(certificates, func(c installdir.Certificate) []string {
			left := approval.Duration(c.NotAfter.Sub(now))
			if unusable(c) {
				left = a.Out.Red(cmp.Or(clean.Line(c.Problem, 300), "expired "+approval.Duration(now.Sub(c.NotAfter))+" ago"))
			}
			return []string{c.Role, c.Identity, left}
		}))
		switch says := key.Sentence(now) + "."; {
		case unread != nil:
		case key.Late:
			a.Out.Printf("%s\n", a.Out.Red(says))
		case key.Due:
			a.Out.Printf("%s %s\n", a.Out.Yellow(says), a.MeantHere(cli.NextGrantKey(a.Home)))
		default:
			a.Out.Printf("%s\n", says)
		}
	})
	bad := 0
	for _, c := range certificates {
		if unusable(c) {
			bad++
		}
	}
	if err == nil && bad > 0 {
		err = cli.Failed(a.Renewal(), "%d of %d certificates cannot be used", bad, len(certificates))
	}
	if err == nil && key.Late {
		err = cli.Failed(cli.NextGrantKey(a.Home), "the vault needs another signing key")
	}
	return err
}

func (a *app) renewCommand() *cobra.Command {
	var all bool
	var root string
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "renew",
		Short: "Issue new certificates of this host's installation that are due",
		Long: `For a host on which Durward was installed (durward install): issues a new certificate and key to every
process and operator whose own ends within 8 hours, or has yet to begin since the clock was set back.
durward-renew.service runs it as root: hourly, when the clock is set, and before the processes start; running processes
take new certificates up within a second. Where an authority elsewhere issues them it issues none, and fails for each that
is wrong or late.`,
		Example:     "  sudo durward renew\n  sudo durward renew --all",
		Annotations: map[string]string{cli.NoHome: ""}, // a unit of systemd has none
		RunE: func(cmd *cobra.Command, _ []string) error {
			for {
				err := a.renew(root, all)
				if every <= 0 {
					return err
				}
				if err != nil {
					a.Explain(err)
				}
				if !clock.SleepAwake(cmd.Context(), every, a.Now) {
					return nil
				}
			}
		},
	}
	cmd.Flags().DurationVar(&every, "every", 0, "stay, and look again after this time: where no timer does (deploy/compose)")
	cmd.Flags().BoolVar(&all, "all", false, "renew what is not due as well")
	cmd.Flags().StringVar(&root, "root", "/", "`folder` below which it was installed")
	return cmd
}

// renew renews once, and says what is new.
func (a *app) renew(root string, all bool) error {
	renewals, err := install.Renew(root, a.Now(), all)
	if err != nil && len(renewals) == 0 {
		if record, unread := install.ReadRecord(root); unread == nil && !record.Installed() {
			return cli.Failed("What durward up made it renews by itself, and at once with: durward cert renew", "Durward is not installed on this host")
		}
	}
	shown := a.Show(map[string]any{"certificates": cli.NonNil(renewals)}, func() {
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
}
