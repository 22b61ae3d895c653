// Package host is the commands for the host: services, modes, models, GPUs, simulations and what happens now.
package host

import (
	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
)

// app is one run of the program, with this group's commands.
type app struct{ *cli.App }

// Commands returns the commands of this group.
func Commands(core *cli.App) []*cobra.Command {
	a := &app{core}
	services := []*cobra.Command{a.serviceListCommand("services", "ls"), a.serviceCommand(), a.logsCommand()}
	for _, v := range verbs {
		services = append(services, a.actCommand(v))
	}
	return append(cli.Grouped(cli.GroupServices, services...), cli.Grouped(cli.GroupHost, a.modeCommand(), a.simulateCommand(), a.switchCommand(),
		a.switchesCommand(), a.modelCommand(), a.gpuCommand(), a.watchCommand())...)
}
