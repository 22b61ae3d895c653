// Package approve is the commands by which a person decides: what waits, approvals and refusals, what stands without asking, and
// the end of all of it.
package approve

import (
	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
)

// app is one run of the program, with this group's commands.
type app struct{ *cli.App }

// Commands returns the commands of this group.
func Commands(core *cli.App) []*cobra.Command {
	a := &app{core}
	return append(cli.Grouped(cli.GroupDecide, a.approvalsCommand(), a.approveCommand(), a.denyCommand(), a.tuiCommand(), a.standingCommand(),
		a.dangerousCommand(), a.muteCommand(), a.sessionsCommand()), cli.Grouped(cli.GroupRun, a.panicCommand(), a.resumeCommand())...)
}
