// Package catalog is the commands that check, show and extend the catalog.
package catalog

import (
	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
)

// app is one run of the program, with this group's commands.
type app struct{ *cli.App }

// Commands returns the commands of this group.
func Commands(core *cli.App) []*cobra.Command {
	a := &app{core}
	return cli.Grouped(cli.GroupHost, a.catalogCommand())
}
