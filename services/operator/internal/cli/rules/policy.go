package rules

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/security/ownership"
)

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Which calls run, ask you, or are denied",
		Long: `The rules of who may call what. What is built in: tools that only look run, what changes something asks you, and
what nothing permits is denied. Your own rules are Cedar files in policy/ and the short cuts in tools.yaml; a forbid
always wins. What runs without asking must also stand in the executor's own list, or in egress': "durward policy allow"
writes both.`,
	}
	cmd.AddCommand(a.policyAllowCommand(), a.policyLimitCommand(), a.policyListCommand(), a.policyRemoveCommand(), a.policyCheckCommand(),
		a.policyExplainCommand(), a.policyTestCommand())
	return cmd
}

// shownRule is one rule, in --json too.
type shownRule struct {
	Rule    string `json:"rule"`
	Layer   string `json:"layer"`
	File    string `json:"file,omitempty"`
	Line    uint32 `json:"line,omitempty"`
	Forbids bool   `json:"forbids"`
}

func (a *app) policyListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "The rules in force",
		Example: "  durward policy list",
		RunE: a.Configured(func(ctx context.Context, cfg installdir.Config, _ []string) (err error) {
			rules := []shownRule{}
			vault := a.policyInForce(ctx, "")
			if vault != nil {
				for _, r := range vault.GetRules() {
					rules = append(rules, shownRule{clean.Visible(r.GetRule()), clean.Line(r.GetLayer(), 16), clean.Visible(r.GetFile()), r.GetLine(), r.GetForbids()})
				}
			} else if rules, err = rulesOfFiles(cfg); err != nil {
				return err
			}
			return a.Show(map[string]any{"vault_answered": vault != nil, "rules": rules}, func() {
				a.Out.Table([]string{"RULE", "DOES", "LAYER", "STANDS AT"}, output.Each(rules, func(r shownRule) []string {
					does := a.Out.Green("permits")
					if r.Forbids {
						does = a.Out.Red("forbids")
					}
					return []string{r.Rule, does, r.Layer, place(r.File, r.Line)}
				}))
				a.remarkFilesAlone(vault != nil)
			})
		}),
	}
}

func place(file string, line uint32) string {
	if file == "" || line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d", file, line)
}

func rulesOfFiles(cfg installdir.Config) ([]shownRule, error) {
	state, files := security.Look(cfg.Security(), nil)
	if state == nil {
		return nil, cli.Usage("", "the rules cannot be read: %s", clean.Block(problemsOf(files), 4000))
	}
	return output.Each(state.Policies.Rules(), func(r policy.Rule) shownRule {
		return shownRule{clean.Visible(r.ID), string(r.Layer), clean.Visible(r.File), uint32(r.Line), r.Forbids}
	}), nil
}

func problemsOf(files []security.File) string {
	var out []string
	for _, f := range files {
		if f.Problem != "" {
			out = append(out, f.String())
		}
	}
	return strings.Join(out, "\n")
}

func (a *app) policyCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE...]",
		Short: "What is wrong with the rules, before the vault says so",
		Long: `Checks the files of the security folder as the vault does: their form, each rule against the contract's types, and
rules that can never match. With FILEs it checks those instead, as rules of the system's layer. It needs no process running.

The exit code is 1 if something is wrong; warnings alone leave it 0.`,
		Example: "  durward policy check\n  durward policy check draft.cedar",
		Args:    cobra.ArbitraryArgs,
		RunE:    a.Configured(func(_ context.Context, cfg installdir.Config, args []string) error { return a.checkPolicy(cfg, args) }),
	}
}

