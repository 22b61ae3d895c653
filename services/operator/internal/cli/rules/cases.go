package rules

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/tryout"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/security"
)

func (a *app) policyTestCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "test FILE",
		Short: "Try the rules on cases that you wrote down",
		Long: `Decides on the calls of a YAML file with the rules as the files have them, without any process, and compares with
what the file expects. The exit code is 1 if one comes out otherwise: keep such a file beside your rules.

  cases:
    - client: cursor
      tool: switch_mode
      arguments: {mode_id: chat}
      expect: runs                     # runs, asks or denied
      rule: allow/cursor/switch_mode/1f2e3d4c   # optional
    - {client: cursor, tool: stop_service, arguments: {service_id: demo-chat}, expect: asks}

A case may also say agent, user, channel, key_bound, tier_ceiling, dangerous, at (a time) and calls {session, day, month,
since_last_s}; what it does not say of the client is as clients.yaml has it.`,
		Example:           "  durward policy test cases.yaml",
		Args:              cobra.ExactArgs(1),
		RunE:              a.Configured(func(_ context.Context, cfg installdir.Config, args []string) error { return a.testPolicy(cfg, args[0]) }),
		ValidArgsFunction: cli.CompleteFiles("yaml", "yml"),
	}
}

// caseResult is how one case came out, in --json too.
type caseResult struct {
	Case   string `json:"case"`
	Good   bool   `json:"good"`
	Expect string `json:"expect"`
	Got    string `json:"got"`
	Rule   string `json:"rule"`
	At     string `json:"at,omitempty"`
	Reason string `json:"reason,omitempty"`
	wanted string
}

func (a *app) testPolicy(cfg installdir.Config, file string) error {
	var cases tryout.File
	if err := config.Load(file, &cases); err != nil {
		return cli.Usage("", "%s", clean.Block(err.Error(), 1000))
	}
	if len(cases.Cases) == 0 {
		return cli.Usage("", "%s holds no cases", clean.Visible(file))
	}
	state, files := security.Look(cfg.Security(), nil)
	if problems := problemsOf(files); state == nil || problems != "" {
		return cli.Failed("See: durward policy check", "the rules are not good: %s", clean.Block(problems, 4000))
	}
	known, err := client.Admitted(cfg.Clients)
	if err != nil {
		return cli.Usage("", "%s", clean.Line(err.Error(), 500))
	}
	results, wrong := []caseResult{}, 0
	for i, c := range cases.Cases {
		call, err := c.Call(state, known, a.Now())
		if err != nil {
			return cli.Usage("", "%s: case %d: %v", clean.Visible(file), i+1, err)
		}
		d := state.Policies.Decide(call)
		r := caseResult{Case: c.Title(), Expect: c.Expect, Got: d.Verdict.String(), Rule: clean.Visible(d.Rule.ID), Reason: clean.Line(d.Reason, 300), wanted: c.Rule,
			At: clean.Visible(place(d.Rule.File, uint32(d.Rule.Line)))}
		r.Good = r.Got == c.Expect && (c.Rule == "" || c.Rule == d.Rule.ID)
		if !r.Good {
			wrong++
		}
		results = append(results, r)
	}
	return a.showCases(results, wrong)
}

func (a *app) showCases(results []caseResult, wrong int) error {
	err := a.Show(map[string]any{"good": wrong == 0, "cases": results}, func() {
		for _, r := range results {
			if r.Good {
				a.Out.Printf("%s %s: %s  %s\n", a.Out.Green("✓"), r.Case, r.Got, a.Out.Dim(r.Rule))
				continue
			}
			a.Out.Printf("%s %s\n", a.Out.Red("✗"), r.Case)
			a.Out.Printf("  %s\n  %s\n", a.Out.Red(strings.TrimRight("- "+r.Expect+"  "+clean.Visible(r.wanted), " ")), a.Out.Green("+ "+r.Got+"  "+r.Rule+"  "+r.At))
			if r.Reason != "" {
				a.Out.Printf("    %s\n", r.Reason)
			}
		}
		if wrong == 0 {
			a.Out.Printf("%s, all as expected.\n", clean.Count(len(results), "case"))
		}
	})
	if err == nil && wrong > 0 {
		err = cli.Failed("", "%d of %d cases came out otherwise", wrong, len(results))
	}
	return err
}
