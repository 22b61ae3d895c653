// Package credentials is the commands about the credentials that the vault keeps for services. No value is ever an argument of one, and
// none prints any.
package credentials

import (
	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
)

// app is one run of the program, with this group's commands.
type app struct{ *cli.App }

// Commands returns the commands of this group.
func Commands(core *cli.App) []*cobra.Command {
	a := &app{core}
	return cli.Grouped(cli.GroupAccess, a.credentialCommand(), a.vaultCommand())
}

func (a *app) credentialCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "credential",
		Short: "Credentials that services are given",
		Long: `The vault keeps credentials, such as a token for a model hub, encrypted. A service gets one when its catalogue entry
names it (credentials:) and you granted it to that service; both have to agree. The value goes from the vault to the
process that becomes the service, and is seen by no agent, gateway, log, record or executor on its way.`,
		Example: `  durward credential add hf-token --variable HF_TOKEN --file token.txt
  durward credential grant hf-token llm
  durward credential list`,
	}
	cmd.AddCommand(a.addCommand(), a.rotateCommand(), a.grantCommand(), a.revokeCommand(), a.removeCommand(), a.listCommand(), a.showCommand(),
		a.importCommand())
	return cmd
}

func (a *app) vaultCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "vault",
		Short: "The keys of the stored credentials",
		Long: `The stored credentials are encrypted under data keys, and those under a key from a file, from systemd, or of a passphrase
(credentials.key in vault.yaml). Until that key is there they are sealed: services that need one are not started, and
once any was given away no agent reads what programs write, in which it could not be found. Everything else goes on.`,
	}
	cmd.AddCommand(a.unsealCommand(), a.rotateKeysCommand())
	return cmd
}