func (a *app) checkPolicy(cfg installdir.Config, files []string) error {
	var sources []policy.Source
	var broken []security.File
	var unbound map[string]string
	if len(files) == 0 {
		state, all := security.Look(cfg.Security(), nil)
		if state != nil {
			sources = state.Sources()
		}
		unbound = emptyUsers(cfg, all)
		broken = slices.DeleteFunc(all, func(f security.File) bool { return f.Problem == "" })
	}
	for _, name := range files {
		text, err := ownership.ReadFile(name, maxProject, nil)
		if err != nil {
			return cli.Usage("", "%s cannot be read: %s", clean.Visible(name), clean.Line(err.Error(), 200))
		}
		sources = append(sources, policy.Source{Layer: policy.System, Name: name, Text: text})
	}
	var known policy.Known
	if list, err := client.Admitted(cfg.Clients); err == nil {
		for _, c := range list {
			known.Clients = append(known.Clients, c.ID)
			known.Users = append(known.Users, c.User)
		}
	}
	known.Unattended = append(unattendedTools(cfg.ExecutorConfig), unattendedTools(cfg.EgressConfig())...)
	problems := policy.Check(sources, known)
	type row struct {
		File    string `json:"file"`
		Line    int    `json:"line,omitempty"`
		Column  int    `json:"column,omitempty"`
		Text    string `json:"text"`
		Warning bool   `json:"warning"`
	}
	rows, wrong := []row{}, 0
	for _, folder := range slices.Sorted(maps.Keys(unbound)) {
		rows = append(rows, row{File: clean.Visible(folder), Text: clean.Line(folder+": warning: "+unbound[folder], 500), Warning: true})
	}
	for _, f := range broken {
		rows = append(rows, row{File: clean.Visible(f.Name), Text: clean.Line(f.String(), 500)})
		wrong++
	}
	for _, p := range problems {
		rows = append(rows, row{clean.Visible(p.File), p.Line, p.Column, clean.Line(p.String(), 500), p.Warning})
		if !p.Warning {
			wrong++
		}
	}
	err := a.Show(map[string]any{"good": wrong == 0, "problems": rows}, func() {
		for _, r := range rows {
			text := a.Out.Red(r.Text)
			if r.Warning {
				text = a.Out.Yellow(r.Text)
			}
			a.Out.Printf("%s\n", text)
		}
		if len(rows) == 0 {
			a.Out.Printf("%s the rules are good.\n", a.Out.Green("✓"))
		}
	})
	if err == nil && wrong > 0 {
		err = cli.Failed(cli.When(len(files) == 0, "What was good before stays in force until it is corrected."), "the rules have %s", clean.Count(wrong, "mistake"))
	}
	return err
}

// removeRule is `policy remove`; the rule is found in any file of the layer.
func (a *app) policyRemoveCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "remove RULE",
		Short: "Take away a rule that was allowed, with your signature",
		Long: `Takes a rule out of the policy file that it stands in, by its id, with the comment above it; and the entry that
"durward policy allow" wrote with it out of the executor's list, or egress'. Rules of tools.yaml are taken out by hand or
with "durward policy limit".
` + cli.SignedChange,
		Example:           "  durward policy list\n  durward policy remove allow/cursor/switch_mode/1f2e3d4c",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeOwnRules,
		RunE: a.Configured(func(ctx context.Context, cfg installdir.Config, args []string) error {
			return a.removeRule(ctx, cfg, args[0], yes)
		}),
	}
	a.RuleFlags(cmd, nil, &yes)
	return cmd
}

// completeOwnRules completes the ids of rules that stand in Cedar files.
func (a *app) completeOwnRules(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.CompleteFrom(args, func(cfg installdir.Config) (out []string, err error) {
		rules, err := rulesOfFiles(cfg)
		for _, r := range rules {
			if strings.HasSuffix(r.File, ".cedar") && r.Layer != string(policy.BuiltIn) {
				out = append(out, r.Rule)
			}
		}
		return out, err
	})
}

// unattendedTools are the tools that a sink's own list names; none where it cannot be read, which is for the sink to say.
func unattendedTools(path string) []string {
	var listed struct {
		Unattended []any `yaml:"unattended"`
	}
	raw, err := os.ReadFile(path)
	if err != nil || yaml.Unmarshal(raw, &listed) != nil {
		return nil
	}
	var names []string
	for _, entry := range listed.Unattended {
		switch e := entry.(type) {
		case string:
			names = append(names, e)
		case map[string]any:
			if name, ok := e["tool"].(string); ok {
				names = append(names, name)
			}
		}
	}
	return names
}
