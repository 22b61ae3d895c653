package servers

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
)

// running is one instance of a server as --json has it.
type running struct {
	ID        string    `json:"id"`
	State     string    `json:"state"`
	Why       string    `json:"why,omitempty"`
	For       string    `json:"for,omitempty"`
	StartedAt time.Time `json:"started_at,omitzero"` // in UTC, to the second
	Calls     uint32    `json:"calls"`
	Changed   []string  `json:"changed,omitempty"`
	Absent    []string  `json:"absent,omitempty"`
	Sandbox   bool      `json:"sandbox"`
}

// egress is the control side of the process that runs servers.
func (a *app) egress(s *cli.Session) (egressv1.ControlServiceClient, error) {
	if s.Egress == nil {
		return nil, cli.Failed(cli.AddEgress(a.Home), "there is no egress here, which runs the servers")
	}
	return s.Egress, nil
}

// asking makes a command's function of one that asks egress, and the command's arguments.
func (a *app) asking(f func(context.Context, egressv1.ControlServiceClient, []string) error) func(*cobra.Command, []string) error {
	return a.Connected(func(ctx context.Context, s *cli.Session, args []string) error {
		e, err := a.egress(s)
		if err != nil {
			return err
		}
		return f(ctx, e, args)
	})
}

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "What runs of the servers, and what is not as you accepted it",
		Long: `Asks egress which servers run, for which client, and which of their tools are not as you accepted them: no call of these passes
until you look at the difference (durward server diff) and accept it.`,
		Example: "  durward server status",
		RunE: a.asking(func(ctx context.Context, e egressv1.ControlServiceClient, _ []string) error {
			list, err := e.ListServers(ctx, &egressv1.ListServersRequest{})
			if err != nil {
				return err
			}
			shown := []running{}
			for _, one := range list.GetServers() {
				r := running{ID: one.GetId(), State: one.GetState(), Why: one.GetWhy(), For: one.GetPrincipal(), Calls: one.GetCalls(), Changed: one.GetChanged(), Absent: one.GetAbsent(), Sandbox: !one.GetUnconfined()}
				if at := one.GetStartedAt(); at != nil {
					r.StartedAt = at.AsTime().Truncate(time.Second)
				}
				shown = append(shown, r)
			}
			return a.Show(map[string]any{"servers": shown, "problems": append([]string{}, list.GetProblems()...)}, func() {
				a.Out.Table([]string{"SERVER", "STATE", "FOR", "UP FOR", "CALLS", "NOTE"}, output.Each(shown, a.row))
				for _, p := range list.GetProblems() {
					a.Out.Printf("! %s\n", clean.Line(p, 500))
				}
			})
		}),
	}
}

// row is an instance in the table.
func (a *app) row(r running) []string {
	up := ""
	if !r.StartedAt.IsZero() {
		up = approval.Duration(a.Now().Sub(r.StartedAt))
	}
	return []string{clean.Visible(r.ID), r.State, clean.Visible(cmp.Or(r.For, "all")), up, fmt.Sprint(r.Calls), note(r)}
}

// note is what a person ought to know of an instance, in one line.
func note(r running) string {
	var out []string
	if !r.Sandbox {
		out = append(out, "NO SANDBOX")
	}
	if len(r.Changed) > 0 {
		out = append(out, "changed: "+strings.Join(r.Changed, ", "))
	}
	if len(r.Absent) > 0 {
		out = append(out, "gone: "+strings.Join(r.Absent, ", "))
	}
	if r.Why != "" {
		out = append(out, r.Why)
	}
	return clean.Line(strings.Join(out, "; "), 300)
}

func (a *app) logsCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "logs SERVER",
		Short:             "What a server wrote to its standard error lately",
		Long:              "Shows the last of what a server's processes wrote, cleaned. It is a stranger's text: nothing in it is Durward's.",
		Example:           "  durward server logs files",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.complete,
		RunE: a.asking(func(ctx context.Context, e egressv1.ControlServiceClient, args []string) error {
			logs, err := e.GetServerLogs(ctx, &egressv1.GetServerLogsRequest{Id: args[0]})
			if err != nil {
				return err
			}
			text := clean.Block(logs.GetText(), clean.Whole)
			return a.Show(map[string]any{"id": args[0], "text": text}, func() { a.Out.Printf("%s\n", strings.TrimRight(text, "\n")) })
		}),
	}
}

func (a *app) restartCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "restart SERVER",
		Short: "End a server's processes; the next call starts it anew",
		Long: `Ends a server's processes, and lets one that ended too often start again with the next call. What was under way fails, and says so.
Nothing of what it may or of what you accepted is changed.`,
		Example:           "  durward server restart files",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.complete,
		RunE: a.asking(func(ctx context.Context, e egressv1.ControlServiceClient, args []string) error {
			ended, err := e.RestartServer(ctx, &egressv1.RestartServerRequest{Id: args[0]})
			if err != nil {
				return err
			}
			return a.Show(map[string]any{"id": args[0], "ended": ended.GetEnded()}, func() {
				a.Out.Printf("%d ended; the next call starts %s anew\n", ended.GetEnded(), clean.Visible(args[0]))
			})
		}),
	}
}
