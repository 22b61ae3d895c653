package command

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/platform/clean"
)

// planPrefix is what --plan takes: the beginning of a plan's digest, long enough that nobody hits one by chance.
var planPrefix = regexp.MustCompile(`^[0-9a-f]{8,64}$`)

func (a *app) modeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "mode",
		Aliases: []string{"modes"},
		Short:   "Modes: named sets of services that run together",
		Long: `A mode is a named set of services that must fit on the GPUs together. Switching to it starts what is missing
and puts to sleep or stops what does not belong to it, in one go: either the mode runs afterwards, or what
ran before runs again, or you are told plainly what does not.`,
		Example: "  durward mode ls\n  durward simulate coding\n  durward switch coding",
	}
	cmd.AddCommand(a.modeListCommand(), a.modeShowCommand(), a.switchCommand())
	return cmd
}

func (a *app) modeListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "The catalogue's modes, and which one the host is in",
		Example: "  durward mode ls\n  durward mode ls --json | jq -r .current",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, s, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer s.close()
			list, err := s.Executor.Tools.ListModes(ctx, &executorv1.ListModesRequest{})
			if err != nil {
				return err
			}
			if a.json {
				return a.out.Message(list)
			}
			if len(list.GetModes()) == 0 {
				a.out.Printf("The catalogue defines no mode yet. Add one: durward catalog add mode -h\n")
				return nil
			}
			rows := make([][]string, 0, len(list.GetModes()))
			for _, m := range list.GetModes() {
				state := ""
				switch current := m.GetModeId() == list.GetCurrent(); {
				case current && m.GetRunning():
					state = a.out.Green("current")
				case current:
					state = a.out.Yellow("current, drifted")
				case m.GetRunning():
					state = "all run"
				}
				rows = append(rows, []string{clean.Line(m.GetModeId(), 64), state, mebibytes(m.GetVramMib()),
					clean.Line(strings.Join(m.GetServices(), ", "), 300), clean.Line(m.GetName(), 64)})
			}
			a.out.Table([]string{"MODE", "STATE", "VRAM", "SERVICES", "NAME"}, rows)
			return nil
		},
	}
}

func (a *app) modeShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "show ID",
		Aliases:           []string{"info"},
		Short:             "One mode: its services in order, and what drifted from it",
		Example:           "  durward mode show coding",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeModes,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, s, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer s.close()
			m, err := s.Executor.Tools.ModeInfo(ctx, &executorv1.ModeInfoRequest{ModeId: &args[0]})
			if err != nil {
				return err
			}
			if a.json {
				return a.out.Message(m)
			}
			a.out.Printf("%s  %s\n", a.out.Bold(clean.Line(m.GetModeId(), 64)), clean.Line(m.GetName(), 64))
			if m.GetDescription() != "" {
				a.out.Printf("  %s\n", clean.Line(m.GetDescription(), 300))
			}
			if m.GetCurrent() {
				a.out.Printf("  %s\n", a.out.Green("the host was switched to it last"))
			}
			if len(m.GetDrifted()) > 0 {
				a.out.Printf("  %s  %s\n", a.out.Yellow("drifted: "+clean.Line(strings.Join(m.GetDrifted(), ", "), 500)),
					a.out.Dim("bring it back: durward switch "+clean.Line(m.GetModeId(), 64)))
			}
			a.printServices(m.GetServices())
			return nil
		},
	}
}

func actionWord(action executorv1.PlanAction) string {
	return strings.ToLower(strings.TrimPrefix(action.String(), "PLAN_ACTION_"))
}

func (a *app) switchCommand() *cobra.Command {
	var yes bool
	var plan string
	cmd := &cobra.Command{
		Use:   "switch MODE",
		Short: "Switch to a mode, by your own signed command",
		Long: `Simulates the switch, shows the plan, and carries it out once you have signed it. Services outside the mode
sleep or stop, with their requests in flight; those of the mode start one after the other, each once the
memory is measured to be free. If a step fails, the services from before are brought back, and you are told
which service failed, why, and the last lines of its log.

With --plan the switch is done only if the plan is still the one that "durward simulate" showed: its own, or the one of
an alternative, which then keeps or puts to sleep what it says.
Switching to the current mode again starts what has died since.
` + signedRoad,
		Example:           "  durward switch coding\n  durward switch coding --plan 3f2a91c04d17 --yes",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeModes,
		RunE: func(cmd *cobra.Command, args []string) error {
			if plan = strings.ToLower(plan); cmd.Flags().Changed("plan") && plan == "" {
				// A script that took it from a simulation without a number would else switch without any plan.
				return usage("Not every simulation has one: what takes a change of the catalogue, or names no mode, has none.", "--plan is empty")
			}
			if plan != "" && !planPrefix.MatchString(plan) {
				return usage("It is what durward simulate prints: 8 to 64 characters 0-9 and a-f.",
					"%q is not the beginning of a plan's digest", clean.Visible(plan))
			}
			ctx, s, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer s.close()
			return a.switchMode(ctx, s, args[0], plan, yes)
		},
	}
	cmd.Flags().StringVar(&plan, "plan", "", "the number of the plan, or of an alternative, from durward simulate: refuse if it is another one now")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask before signing")
	return cmd
}

