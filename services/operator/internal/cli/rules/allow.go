package rules

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/operator/internal/rulefile"
	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/operator/internal/tryout"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/policy"
)

// allowance is what a person wants to run without being asked.
type allowance struct {
	client, tool, note string
	modes, services    []string
	arguments          []string
	until              time.Duration
	yes                bool
}

func (a *app) policyAllowCommand() *cobra.Command {
	var w allowance
	cmd := &cobra.Command{
		Use:   "allow --client CLIENT --tool TOOL",
		Short: "Let a client call a tool without asking, with your signature",
		Long: `Writes a rule by which calls of a client run without asking you, and the entry in the executor's own list, or in egress'
for what egress carries out, without which they are refused there: two files, whose differences are both shown. Without
it every change asks.

--mode, --service and --arg narrow it to calls whose argument has one of the values. What is denied stays denied; a bearer
client asks all the same, and so does a tool that no human has named.

--until ends both: the rule at the vault, and the entry by its reader's own clock. To allow the same again with another
--until, or with none, replaces what was allowed.
` + cli.SignedChange,
		Example: `  durward policy allow --client cursor --tool switch_mode --mode chat,coding
  durward policy allow --client ci --tool stop_service --arg service_id=demo-chat --until 720h`,
		RunE: a.Configured(func(ctx context.Context, cfg installdir.Config, _ []string) error { return a.allowCalls(ctx, cfg, w) }),
	}
	cmd.Flags().StringVar(&w.client, "client", "", "the client")
	cmd.Flags().StringVar(&w.tool, "tool", "", "the tool")
	cmd.Flags().StringSliceVar(&w.modes, "mode", nil, "to these modes alone")
	cmd.Flags().StringSliceVar(&w.services, "service", nil, "for these services alone")
	cmd.Flags().StringArrayVar(&w.arguments, "arg", nil, "`NAME=VALUE[,VALUE...]`: where the argument has one of the values; may be repeated")
	cmd.Flags().DurationVar(&w.until, "until", 0, "how long the rule counts, like 720h (default: until it is removed)")
	cmd.Flags().StringVar(&w.note, "note", "", "a comment above the rule")
	a.RuleFlags(cmd, nil, &w.yes)
	return cmd
}

// pinnedArguments are the values that arguments must have one of.
func (w allowance) pinnedArguments(tool contract.Tool) (map[string][]string, error) {
	out := map[string][]string{}
	about := func(kind, fallback string, values []string) {
		if len(values) == 0 {
			return
		}
		name := fallback
		if tool.Resource == kind && tool.ResourceArgument != "" {
			name = tool.ResourceArgument
		}
		out[name] = append(out[name], values...)
	}
	about("Mode", "mode_id", w.modes)
	about("Service", "service_id", w.services)
	for _, arg := range w.arguments {
		name, values, ok := strings.Cut(arg, "=")
		if !ok || name == "" || values == "" {
			return nil, cli.Usage("", "--arg %s: write NAME=VALUE[,VALUE...]", clean.Visible(arg))
		}
		out[name] = append(out[name], strings.Split(values, ",")...)
	}
	for name, values := range out {
		for _, v := range values {
			if _, err := tryout.Value(tool, name, v); err != nil {
				return nil, typed(err)
			}
		}
		slices.Sort(values)
		out[name] = slices.Compact(values)
	}
	return out, nil
}

func (a *app) allowCalls(ctx context.Context, cfg installdir.Config, w allowance) error {
	if w.client == "" || w.tool == "" {
		return cli.Usage("Say whom and what: --client CLIENT --tool TOOL", "a rule is about a client and a tool")
	}
	if _, err := cli.ClientUser(cfg, w.client); err != nil {
		return err
	}
	tool, err := a.lookupTool(w.tool)
	if err != nil {
		return err
	}
	arguments, err := w.pinnedArguments(tool)
	if err != nil {
		return err
	}
	if err := a.strangers(ctx, tool, arguments); err != nil {
		return err
	}
	var until time.Time
	if w.until < 0 {
		return cli.Usage("", "--until is a length of time, like 720h")
	} else if w.until > 0 {
		until = a.Now().Add(w.until).UTC().Truncate(time.Second)
	}
	id, text, err := policy.Allow(w.client, tool, arguments, w.note, until)
	if err != nil {
		return cli.Usage("", "%s", clean.Line(err.Error(), 500))
	}
	out, err := a.ChangeRules(ctx, cfg, cli.RuleChange{Action: "policy allow " + id, Yes: w.yes, Plans: func() ([]*signedchange.Plan, error) {
		return rulefile.Allow(cfg, rulefile.Rule{ID: id, Text: text, Client: w.client, Tool: tool, Arguments: arguments, Until: until})
	}, Before: func() error { return a.warnOfAllow(cfg, w.client, tool, arguments) }})
	done := w.client + " may call " + tool.Name + " without asking (rule " + id + ")"
	if why := idle(cfg, w.client, tool); why != "" {
		done = "the rule " + id + " stands, and lets nothing run: " + why
	}
	if !until.IsZero() {
		done += " until " + until.Local().Format("2006-01-02 15:04:05")
	}
	return a.ReportRules(out, err, done)
}

