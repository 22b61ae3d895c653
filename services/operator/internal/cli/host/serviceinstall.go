package host

import (
	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/install"
	"durward.internal/services/operator/internal/unit"
	"durward.internal/services/platform/clean"
)

// serviceInstallCommand renders what lets systemd run a service. It installs nothing: a human reviews the file first.
func (a *app) serviceInstallCommand() *cobra.Command {
	var place cli.CatalogPlace
	var output, executor string
	var polkit bool
	cmd := &cobra.Command{
		Use:   "install ID",
		Short: "A hardened systemd unit for a service's program, to review",
		Long: `Renders a systemd unit for a service that the catalogue runs by its argv: a user of its own, this host's network
alone, no privileges, no restart behind the executor's back. Nothing is installed: you review the file, put it into
/etc/systemd/system, reload systemd, and name the unit in the catalogue's entry.

With --polkit it renders the rule that lets the executor's user start and stop exactly the units that the catalogue
names. It belongs into /etc/polkit-1/rules.d.`,
		Example: `  durward service install coder
  durward service install coder --out durward-service-coder.service
  durward service install --polkit --out 60-durward.rules`,
		Args: func(_ *cobra.Command, args []string) error {
			if n := len(args); polkit && n != 0 || !polkit && n != 1 {
				return cli.Usage("durward service install ID, or durward service install --polkit", "install takes one service's id, or --polkit")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			_, c, err := place.Load(a.App, cmd)
			if err != nil {
				return err
			}
			if polkit {
				text, err := unit.Polkit(c, executor)
				if err != nil {
					return cli.Failed("", "%s", clean.Line(err.Error(), 500))
				}
				return a.rendered("60-durward.rules", output, text)
			}
			s, ok := c.Lookup(args[0])
			if !ok {
				near := c.Suggest(args[0])
				return cli.Failed(cli.DidYouMean(near[:min(len(near), 1)], "durward catalog show lists the services."), "the catalogue has no service %q", clean.Line(args[0], 64))
			}
			text, err := unit.Render(s)
			if err != nil {
				return cli.Failed("", "%s", clean.Line(err.Error(), 500))
			}
			return a.rendered(unit.Name(s.ID), output, text)
		},
		ValidArgsFunction: a.CompleteEntries("service"),
	}
	cmd.Flags().StringVar(&output, "out", "", "write this file, which must not be there yet, instead of standard output")
	cli.CompleteFlag(cmd, "out", cli.CompleteFiles())
	cmd.Flags().BoolVar(&polkit, "polkit", false, "render the rule for polkit instead")
	cmd.Flags().StringVar(&executor, "executor-user", install.User("executor"), "with --polkit: the user that the executor runs as")
	place.Flags(cmd.Flags())
	return cmd
}

// RenderedJSON is a rendered file in --json. File is where it was written; empty: nowhere.
type RenderedJSON struct {
	Name string `json:"name"`
	Text string `json:"text"`
	File string `json:"file,omitempty"`
}

// rendered shows a file, or writes it where it was asked for.
func (a *app) rendered(name, output string, text []byte) error {
	if output != "" {
		if err := cli.WriteNew(output, text, 0o644); err != nil { // a unit is for everybody to read
			return err
		}
	}
	return a.Show(RenderedJSON{Name: name, Text: string(text), File: output}, func() {
		if output == "" {
			a.Out.Printf("%s", text)
		} else {
			a.Out.Printf("Wrote %s. Review it before you install it.\n", clean.Line(output, 500))
		}
	})
}