func (a *app) switchMode(ctx context.Context, s *session, mode, prefix string, yes bool) error {
	request := &executorv1.SimulateModeRequest{ModeId: &mode}
	if prefix != "" {
		request.Alternatives = new(uint32(mostAlternatives))
	}
	plan, err := s.Executor.Tools.SimulateMode(ctx, request)
	if err != nil {
		return err
	}
	out := a.display()
	digest, chosen, err := choose(plan, prefix)
	if err != nil {
		return err
	}
	if chosen != nil {
		a.printAlternative(out, plan.GetModeId(), chosen)
	} else {
		a.printSimulation(out, plan, shown{alternatives: prefix == "", number: true})
		if err := feasible(plan); err != nil {
			return err
		}
		if digest == "" {
			return failed("See: durward simulate "+clean.Visible(mode), "the executor gave no number for the plan, so it cannot be signed")
		}
	}
	if chosen == nil && len(plan.GetSteps()) == 0 {
		modes, err := s.Executor.Tools.ListModes(ctx, &executorv1.ListModesRequest{})
		if err != nil {
			return err
		}
		if modes.GetCurrent() == plan.GetModeId() {
			if a.json {
				return a.out.Value(map[string]any{"status": "ok", "changed": false, "summary": "the host is in this mode already"})
			}
			a.out.Printf("The host is in this mode already.\n")
			return nil
		}
	}
	err = a.act(ctx, s, "switch_mode", map[string]string{"mode_id": mode, "plan_digest": digest}, yes)
	if errors.Is(err, approval.ErrArguments) {
		return usage("See: durward mode ls", "%q is not a mode id", clean.Visible(mode))
	}
	return err
}

// outcomeWords says for people how a switch ended.
func outcomeWords(o executorv1.SwitchOutcome) string {
	switch o {
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED:
		return "done"
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK:
		return "rolled back"
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_DEGRADED:
		return "degraded"
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_NEEDS_A_HUMAN:
		return "needs a human"
	default:
		return "under way"
	}
}

func (a *app) outcomeColour(o executorv1.SwitchOutcome) string {
	text := outcomeWords(o)
	switch o {
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED:
		return a.out.Green(text)
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK:
		return a.out.Yellow(text)
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_DEGRADED, executorv1.SwitchOutcome_SWITCH_OUTCOME_NEEDS_A_HUMAN:
		return a.out.Red(text)
	default:
		return a.out.Blue(text)
	}
}

// switchProblem is how a switch that did not come to its mode ended, and what to do now.
func switchProblem(m *executorv1.SwitchModeResponse) error {
	what := "the switch did not come to its end"
	if service := clean.Line(m.GetFailedService(), 64); service != "" {
		what = service + ": " + orElse(clean.Line(m.GetCause(), 300), "it failed")
	} else if m.GetCause() != "" {
		what = clean.Line(m.GetCause(), 300)
	}
	mode := clean.Line(m.GetModeId(), 64)
	switch m.GetOutcome() {
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK:
		return failed("What ran before runs again. Once the cause is gone: durward switch "+mode, "rolled back: %s", what)
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_DEGRADED:
		return failed("Not everything from before could be brought back. See: durward services; durward switches --steps",
			"degraded: %s", what)
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_NEEDS_A_HUMAN:
		return failed("Nothing more is tried. See what runs: durward services, durward gpu. Then switch again.",
			"needs a human: %s", what)
	default:
		return failed("See: durward switches --steps", "%s", what)
	}
}

// printSwitched prints what a switch did.
func (a *app) printSwitched(m *executorv1.SwitchModeResponse) {
	var steps []string
	for _, step := range m.GetDone() {
		steps = append(steps, actionWord(step.GetAction())+" "+clean.Line(step.GetServiceId(), 64))
	}
	if len(steps) > 0 {
		a.out.Printf("  %s\n", strings.Join(steps, ", "))
	}
	if len(m.GetNotRunning()) > 0 {
		a.out.Printf("  %s\n", a.out.Red("should run and do not: "+clean.Line(strings.Join(m.GetNotRunning(), ", "), 500)))
	}
	if m.GetLog() != "" {
		a.printLog(clean.Line(m.GetFailedService(), 64), strings.Split(m.GetLog(), "\n"))
	}
}

