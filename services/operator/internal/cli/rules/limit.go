package rules

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/edit"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/security"
)

// limits are what `policy limit` sets.
type limits struct {
	tier                string
	minInterval         time.Duration
	session, day, month int
	remove              bool
	user                string
	yes                 bool
}

func (a *app) policyLimitCommand() *cobra.Command {
	var w limits
	cmd := &cobra.Command{
		Use:   "limit TOOL",
		Short: "How often a tool may be called, and its tier, with your signature",
		Long: `Writes limits of one tool into tools.yaml: a minimum time between two calls of a client, budgets for a session, a
day and a month, and its tier as policy sees it (a higher one asks for more; DENIED lets nobody call it). A call beyond a
limit is refused until it may be made again; nobody is asked. What lets a tool run without asking is no limit: see
"durward policy allow".
` + cli.SignedChange,
		Example: "  durward policy limit switch_mode --min-interval 30s --budget-day 50\n  durward policy limit stop_service --tier DENIED",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			tool, err := a.lookupTool(args[0])
			if err != nil {
				return err
			}
			sets, err := w.values(cmd, tool)
			if err != nil {
				return err
			}
			return a.limitTool(cmd.Context(), tool, sets, w)
		},
	}
	cmd.ValidArgsFunction = func(c *cobra.Command, args []string, to string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.CompleteTools(c, args, to)
	}
	cmd.Flags().StringVar(&w.tier, "tier", "", "READ, WRITE, DESTRUCTIVE or DENIED")
	cmd.Flags().DurationVar(&w.minInterval, "min-interval", 0, "the time between two calls of a client, like 30s")
	cmd.Flags().IntVar(&w.session, "budget-session", 0, "calls in a session")
	cmd.Flags().IntVar(&w.day, "budget-day", 0, "calls in a day")
	cmd.Flags().IntVar(&w.month, "budget-month", 0, "calls in a month")
	cmd.Flags().BoolVar(&w.remove, "remove", false, "take everything that tools.yaml says of the tool out")
	cli.CompleteFlag(cmd, "tier", cli.OneOf("READ", "WRITE", "DESTRUCTIVE", "DENIED"))
	a.RuleFlags(cmd, &w.user, &w.yes)
	return cmd
}

// oneLimit is a key below a tool, and its value as YAML.
type oneLimit struct {
	path  []string
	value string
}

func (w limits) values(cmd *cobra.Command, tool contract.Tool) (out []oneLimit, err error) {
	below := func(value string, path ...string) {
		out = append(out, oneLimit{append(keyOf(tool), path...), value})
	}
	if cmd.Flags().Changed("tier") {
		if !slices.Contains([]string{"READ", "WRITE", "DESTRUCTIVE", "DENIED"}, w.tier) {
			return nil, cli.Usage("", "--tier is READ, WRITE, DESTRUCTIVE or DENIED")
		}
		if w.tier == "READ" && tool.Tier > optionsv1.Tier_TIER_READ {
			return nil, cli.Usage("To let it run without asking: durward policy allow --client CLIENT --tool "+tool.Name,
				"that is no limit: %s would run without asking at the vault, and the own list of what carries it out would still refuse it", tool.Name)
		}
		below(w.tier, "tier")
	}
	if cmd.Flags().Changed("min-interval") {
		if w.minInterval < time.Second || w.minInterval%time.Second != 0 {
			return nil, cli.Usage("", "--min-interval is whole seconds, like 30s")
		}
		below(strconv.Itoa(int(w.minInterval/time.Second)), "min_interval_s")
	}
	for flag, b := range map[string]struct {
		n   int
		key string
	}{"budget-session": {w.session, "session"}, "budget-day": {w.day, "day"}, "budget-month": {w.month, "month"}} {
		if !cmd.Flags().Changed(flag) {
			continue
		}
		if b.n < 1 {
			return nil, cli.Usage("To let nobody call it: --tier DENIED", "--%s is at least 1", flag)
		}
		below(strconv.Itoa(b.n), "budget", b.key)
	}
	if len(out) == 0 != w.remove {
		return nil, cli.Usage("Give one of --tier, --min-interval, --budget-session, --budget-day, --budget-month; or --remove alone.", "there is nothing to limit")
	}
	slices.SortFunc(out, func(x, y oneLimit) int { return strings.Compare(strings.Join(x.path, "."), strings.Join(y.path, ".")) })
	return out, nil
}

// keyOf is where tools.yaml speaks of a tool.
func keyOf(tool contract.Tool) []string { return []string{"tools", policy.ActionName(tool)} }

func (a *app) limitTool(ctx context.Context, tool contract.Tool, sets []oneLimit, w limits) error {
	done := tool.Name + " is limited"
	if w.remove {
		done = tool.Name + " has no limits of its own any more"
	}
	return a.editSetting(ctx, settingChange{
		file: security.FileTools, action: "policy limit " + tool.Name, done: done, user: w.user, yes: w.yes,
		edited: func(before []byte) (after []byte, err error) {
			switch {
			case w.remove && edit.Line(before, keyOf(tool)) == 0:
				return before, nil
			case w.remove:
				return edit.UnsetAll(before, keyOf(tool))
			}
			after = before
			for _, s := range sets {
				if after, err = edit.Set(after, s.path, s.value); err != nil {
					return nil, err
				}
			}
			return after, nil
		},
	})
}
