package servers

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/servers"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/downstream"
)

// shown is a server as --json has it.
type shown struct {
	ID      string   `json:"id"`
	Runs    string   `json:"runs"`
	InForce bool     `json:"in_force"`
	Why     string   `json:"why,omitempty"`
	Tools   int      `json:"tools"`
	Sandbox []string `json:"sandbox"`
	bare    bool
}

// tool is a tool as --json has it.
type tool struct {
	Name        string                     `json:"name"`
	Tier        string                     `json:"tier"`
	Title       string                     `json:"title,omitempty"`
	Description string                     `json:"description"`
	Input       json.RawMessage            `json:"input_schema"`
	Output      json.RawMessage            `json:"output_schema,omitempty"`
	Annotations json.RawMessage            `json:"annotations,omitempty"`
	Roles       map[string]downstream.Role `json:"roles,omitempty"`
	Digest      string                     `json:"definition_digest"`
}

func toolOf(server string, t downstream.Tool) tool {
	digest := t.Digest(server)
	return tool{contract.ServerTool(server, t.Name), contract.TierName(t.Tier), t.Title, t.Description, t.Input, t.Output, t.Annotations, t.Roles,
		canonical.FormatDigest(digest[:])}
}

func summary(s servers.State, e downstream.Entry) shown {
	out := shown{ID: e.ID, Runs: runs(e), Sandbox: sandbox(e), bare: e.Sandbox.None}
	if at := slices.IndexFunc(s.InForce, func(p downstream.Pinned) bool { return p.Entry.ID == e.ID }); at >= 0 {
		out.InForce, out.Tools = true, len(s.InForce[at].Tools)
	}
	if at := slices.IndexFunc(s.Left, func(l downstream.Left) bool { return l.ID == e.ID }); at >= 0 {
		out.Why = s.Left[at].Why
	}
	return out
}

// runs says how a server is started.
func runs(e downstream.Entry) string {
	switch {
	case e.NPM != nil:
		what := []string{"npm:" + e.NPM.Name + "@" + e.NPM.Version}
		if e.NPM.Bin != "" {
			what = append(what, "("+e.NPM.Bin+")")
		}
		return clean.Visible(strings.Join(append(what, e.NPM.Args...), " "))
	case e.Program != nil:
		return clean.Visible(strings.Join(append([]string{e.Program.Path}, e.Program.Args...), " "))
	}
	return clean.Visible(e.URL)
}

// sandbox says what a server may and what it is given, in words.
func sandbox(e downstream.Entry) []string {
	if e.URL != "" {
		out := []string{"it runs elsewhere: what it does there nobody here bounds"}
		if e.Bearer != "" {
			out = append(out, "gets the credential "+clean.Visible(e.Bearer)+" with each call")
		}
		return out
	}
	if e.Sandbox.None {
		return append([]string{"NO SANDBOX: it may whatever its user may"}, given(e)...)
	}
	s := e.Sandbox
	out := []string{}
	for _, folder := range s.Read {
		out = append(out, "reads "+clean.Visible(folder))
	}
	for _, folder := range s.Write {
		out = append(out, "reads and writes "+clean.Visible(folder))
	}
	if len(s.Domains) == 0 {
		out = append(out, "has no network")
	} else {
		out = append(out, "reaches "+clean.Visible(strings.Join(s.Domains, ", ")))
	}
	return append(append(out, given(e)...), fmt.Sprintf("at most %d MiB, %g core%s, %s", s.MemoryMiB, s.CPU, cli.When(s.CPU != 1, "s"), clean.Count(s.Processes, "process", "processes")))
}

// given says which variables a server's process gets: those with a credential, and those whose value the entry has.
func given(e downstream.Entry) (out []string) {
	for _, name := range slices.Sorted(maps.Keys(e.Credentials)) {
		out = append(out, fmt.Sprintf("gets the credential %s as $%s", clean.Visible(e.Credentials[name]), clean.Visible(name)))
	}
	for _, name := range slices.Sorted(maps.Keys(e.Env)) {
		out = append(out, fmt.Sprintf("gets $%s: %s", clean.Visible(name), clean.Visible(e.Env[name])))
	}
	return out
}

func (a *app) listCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "The servers, and whether each is in force",
		Example: "  durward server list",
		RunE: a.Configured(func(_ context.Context, cfg installdir.Config, _ []string) error {
			s, _, err := a.state(cfg)
			if err != nil {
				return err
			}
			rows := output.Each(s.Entries, func(e downstream.Entry) shown { return summary(s, e) })
			return a.Show(map[string]any{"servers": rows}, func() {
				if len(rows) == 0 {
					a.Out.Printf("No server of other people is here. Add one: durward server add -h\n")
					return
				}
				a.Out.Table([]string{"SERVER", "RUNS", "TOOLS", "STATE"}, output.Each(rows, func(r shown) []string {
					state := a.Out.Green("in force")
					if !r.InForce {
						state = a.Out.Yellow(clean.Visible(r.Why))
					}
					if r.bare {
						state += ", " + a.Out.Red("NO SANDBOX")
					}
					return []string{r.ID, clean.Line(r.Runs, 80), fmt.Sprint(r.Tools), state}
				}))
			})
		}),
	}
}

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "show SERVER",
		Short:             "One server: how it runs, and what it may",
		Example:           "  durward server show files",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.complete,
		RunE: a.named(func(_ context.Context, _ installdir.Config, s servers.State, _ servers.Files, e downstream.Entry) error {
			row := summary(s, e)
			return a.Show(row, func() {
				a.about(e)
				if row.InForce {
					a.Out.Printf("  %s, with %s\n", a.Out.Green("in force"), clean.Count(row.Tools, "tool"))
				} else {
					a.Out.Printf("  %s\n", a.Out.Yellow("not in force: "+clean.Visible(row.Why)))
				}
			})
		}),
	}
}