// printLog prints the last lines of a failed service's log, as its own words.
func (a *app) printLog(service string, lines []string) {
	if len(lines) == 0 {
		return
	}
	a.out.Printf("  %s\n", a.out.Dim("the last lines of "+service+"'s log, its own words:"))
	for _, line := range lines {
		a.out.Printf("  %s %s\n", a.out.Dim("│"), clean.Text(line, maxLogLine))
	}
}

func (a *app) switchesCommand() *cobra.Command {
	var limit uint32
	var steps bool
	cmd := &cobra.Command{
		Use:   "switches",
		Short: "The switches of modes, newest first, and how each ended",
		Long: `Lists the newest switches from the executor's journal: when, from which mode to which, how it ended, and what
failed. A switch that the executor's own restart interrupted says "recovered".`,
		Example: "  durward switches\n  durward switches --steps --limit 1",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > 200 {
				return usage("", "--limit is 1 to 200")
			}
			ctx, s, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer s.close()
			list, err := s.Executor.ListSwitches(ctx, &executorv1.ListSwitchesRequest{Limit: limit})
			if err != nil {
				return err
			}
			if a.json {
				return a.out.Message(list)
			}
			if len(list.GetSwitches()) == 0 {
				a.out.Printf("This host was never switched to a mode. See: durward mode ls\n")
				return nil
			}
			if steps {
				for _, sw := range list.GetSwitches() {
					a.printSwitch(sw)
				}
				return nil
			}
			rows := make([][]string, 0, len(list.GetSwitches()))
			for _, sw := range list.GetSwitches() {
				rows = append(rows, []string{began(sw), modeChange(sw), a.outcomeColour(sw.GetOutcome()), took(sw), whyFailed(sw)})
			}
			a.out.Table([]string{"BEGAN", "MODE", "OUTCOME", "TOOK", "WHY"}, rows)
			return nil
		},
	}
	cmd.Flags().Uint32Var(&limit, "limit", 20, "at most so many, up to 200")
	cmd.Flags().BoolVar(&steps, "steps", false, "with every step, and the failed service's last log lines")
	return cmd
}

func began(sw *executorv1.Switch) string {
	return sw.GetBeganAt().AsTime().Local().Format(time.DateTime)
}

func modeChange(sw *executorv1.Switch) string {
	to := clean.Line(sw.GetModeId(), 64)
	if from := clean.Line(sw.GetFromModeId(), 64); from != "" {
		return from + " → " + to
	}
	return "→ " + to
}

func took(sw *executorv1.Switch) string {
	if sw.GetEndedAt() == nil {
		return ""
	}
	return seconds(sw.GetEndedAt().AsTime().Sub(sw.GetBeganAt().AsTime()))
}

func whyFailed(sw *executorv1.Switch) string {
	text := clean.Line(sw.GetCause(), 300)
	if service := clean.Line(sw.GetFailedService(), 64); service != "" {
		text = service + ": " + text
	}
	if sw.GetRecovered() {
		text = strings.TrimSpace(text + " (recovered after a restart)")
	}
	return text
}

// printSwitch prints one switch with its steps.
func (a *app) printSwitch(sw *executorv1.Switch) {
	a.out.Printf("%s  %s  %s  %s\n", a.out.Bold(began(sw)), modeChange(sw), a.outcomeColour(sw.GetOutcome()), took(sw))
	if why := whyFailed(sw); why != "" {
		a.out.Printf("  %s\n", why)
	}
	for _, step := range sw.GetSteps() {
		mark := a.out.Green("✓")
		if !step.GetDone() {
			mark = a.out.Yellow("·")
		}
		undo := ""
		if step.GetCompensation() {
			undo = a.out.Dim("  to bring back what was before")
		}
		a.out.Printf("  %s %-6s %-24s %s%s\n", mark, actionWord(step.GetAction()), clean.Line(step.GetServiceId(), 64),
			seconds(time.Duration(step.GetTookMs())*time.Millisecond), undo)
	}
	a.printLog(clean.Line(sw.GetFailedService(), 64), sw.GetLog())
	if sw.GetOperationId() != "" {
		a.out.Printf("  %s\n", a.out.Dim("durward audit search --operation "+clean.Line(sw.GetOperationId(), 64)))
	}
}
