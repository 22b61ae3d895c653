package egress

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/connections"
)

// reports are made of the connections that the audit log has (CFG-7).
var reports = []struct{ name, short, long string }{
	{"csp", "A Content-Security-Policy of the origins that answered", `Writes a Content-Security-Policy that lets a page reach the origins that answered agents' requests, and nothing else.`},
	{"har", "An HTTP archive of the requests", `Writes an HTTP archive (HAR 1.2) of the requests, without paths, headers and bodies: an origin stands in the place of each URL.`},
	{"sarif", "What was refused or looks wrong, as SARIF", `Writes what was refused, by which rule, and origins whose names look wrong, as SARIF 2.1.0, which code-scanning programs read.`},
}

func (a *app) reportCommands() (commands []*cobra.Command) {
	for _, r := range reports {
		var f logFilter
		cmd := &cobra.Command{
			Use: r.name, Short: r.short, Long: r.long, Example: "  durward egress " + r.name + " --since 24h",
			PreRunE: func(*cobra.Command, []string) error {
				if a.Format == output.Quiet {
					return cli.Usage("Leave --quiet away.", "a report has no ids")
				}
				return nil
			},
			RunE: a.Connected(func(ctx context.Context, s *cli.Session, _ []string) error {
				rows, err := a.connected(ctx, s, f)
				if err != nil {
					return err
				}
				report, err := connections.Report(r.name, rows, connections.Options{Version: a.Streams.Version})
				if err != nil {
					return err
				}
				if text, is := report.(string); is {
					return a.Show(map[string]any{r.name: text}, func() { a.Out.Printf("%s\n", text) })
				}
				raw, err := json.MarshalIndent(report, "", "  ")
				if err != nil {
					return err
				}
				return a.Show(report, func() { a.Out.Printf("%s\n", raw) })
			}),
		}
		f.flags(cmd, 100_000)
		commands = append(commands, cmd)
	}
	return commands
}
