// Package life is the commands that keep an installation alive: backups, and what helps others to help.
package life

import (
	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
)

// app is one run of the program, with this group's commands.
type app struct{ *cli.App }

// Commands returns the commands of this group.
func Commands(core *cli.App) []*cobra.Command {
	a := &app{core}
	return cli.Grouped(cli.GroupRun, a.backupCommand(), a.restoreCommand(), a.supportCommand())
}
