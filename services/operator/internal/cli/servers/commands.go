// Package servers is the commands about other people's MCP servers. Both files are the operator's; no RPC changes them.
package servers

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/servers"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/downstream"
)

// app is one run of the program, with this group's commands.
type app struct{ *cli.App }

// Commands returns the commands of this group.
func Commands(core *cli.App) []*cobra.Command {
	a := &app{core}
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Other people's MCP servers, behind the same door",
		Long: `Other people's MCP servers, each in a sandbox of its own, whose tools agents reach through Durward: under tiers, approvals and
records like Durward's own. servers.yaml says how each runs and what it may; servers.lock holds what each of its tools is, as
you saw and signed it. A tool whose definition is another one than that is not called.`,
		Example: `  durward server add npm:@modelcontextprotocol/server-filesystem@2026.8.31 --allow-read /srv/docs -- /srv/docs
  durward server add program /usr/local/bin/notes-mcp --read find_note
  durward server add https://mcp.example/mcp
  durward server add ~/.cursor/mcp.json github
  durward server list
  durward server diff files`,
	}
	cmd.AddCommand(a.addCommand(), a.listCommand(), a.showCommand(), a.toolsCommand(), a.diffCommand(), a.acceptCommand(), a.removeCommand(),
		a.statusCommand(), a.logsCommand(), a.restartCommand())
	return cli.Grouped(cli.GroupAccess, cmd)
}

// state reads both files.
func (a *app) state(cfg installdir.Config) (servers.State, servers.Files, error) {
	files := servers.FilesOf(cfg)
	s, err := files.Read(a.Now())
	if err != nil {
		return s, files, cli.Failed("Nothing of other people's servers is in force until it is corrected.", "%s", clean.Line(err.Error(), 500))
	}
	return s, files, nil
}

// named makes a command's function of one that takes the server that a person named, and what it stands in.
func (a *app) named(f func(context.Context, installdir.Config, servers.State, servers.Files, downstream.Entry) error) func(*cobra.Command, []string) error {
	return a.Configured(func(ctx context.Context, cfg installdir.Config, args []string) error {
		s, files, err := a.state(cfg)
		if err != nil {
			return err
		}
		e, known := s.Entry(args[0])
		if !known {
			return cli.Usage("See: durward server list", "there is no server %s", clean.Visible(args[0]))
		}
		return f(ctx, cfg, s, files, e)
	})
}

// complete completes a server.
func (a *app) complete(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.CompleteFrom(args, func(cfg installdir.Config) ([]string, error) { return cfg.Servers(), nil })
}

// listed runs a server once and returns what it says of itself, cleaned, with the digest of its program.
func (a *app) listed(ctx context.Context, s servers.State, files servers.Files, e downstream.Entry) (p downstream.Pinned, findings []downstream.Finding, err error) {
	p.Entry = e
	switch {
	case e.NPM != nil:
		a.Out.Remark("Installing %s@%s from npm, without running anything of it …", clean.Visible(e.NPM.Name), clean.Visible(e.NPM.Version))
		_, p.ProgramDigest, err = servers.Install(ctx, servers.RunNPM, files.Packages, *e.NPM)
	case e.Program != nil:
		p.ProgramDigest, err = downstream.FileDigest(e.Program.Path)
	}
	if err != nil {
		return p, nil, cli.Failed("Nothing was changed.", "%s", clean.Line(err.Error(), 500))
	}
	folder, err := cli.OwnFolder()
	if err != nil {
		return p, nil, err
	}
	where := "in its sandbox, without a network"
	if e.URL != "" {
		where = "at its URL"
	} else if e.Sandbox.None {
		where = "WITHOUT A SANDBOX"
	}
	list := servers.ByProgram(folder, files.Own)
	if e.Bearer != "" && summary(s, e).InForce {
		list, where = a.byEgress, "at its URL, with its credential"
	}
	a.Out.Remark("Asking %s for its tools, %s …", e.ID, where)
	said, err := list(ctx, p, files.Packages)
	if err != nil {
		return p, nil, cli.Failed("Nothing was changed.", "%s", clean.Line(err.Error(), 500))
	}
	pinned, findings := downstream.Pin(e.ID, said.Instructions, said.Tools)
	pinned.ProgramDigest = p.ProgramDigest
	return pinned, findings, nil
}

// byEgress has egress ask a server on another host that is in force, with the credential that the vault gives to egress alone.
func (a *app) byEgress(ctx context.Context, p downstream.Pinned, _ string) (said *downstream.Listing, err error) {
	err = a.Run(ctx, func(ctx context.Context, s *cli.Session) error {
		e, err := a.egress(s)
		if err != nil {
			return err
		}
		answer, err := e.ListServerTools(ctx, &egressv1.ListServerToolsRequest{Id: p.Entry.ID})
		if err != nil {
			return errors.New(cli.PublicText(err))
		}
		return json.Unmarshal(answer.GetListing(), &said)
	})
	return said, err
}

// accepted is listed, with the tiers and roles that the entry has. A server elsewhere that lists nothing without its credential is accepted
// without tools first: its credential goes where an operator signed, and nowhere before. asked is the entry as it is run for this.
func (a *app) accepted(ctx context.Context, s servers.State, files servers.Files, e, asked downstream.Entry) (downstream.Pinned, error) {
	p, findings, err := a.listed(ctx, s, files, asked)
	if err != nil && e.Bearer != "" && !summary(s, e).InForce {
		a.about(e)
		a.Out.Remark("%s", a.Out.Yellow(cli.PublicText(err)))
		a.Out.Remark("Sign where the credential goes, and accept its tools afterwards: %s credential grant %s --server %s; %s server accept %s",
			a.Typed(), clean.Visible(e.Bearer), e.ID, a.Typed(), e.ID)
		p = downstream.Pinned{Entry: e}
		p.EntryDigest, err = e.Digest()
		return p, err
	}
	if err != nil {
		return p, err
	}
	err = servers.Accept(&p, e)
	a.present(p, findings)
	if err != nil {
		return p, cli.Usage("Name tools and arguments that stand above.", "%v", err)
	}
	return p, nil
}