// unpinned are the files that arguments name: a program's digest is of the program alone, and may be an interpreter's.
func unpinned(e downstream.Entry) (files []string) {
	var args []string
	switch {
	case e.Program != nil:
		args = e.Program.Args
	case e.NPM != nil:
		args = e.NPM.Args
	}
	for _, arg := range args {
		if _, value, with := strings.Cut(arg, "="); with && strings.HasPrefix(arg, "-") {
			arg = value
		}
		if info, err := os.Stat(arg); filepath.IsAbs(arg) && err == nil && info.Mode().IsRegular() {
			files = append(files, arg)
		}
	}
	return files
}

// about says how a server runs and what it may.
func (a *app) about(e downstream.Entry) {
	out := a.Display()
	out.Printf("%s  %s\n", out.Bold(e.ID), runs(e))
	for i, line := range sandbox(e) {
		if e.Sandbox.None && i == 0 {
			line = out.Red(line)
		}
		out.Printf("  %s\n", line)
	}
	for _, file := range unpinned(e) {
		out.Printf("  %s\n", out.Yellow(clean.Visible(file)+" is not pinned: whoever may write it may change what the server does"))
	}
	for _, of := range []struct {
		is   bool
		text string
	}{
		{e.Shared, "one process serves every client"}, {e.PerSession, "each session has a process of its own, and nothing of it is kept"}, {e.Remote, "clients on other hosts may use it"},
		{e.Resources, "its resources are offered too"}, {e.Prompts, "its prompts are offered too"}, {e.Images, "its pictures are passed on, unseen"},
		{e.Elicitation, "it may ask questions during a call"},
	} {
		if of.is {
			out.Printf("  %s\n", out.Yellow(of.text))
		}
	}
}

func (a *app) toolsCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "tools SERVER",
		Short:             "A server's tools, as you accepted them",
		Example:           "  durward server tools files\n  durward server tools files --json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.complete,
		RunE: a.named(func(_ context.Context, _ installdir.Config, s servers.State, _ servers.Files, e downstream.Entry) error {
			p, _ := s.Pinned(e.ID)
			tools := output.Each(p.Tools, func(t downstream.Tool) tool { return toolOf(e.ID, t) })
			return a.Show(map[string]any{"server": e.ID, "instructions": p.Instructions, "tools": tools}, func() {
				if len(tools) == 0 {
					a.Out.Printf("None was accepted: %s server accept %s\n", a.Typed(), e.ID)
				}
				a.tools(p)
			})
		}),
	}
}

// tools shows every definition, as agents get to see it.
func (a *app) tools(p downstream.Pinned) {
	out := a.Display()
	if p.Instructions != "" {
		out.Printf("Its instructions, which agents do not get:\n%s\n", quoted(p.Instructions))
	}
	for _, t := range p.Tools {
		tier := contract.TierName(t.Tier)
		switch tier {
		case "READ":
			tier = out.Green(tier)
		case "DESTRUCTIVE":
			tier = out.Red(tier)
		}
		out.Printf("%s  %s\n", out.Bold(contract.ServerTool(p.Entry.ID, t.Name)), tier)
		if t.Title != "" {
			out.Printf("%s\n", quoted(t.Title))
		}
		if t.Description != "" {
			out.Printf("%s\n", quoted(t.Description))
		}
		out.Printf("    arguments: %s\n", clean.Visible(string(t.Input)))
		if len(t.Output) > 0 {
			out.Printf("    results: %s\n", clean.Visible(string(t.Output)))
		}
		if len(t.Annotations) > 0 {
			out.Printf("    it says of itself: %s\n", clean.Visible(string(t.Annotations)))
		}
		for _, pointer := range slices.Sorted(maps.Keys(t.Roles)) {
			out.Printf("    %s is a %s\n", clean.Visible(pointer), t.Roles[pointer])
		}
	}
}

// quoted is a server's text of several lines, made visible.
func quoted(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = "  │ " + clean.Visible(line)
	}
	return strings.Join(lines, "\n")
}

// present shows everything that is about to be signed of a server, with what is suspicious last, where it is seen.
func (a *app) present(p downstream.Pinned, findings []downstream.Finding) {
	out := a.Display()
	a.about(p.Entry)
	a.tools(p)
	for _, f := range findings {
		text := clean.Visible(f.Text)
		if f.Tool != "" {
			text = f.Tool + ": " + text
		}
		switch {
		case f.Phrase:
			text = out.Red("! " + text)
		case f.Refused:
			text = out.Yellow("left out: " + text)
		default:
			text = out.Yellow(text)
		}
		out.Printf("%s\n", text)
	}
}
