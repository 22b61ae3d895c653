package clients

import (
	"crypto/ed25519"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/bridge"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/platform/clean"
)

func (a *app) mcpCommand() *cobra.Command {
	var name, agent string
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "The stdio bridge that agent programs start",
		Long: `Speaks MCP over standard input and output with an agent program, and with the gateway in the client's name.
It reads the client's token and key from files that only you can read, and signs what the client asks
for, so that a hostile gateway cannot ask in its name. It has no authority of yours: what changes
something still waits for "durward approve".

A program that runs several agents starts a bridge for each and names it with --agent; policies can tell them
apart. The name must be one of the client's agents (durward client add --agent).

On another machine, over SSH, start it with a key that may do nothing else: durward client connect --ssh.

Agent programs start it; "durward client connect claude-code" writes that into their configuration.`,
		Example:           "  durward mcp --client claude-code\n  durward mcp --client orchestrator --agent planner",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if name == "" {
				return cli.Usage("Make one: durward client add NAME", "--client NAME is required")
			}
			if err := client.CheckName(name); err != nil {
				return cli.Usage("", "%v", err)
			}
			if agent != "" && !client.ValidAgent(agent) {
				return cli.Usage("", "an agent's name is letters, digits, dots, dashes and underscores, at most 64")
			}
			cfg, err := a.Config()
			if err != nil {
				return err
			}
			credentials, err := client.LoadCredentials(a.Home.Client(name))
			if err != nil {
				return cli.Failed("Make it: durward client add "+name, "the client %s has no usable token here: %s", name, clean.Line(err.Error(), 300))
			}
			b, err := bridge.New(bridge.Config{
				Endpoint: cfg.MCPURL, Token: credentials.Token, Client: name, Key: credentials.Key,
				In: a.Streams.In, Out: a.Streams.Out, Agent: agent,
				Reload: func() (string, ed25519.PrivateKey, error) {
					c, err := client.LoadCredentials(a.Home.Client(name))
					return c.Token, c.Key, err
				},
				Report: func(line string) { a.Out.Remark("durward mcp: %s", clean.Line(line, 500)) },
			})
			if err != nil {
				return err
			}
			return b.Run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&name, "client", "", "the client whose token and key to use")
	cmd.Flags().StringVar(&agent, "agent", "", "which of the client's agents it speaks for")
	return cmd
}