// warnOfAllow says what the rule does not change.
func (a *app) warnOfAllow(cfg installdir.Config, id string, tool contract.Tool, arguments map[string][]string) error {
	out := a.Display()
	why := idle(cfg, id, tool)
	if tool.Tier == optionsv1.Tier_TIER_DESTRUCTIVE && why == "" {
		out.Printf("%s\n", out.Red("DESTRUCTIVE: from now on "+id+" does this without asking anybody."))
	}
	if len(arguments) == 0 {
		out.Printf("%s\n", out.Yellow("It is for every call of "+tool.Name+", whatever its arguments: --mode, --service and --arg narrow it."))
	}
	if why != "" {
		out.Printf("%s\n", out.Yellow("It lets nothing run: "+why+"."))
	}
	return nil
}

// idle is why a rule for a client lets nothing run as clients.yaml is; "" where it does.
func idle(cfg installdir.Config, id string, tool contract.Tool) string {
	list, _ := client.Admitted(cfg.Clients) // clientUser has read it before
	for _, c := range list {
		switch {
		case c.ID != id:
		case tierRank(c.TierCeiling) < int(tool.Tier):
			return id + " may use tools up to " + clean.Line(c.TierCeiling, 16) + " alone (clients.yaml), so that the call stays denied"
		case c.Key == "" && c.Identity == "" && tool.Tier != optionsv1.Tier_TIER_READ:
			return id + " is a bearer client, whose changes ask all the same"
		}
	}
	return ""
}

// catalogIDs are the ids of modes, services and models: those that the executor has, or, where it does not answer, those of the
// catalog's file. A kind that cannot be read is left out.
func (a *app) catalogIDs(ctx context.Context) map[string][]string {
	if ids := a.executorIDs(ctx); len(ids) > 0 {
		return ids
	}
	path, opts, err := cli.CatalogPlace{}.Resolve(a.App, false)
	if err != nil {
		return nil
	}
	c, err := catalog.Load(path, opts)
	if err != nil {
		return nil // durward catalog check says what is wrong with it
	}
	return map[string][]string{
		"mode":    output.Each(c.Modes, func(m *catalog.Mode) string { return m.ID }),
		"service": output.Each(c.Services, func(s *catalog.Service) string { return s.ID }),
		"model":   output.Each(c.Models, func(m catalog.Model) string { return m.ID }),
	}
}

func (a *app) executorIDs(ctx context.Context) map[string][]string {
	defer func(was string) { a.RequestID = was }(a.RequestID) // what is asked beside the change is not what failed
	ctx, cancel := context.WithTimeout(ctx, cli.AskPatience)
	defer cancel()
	ids := map[string][]string{}
	_ = a.Run(ctx, func(ctx context.Context, s *cli.Session) error {
		for _, kind := range []string{"mode", "service", "model"} {
			if list, err := s.IDs(ctx, kind); err == nil {
				ids[kind] = list
			}
		}
		return nil
	})
	return ids
}

// strangers refuses modes, services and models that the catalog does not have: a rule for one does nothing until, one day, an entry is
// called so that nobody had in mind.
func (a *app) strangers(ctx context.Context, tool contract.Tool, arguments map[string][]string) error {
	if len(arguments) == 0 {
		return nil
	}
	ids := a.catalogIDs(ctx)
	for _, name := range slices.Sorted(maps.Keys(arguments)) {
		kind, isID := strings.CutSuffix(name, "_id")
		if name == tool.ResourceArgument {
			kind, isID = strings.ToLower(tool.Resource), true
		}
		known, read := ids[kind]
		if !isID || !read {
			continue
		}
		for _, value := range arguments[name] {
			if !slices.Contains(known, value) {
				return cli.Usage(cli.DidYouMean(config.Suggest(value, known), "Which there are: durward "+kind+" list"),
					"the catalogue has no %s %s, so the rule would do nothing", kind, clean.Visible(value))
			}
		}
	}
	return nil
}

func tierRank(name string) int {
	return int(optionsv1.Tier_value["TIER_"+name])
}

func (a *app) removeRule(ctx context.Context, cfg installdir.Config, id string, yes bool) error {
	out, err := a.ChangeRules(ctx, cfg, cli.RuleChange{Action: "policy remove " + clean.Line(id, 100), Yes: yes, Plans: func() ([]*signedchange.Plan, error) {
		plans, err := rulefile.Remove(cfg, id)
		if errors.Is(err, rulefile.ErrNoRule) {
			err = cli.Usage("See: durward policy list", "no policy file holds a rule %s", clean.Visible(id))
		}
		return plans, err
	}})
	return a.ReportRules(out, err, clean.Visible(id)+" is taken away")
}
