package servers

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/servers"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/downstream"
)

// difference is a downstream.Difference as --json has it.
type difference struct {
	Tool   string            `json:"tool"`
	Change downstream.Change `json:"change"`
	Lines  []string          `json:"lines"`
}

func (a *app) diffCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "diff SERVER",
		Short: "What a server lists otherwise than you accepted it",
		Long: `Starts the server once, in its sandbox and without a network, and compares what it lists with what you accepted. Nothing is
changed.`,
		Example:           "  durward server diff files",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.complete,
		RunE: a.named(func(ctx context.Context, cfg installdir.Config, s servers.State, files servers.Files, e downstream.Entry) error {
			now, findings, err := a.listed(ctx, s, files, e)
			if err != nil {
				return err
			}
			was, _ := s.Pinned(e.ID)
			rows := differences(was, now, findings...)
			return a.Show(map[string]any{"server": e.ID, "differences": rows}, func() { a.differ(rows) })
		}),
	}
}

// differences have why a tool that was accepted cannot be any more, where a finding says so: it is none that the server does not list.
func differences(was, now downstream.Pinned, findings ...downstream.Finding) []difference {
	rows := []difference{}
	if was.Entry.ID != "" && was.ProgramDigest != now.ProgramDigest {
		rows = append(rows, difference{"", downstream.Changed, []string{"its program is another one"}})
	}
	for _, d := range downstream.Diff(was, now) {
		for _, f := range findings {
			if f.Refused && f.Tool == d.Tool && d.Change == downstream.Gone {
				d.Change, d.Lines = downstream.Changed, []string{"left out: " + clean.Visible(f.Text)}
			}
		}
		rows = append(rows, difference{d.Tool, d.Change, d.Lines})
	}
	return rows
}

func (a *app) differ(rows []difference) {
	out := a.Display()
	if len(rows) == 0 {
		out.Printf("It lists what you accepted.\n")
	}
	for _, r := range rows {
		name := cmp.Or(r.Tool, "the server")
		paint := map[downstream.Change]func(string) string{downstream.New: out.Green, downstream.Gone: out.Red, downstream.Changed: out.Yellow}[r.Change]
		out.Printf("%s  %s\n", out.Bold(clean.Visible(name)), paint(string(r.Change)))
		for _, line := range r.Lines {
			out.Printf("  %s\n", line)
		}
	}
}

func (a *app) acceptCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "accept SERVER",
		Short: "Accept a server's tools as they are now, with your signature",
		Long: `Starts the server once, in its sandbox and without a network, shows its tools and what differs from what you accepted before, and
puts them into servers.lock with your signature. It is for a server whose tools or program changed, and for an entry of servers.yaml
that you wrote or changed by hand: tiers and roles are taken from there.
` + cli.SignedChange,
		Example:           "  durward server accept files",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.complete,
		RunE: a.named(func(ctx context.Context, cfg installdir.Config, s servers.State, files servers.Files, e downstream.Entry) error {
			p, err := a.accepted(ctx, s, files, e, e)
			if err != nil {
				return err
			}
			if was, known := s.Pinned(e.ID); known {
				a.differ(differences(was, p))
			}
			return a.sign(ctx, cfg, files, func(now servers.State) *downstream.Lock { return now.With(p) }, change{
				action: "server accept " + e.ID, done: "the server " + e.ID + " has " + clean.Count(len(p.Tools), "tool"), yes: yes,
			})
		}),
	}
	a.RuleFlags(cmd, nil, &yes)
	return cmd
}

func (a *app) removeCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "remove SERVER",
		Short: "Take a server away, with your signature",
		Long: `Takes a server out of servers.yaml and servers.lock. Its tools are gone at once. Its own folder, and a package that was installed for
it, stay until you delete them.
` + cli.SignedChange,
		Example:           "  durward server remove files",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.complete,
		RunE: a.named(func(ctx context.Context, cfg installdir.Config, s servers.State, files servers.Files, e downstream.Entry) error {
			return a.sign(ctx, cfg, files, func(now servers.State) *downstream.Lock { return now.Without(e.ID) }, change{
				action: "server remove " + e.ID, done: "the server " + e.ID + " is gone", yes: yes,
				edit: func(before []byte) ([]byte, error) { return servers.Remove(before, e.ID) },
			})
		}),
	}
	a.RuleFlags(cmd, nil, &yes)
	return cmd
}
