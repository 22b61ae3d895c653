// Package admin is the commands that run, install and look after an installation: up and down, install, join and renew, status and
// doctor, operators and certificates.
package admin

import (
	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
)

// app is one run of the program, with this group's commands.
type app struct{ *cli.App }

// Commands returns the commands of this group.
func Commands(core *cli.App) []*cobra.Command {
	a := &app{core}
	return append(cli.Grouped(cli.GroupRun, a.upCommand(), a.downCommand(), a.statusCommand(), a.doctorCommand(), a.installCommand(), a.joinCommand(),
		a.renewCommand(), a.notifyCommand(), a.documentsCommand()), cli.Grouped(cli.GroupAccess, a.operatorCommand(), a.certCommand())...)
}
