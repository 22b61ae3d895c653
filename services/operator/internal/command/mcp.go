package command

import (
	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/bridge"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/platform/clean"
)

func (a *app) mcpCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "The stdio bridge that agent programs start",
		Long: `Speaks MCP over standard input and output with an agent program, and with the gateway in the client's name.
It reads the client's token and key from files that only you can read, and signs what the client asks
for, so that a hostile gateway cannot ask in its name. It has no authority of yours: what changes
something still waits for "durward approve".

Agent programs start it; "durward client connect claude-code" writes that into their configuration.`,
		Example:           "  durward mcp --client claude-code",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if name == "" {
				return usage("Make one: durward client add NAME", "--client NAME is required")
			}
			if err := client.CheckName(name); err != nil {
				return usage("", "%v", err)
			}
			cfg, err := a.config()
			if err != nil {
				return err
			}
			credentials, err := client.LoadCredentials(a.home.Client(name))
			if err != nil {
				return failed("Make it: durward client add "+name, "the client %s has no usable token here: %s", name, clean.Line(err.Error(), 300))
			}
			b, err := bridge.New(bridge.Config{
				Endpoint: cfg.MCPURL, Token: credentials.Token, Client: name, Key: credentials.Key,
				In: a.streams.In, Out: a.streams.Out,
				Report: func(line string) { a.out.Remark("durward mcp: %s", clean.Line(line, 500)) },
			})
			if err != nil {
				return err
			}
			return b.Run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&name, "client", "", "the client whose token and key to use")
	if err := cmd.RegisterFlagCompletionFunc("client", a.completeClients); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}
