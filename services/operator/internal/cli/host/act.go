package host

import (
	"context"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
)

const signedRoad = `
It takes the same road as an agent's request: you are shown the target as the executor has it and the
whole statement, you sign it with your key, the vault grants it, the executor checks your signature
itself, and everything is recorded. No agent is involved.

Without a terminal it refuses unless --yes is given; a protected key asks for its passphrase all the same.`

// verb is a change of one service that a person can ask for.
type verb struct {
	word, tool, short, long string
}

var verbs = []verb{
	{"start", "start_service", "Start a service, by your own signed command",
		"Starts a service and waits until it answers. A service that does not fit in GPU memory is not started."},
	{"stop", "stop_service", "Stop a service, by your own signed command",
		"Stops a service. Requests in flight end with it."},
	{"sleep", "sleep_service", "Put a service to sleep, by your own signed command",
		"Puts a service to sleep: its engine gives back most of its GPU memory, and waking it is quicker than a start.\n" +
			"That the memory is free is measured, not believed."},
	{"wake", "wake_service", "Wake a sleeping service, by your own signed command",
		"Wakes a sleeping service, if it fits in GPU memory."},
}

// actCommand is one verb, below `durward` or `durward service`.
func (a *app) actCommand(v verb) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:               v.word + " ID",
		Short:             v.short,
		Long:              v.long + "\n" + signedRoad,
		Example:           "  durward " + v.word + " demo-chat",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.CompleteServices,
		RunE: a.Connected(func(ctx context.Context, s *cli.Session, args []string) error {
			return a.ActOnService(ctx, s, v.tool, args[0], yes)
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before signing")
	return cmd
}
