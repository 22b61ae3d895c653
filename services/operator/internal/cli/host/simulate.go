package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/bars"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/pattern"
)

// question is what `durward simulate` was told.
type question struct {
	start, stop, contexts []string
	alternatives, margin  uint32
	verbose               bool
}

func (a *app) simulateCommand() *cobra.Command {
	var q question
	cmd := &cobra.Command{
		Use:   "simulate [MODE]",
		Short: "What a switch or a start would do, and whether it fits; changes nothing",
		Long: `Shows what switching to a mode would put to sleep, stop, wake and start, in order, how long each step took on
this host before, and each GPU's memory now and afterwards. It changes nothing.

With --start and --stop it asks about services beside the mode's, or, without a MODE, about what runs now. With
--context it asks what if a service had another context length. Without anything it shows the host as it is.

Each number says where it comes from: measured on this host, declared in the catalogue, or estimated from the
model. What nobody knows counts as 0, and that is said.

Instead: other ways that fit, the least disruptive first. What is pinned, or has not run for as long as its entry
asks for, is never touched. One with a number of its own can be given to "durward switch --plan"; another takes a
change of the catalogue, which only you can make.

A plan's number stands for exactly these steps with exactly these catalogue entries. Give it to
"durward switch --plan", and a host that has changed meanwhile refuses.

Exit code 1 when it does not fit or cannot be done.`,
		Example: `  durward simulate coding
  durward simulate --start qwen3-32b --stop chat-70b
  durward simulate coding --context qwen3-32b=16384 --verbose
  durward simulate coding --json | jq -r .plan_digest`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.CompleteEntries("mode"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := q.request(cmd, args)
			if err != nil {
				return err
			}
			return a.Run(cmd.Context(), func(ctx context.Context, s *cli.Session) error {
				plan, err := s.Executor.Tools.SimulateMode(ctx, request)
				if err != nil {
					return err
				}
				infeasible := feasible(plan)
				return errors.Join(a.Show(plan, func() {
					a.printSimulation(a.Out, plan, shown{alternatives: true, needs: q.verbose, host: q.verbose})
					if apply := a.applied(plan, request); infeasible == nil && apply != "" {
						a.Out.Printf("%s\n", a.Out.Dim(apply))
					}
				}), infeasible)
			})
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&q.start, "start", nil, "`SERVICES` that run as well")
	f.StringSliceVar(&q.stop, "stop", nil, "`SERVICES` that do not run")
	f.StringSliceVar(&q.contexts, "context", nil, "`SERVICE=TOKENS`: what if it had another context length")
	f.Uint32Var(&q.alternatives, "alternatives", 3, "so many other ways are looked for, up to 10; 0: none")
	f.Uint32Var(&q.margin, "margin", 0, "`MIB` that stay free on each GPU, instead of what the executor's file says")
	f.BoolVarP(&q.verbose, "verbose", "v", false, "with what each service needs, and the host's memory")
	cli.NameField(f, "context", "context_overrides")
	cli.NameField(f, "margin", "margin_mib_override")
	cli.CompleteFlag(cmd, "start", a.completeServiceList)
	cli.CompleteFlag(cmd, "stop", a.completeServiceList)
	cli.CompleteFlag(cmd, "context", a.completeServiceContext)
	cli.CompleteFlag(cmd, "alternatives", cli.OneOf("0", "3", "10"))
	return cmd
}

// request turns flags into what the executor is asked.
func (q question) request(cmd *cobra.Command, args []string) (*executorv1.SimulateModeRequest, error) {
	r := &executorv1.SimulateModeRequest{Start: q.start, Stop: q.stop}
	if len(args) == 1 {
		r.ModeId = &args[0]
	}
	if cmd.Flags().Changed("margin") {
		r.MarginMibOverride = &q.margin
	}
	if cmd.Flags().Changed("alternatives") {
		if q.alternatives > contract.MostAlternatives {
			return nil, cli.Usage("", "--alternatives is 0 to %d", contract.MostAlternatives)
		}
		r.Alternatives = &q.alternatives
	}
	for _, one := range q.contexts {
		service, text, ok := strings.Cut(one, "=")
		tokens, err := strconv.ParseUint(strings.TrimSpace(text), 10, 32)
		if !ok || service == "" || err != nil {
			return nil, cli.Usage("Write SERVICE=TOKENS: --context qwen3-32b=16384", "--context %s names no service and length", clean.Visible(one))
		}
		if _, twice := r.GetContextOverrides()[service]; twice {
			return nil, cli.Usage("", "--context is given twice for %s", clean.Visible(service))
		}
		if r.ContextOverrides == nil {
			r.ContextOverrides = map[string]uint32{}
		}
		r.ContextOverrides[service] = uint32(tokens)
	}
	return r, nil
}

// feasible says why a plan cannot be carried out, if it cannot.
func feasible(plan *executorv1.SimulateModeResponse) error {
	if plan.GetFits() && plan.GetReason() == "" {
		return nil
	}
	what := "this cannot be done"
	if plan.GetModeId() != "" {
		what = clean.Line(plan.GetModeId(), 64) + " cannot be switched to"
	}
	next := "See what is in the way: durward services, durward doctor"
	if approval.Short(plan) {
		next = "See what holds memory: durward gpu"
	}
	return cli.Failed(next, "%s: %s", what, cmp.Or(clean.Line(plan.GetReason(), 500), "it does not fit in GPU memory"))
}

// choose finds the plan or the alternative that a prefix names; none names the plan itself.
func choose(plan *executorv1.SimulateModeResponse, prefix string) (digest string, chosen *executorv1.Alternative, err error) {
	if prefix == "" {
		return plan.GetPlanDigest(), nil, nil
	}
	var found []string
	if strings.HasPrefix(plan.GetPlanDigest(), prefix) {
		found = append(found, plan.GetPlanDigest())
	}
	for _, alternative := range plan.GetAlternatives() {
		if d := alternative.GetPlanDigest(); strings.HasPrefix(d, prefix) && !slices.Contains(found, d) {
			found = append(found, d)
			chosen = alternative
		}
	}
	mode := clean.Visible(plan.GetModeId())
	switch {
	case len(found) == 0:
		return "", nil, cli.Failed("See what it would do now: durward simulate "+mode,
			"the plan is not %s any more: the host or its catalogue has changed; nothing was done", prefix)
	case len(found) > 1:
		return "", nil, cli.Failed("Give more of its number. See: durward simulate "+mode+" --json", "%d plans begin with %s; nothing was done", len(found), prefix)
	}
	return found[0], chosen, nil
}

// shown is what of a simulation is printed beside the plan.
type shown struct {
	alternatives bool
	// number: the plan's own.
	number bool
	// needs: what every service needs, not only what is not measured. host: the host's memory.
	needs, host bool
}

// printSimulation lays a plan out: whether it fits, each GPU before and after, the steps, and other ways.
func (a *app) printSimulation(out *output.Printer, plan *executorv1.SimulateModeResponse, show shown) {
	out.Printf("%s", verdict(out, plan))
	if show.number && plan.GetPlanDigest() != "" {
		out.Printf("%s", out.Dim("  plan "+approval.ShortPlan(plan.GetPlanDigest())))
	}
	out.Printf("\n")
	a.printForecasts(out, plan.GetGpus())
	for _, line := range stepLines(plan.GetSteps()) {
		out.Printf("%s\n", line)
	}
	printNeeds(out, plan.GetNeeds(), show.needs)
	if show.host && plan.GetHostAvailableMib() > 0 {
		out.Printf("main memory: what sleeps and loads takes %s; %s are available\n", bars.Size(plan.GetHostMib()), bars.Size(plan.GetHostAvailableMib()))
	}
	if !show.alternatives {
		return
	}
	places := a.catalogLines(plan.GetAlternatives())
	lead := "Instead: "
	for i, alternative := range plan.GetAlternatives() {
		out.Printf("%s%d) %s\n", lead, i+1, a.alternativeWords(out, alternative, places))
		lead = strings.Repeat(" ", len(lead))
	}
	if plan.GetCutOff() {
		out.Printf("%s\n", out.Yellow("The search for other ways ended early: there may be better ones."))
	}
}

// verdict is the first line.
func verdict(out *output.Printer, plan *executorv1.SimulateModeResponse) string {
	switch {
	case approval.Short(plan):
		return out.Red("DOES NOT FIT: ") + cmp.Or(approval.Lack(plan), "there is not enough GPU memory")
	case plan.GetReason() != "":
		return out.Red("CANNOT BE DONE NOW: ") + clean.Line(plan.GetReason(), 500)
	}
	fits := out.Green("FITS")
	if len(plan.GetSteps()) == 0 {
		if plan.GetModeId() == "" {
			return fits + ": nothing to do"
		}
		return fits + ": nothing to do, exactly this runs"
	}
	if after := gone(plan.GetSteps()); after != "" {
		return fits + " after " + after
	}
	return fits
}

// gone says what of a plan ends: "stopping a, b and putting c to sleep". What is stopped to be started again does not end.
func gone(steps []*executorv1.PlanStep) string {
	ids := map[executorv1.PlanAction][]string{}
	for i, step := range steps {
		again := slices.ContainsFunc(steps[i+1:], func(later *executorv1.PlanStep) bool {
			return later.GetServiceId() == step.GetServiceId() && later.GetAction() == executorv1.PlanAction_PLAN_ACTION_START
		})
		if !again {
			ids[step.GetAction()] = append(ids[step.GetAction()], clean.Line(step.GetServiceId(), 64))
		}
	}
	var parts []string
	if stopped := ids[executorv1.PlanAction_PLAN_ACTION_STOP]; len(stopped) > 0 {
		parts = append(parts, "stopping "+strings.Join(stopped, ", "))
	}
	if asleep := ids[executorv1.PlanAction_PLAN_ACTION_SLEEP]; len(asleep) > 0 {
		parts = append(parts, "putting "+strings.Join(asleep, ", ")+" to sleep")
	}
	return strings.Join(parts, " and ")
}

// stepsWidth is how many characters a line of steps has at most, unless one step is longer.
const stepsWidth = 110

// stepLines writes steps in their order: "stop chat-70b · start qwen3-32b (~50 s)".
func stepLines(steps []*executorv1.PlanStep) []string {
	var lines []string
	for _, step := range steps {
		word := contract.WordOf(step.GetAction()) + " " + clean.Line(step.GetServiceId(), 64) + expected(step.GetExpectedS())
		if n := len(lines) - 1; n >= 0 && len(lines[n])+len(word) < stepsWidth {
			lines[n] += " · " + word
			continue
		}
		lines = append(lines, word)
	}
	return lines
}

// expected is how long something took before, in brackets; "" where nobody knows.
func expected(s uint32) string {
	if s == 0 {
		return ""
	}
	return " (" + about(s) + ")"
}

// about is a whole number of seconds as people say it: "~50 s", "~1:35".
func about(s uint32) string {
	if s < 60 {
		return "~" + strconv.FormatUint(uint64(s), 10) + " s"
	}
	return "~" + approval.Duration(time.Duration(s)*time.Second)
}

// afterWidth is the width of the bar of a GPU afterwards, beside the numbers.
const afterWidth = 30

// printForecasts prints a table of the GPUs, in GiB, each with a bar of what is on it afterwards.
func (a *app) printForecasts(out *output.Printer, gpus []*executorv1.GpuForecast) {
	if len(gpus) == 0 {
		return
	}
	foreign := slices.ContainsFunc(gpus, func(g *executorv1.GpuForecast) bool { return g.GetForeignMib() > 0 })
	header := []string{"GPU", column("now"), column("after"), column("free")}
	if foreign {
		header = append(header, "foreign")
	}
	header = append(header, column("total"), "source", "GiB afterwards")
	var rows [][]string
	for _, g := range gpus {
		row := []string{strconv.FormatUint(uint64(g.GetIndex()), 10), gibibytes(g.GetNowMib()), gibibytes(g.GetAfterMib()), gibibytes(g.GetFreeMib())}
		if g.GetAfterMib() > g.GetTotalMib() {
			row[2] = out.Red(row[2])
		}
		if foreign {
			row = append(row, "  "+gibibytes(g.GetForeignMib()))
		}
		source := clean.Line(g.GetSource(), 32)
		if uncertain(source) {
			source = out.Yellow(source)
		}
		bar := bars.Draw(bars.Forecast(g, true), min(a.width(out), afterWidth), barPaint(out))
		rows = append(rows, append(row, gibibytes(g.GetTotalMib()), source, bar))
	}
	out.Table(header, rows)
}

// gibibytes writes MiB as GiB with one decimal, for a column.
func gibibytes(mib uint32) string { return column(strconv.FormatFloat(float64(mib)/1024, 'f', 1, 64)) }

// column is a text at the right of a column of numbers.
func column(text string) string { return fmt.Sprintf("%5s", text) }

// uncertain reports whether nobody measured or declared a number.
func uncertain(source string) bool { return source != "measured" && source != "declared" }

// printNeeds says what services need: all of them, or those whose need nobody has measured or declared.
func printNeeds(out *output.Printer, needs []*executorv1.ServiceNeed, all bool) {
	for _, n := range needs {
		source := clean.Line(n.GetSource(), 32)
		if !all && !uncertain(source) {
			continue
		}
		name := clean.Line(n.GetServiceId(), 64)
		if source == "unknown" {
			out.Printf("%s\n", out.Yellow(name+": nobody knows what it needs, so it counts as 0; declare its vram_mib, or give its model a card or a file"))
			continue
		}
		words := name + " needs " + bars.Size(n.GetNeedMib()) + ", " + source
		if n.GetContext() > 0 {
			words += fmt.Sprintf(" at %d tokens of context", n.GetContext())
		}
		if n.GetKvTokens() > 0 {
			words += fmt.Sprintf("; its cache holds %d", n.GetKvTokens())
		}
		if uncertain(source) {
			words = out.Yellow(words)
		}
		out.Printf("%s\n", words)
	}
}

// alternativeWords is an alternative on one line, and below it what in the catalog it would take.
func (a *app) alternativeWords(out *output.Printer, alternative *executorv1.Alternative, places map[string]string) string {
	words := approval.ChangeWords(alternative)
	var beside []string
	if alternative.GetHostMib() > 0 {
		beside = append(beside, "host RAM +"+bars.Size(alternative.GetHostMib()))
	}
	if alternative.GetExpectedS() > 0 {
		beside = append(beside, about(alternative.GetExpectedS()))
	}
	if len(beside) > 0 {
		words += " (" + strings.Join(beside, ", ") + ")"
	}
	if digest := alternative.GetPlanDigest(); digest != "" {
		return words + out.Dim("  plan "+approval.ShortPlan(digest))
	}
	for _, change := range alternative.GetChanges() {
		if place := places[changeKey(change)]; place != "" {
			words += "\n            " + out.Dim("change "+place)
		}
	}
	return words
}

// printAlternative shows the alternative that a person chose.
func (a *app) printAlternative(out *output.Printer, mode string, chosen *executorv1.Alternative) {
	out.Printf("%s: %s%s\n", out.Bold(clean.Line(mode, 64)), approval.ChangeWords(chosen), out.Dim("  plan "+approval.ShortPlan(chosen.GetPlanDigest())))
	a.printForecasts(out, chosen.GetGpus())
}

// idPattern is what an id may be: what is put into a command line that a person may copy.
var idPattern = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$`)

// verbOf are the commands for a plan's steps.
var verbOf = map[executorv1.PlanAction]string{
	executorv1.PlanAction_PLAN_ACTION_SLEEP: "sleep", executorv1.PlanAction_PLAN_ACTION_STOP: "stop",
	executorv1.PlanAction_PLAN_ACTION_START: "start", executorv1.PlanAction_PLAN_ACTION_WAKE: "wake",
}

// applied is the command that does what was simulated; "" where there is none.
func (a *app) applied(plan *executorv1.SimulateModeResponse, asked *executorv1.SimulateModeRequest) string {
	switch {
	case len(asked.GetContextOverrides()) > 0:
		return "Another context takes a change of the catalogue: " + a.Typed() + " catalog show " + clean.Line(slices.Min(slices.Collect(maps.Keys(asked.GetContextOverrides()))), 64)
	case asked.MarginMibOverride != nil:
		return "" // the command would keep the margin of the executor's file
	case plan.GetPlanDigest() != "":
		return "Apply: " + a.Typed() + " switch " + clean.Line(plan.GetModeId(), 64) + " --plan " + approval.ShortPlan(plan.GetPlanDigest())
	case asked.ModeId != nil && len(plan.GetSteps()) > 0:
		return "This is no mode of the catalogue. To make it one: " + a.Typed() + " catalog add mode -h"
	}
	var commands []string
	for _, step := range plan.GetSteps() {
		verb, known := verbOf[step.GetAction()]
		if !known || !idPattern().MatchString(step.GetServiceId()) {
			return ""
		}
		commands = append(commands, a.Typed()+" "+verb+" "+step.GetServiceId())
	}
	if len(commands) == 0 {
		return ""
	}
	return "Apply: " + strings.Join(commands, " && ")
}

// completeServiceList completes the last of several ids with commas between them, wherever on the line.
func (a *app) completeServiceList(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	before := typed[:strings.LastIndex(typed, ",")+1]
	ids, directive := a.CompleteEntries("service")(cmd, nil, "")
	for i := range ids {
		ids[i] = before + ids[i]
	}
	return ids, directive
}

// completeServiceContext completes SERVICE=TOKENS.
func (a *app) completeServiceContext(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	last := typed[strings.LastIndex(typed, ",")+1:]
	if service, _, ok := strings.Cut(last, "="); ok {
		before := strings.TrimSuffix(typed, last) + service + "="
		sizes := []string{"4096", "8192", "16384", "32768", "65536", "131072"}
		return output.Each(sizes, func(tokens string) string { return before + tokens }), cobra.ShellCompDirectiveNoFileComp
	}
	ids, directive := a.completeServiceList(cmd, nil, typed)
	for i, id := range ids {
		id, about, _ := strings.Cut(id, "\t")
		ids[i] = cobra.CompletionWithDesc(id+"=", about)
	}
	return ids, directive | cobra.ShellCompDirectiveNoSpace
}
