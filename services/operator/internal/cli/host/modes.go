package host

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/approval"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/pattern"
)

// planPrefix is what --plan takes: the beginning of a plan's digest, long enough that nobody hits one by chance.
var planPrefix = pattern.New(`^[0-9a-f]{8,64}$`)

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
	return a.orWatch(&cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "The catalogue's modes, and which one the host is in",
		Example: "  durward mode ls\n  durward mode ls --json | jq -r .current",
		RunE: cli.Asked(a.App, func(ctx context.Context, s *cli.Session, _ []string) (*executorv1.ListModesResponse, error) {
			return s.Executor.Tools.ListModes(ctx, &executorv1.ListModesRequest{})
		}, func(list *executorv1.ListModesResponse) {
			if len(list.GetModes()) == 0 {
				a.Out.Printf("The catalogue defines no mode yet. Add one: durward catalog add mode -h\n")
				return
			}
			a.Out.Table([]string{"MODE", "STATE", "VRAM", "SERVICES", "NAME"}, output.Each(list.GetModes(), func(m *executorv1.ModeSummary) []string {
				state := ""
				switch current := m.GetModeId() == list.GetCurrent(); {
				case current && m.GetRunning():
					state = a.Out.Green("current")
				case current:
					state = a.Out.Yellow("current, drifted")
				case m.GetRunning():
					state = "all run"
				}
				return []string{clean.Line(m.GetModeId(), 64), state, cli.Mebibytes(m.GetVramMib()), clean.Line(strings.Join(m.GetServices(), ", "), 300), clean.Line(m.GetName(), 64)}
			}))
		}),
	}, watched{"mode"})
}

func (a *app) modeShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "show ID",
		Aliases:           []string{"info"},
		Short:             "One mode: its services in order, and what drifted from it",
		Example:           "  durward mode show coding",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.CompleteEntries("mode"),
		RunE: cli.Asked(a.App, func(ctx context.Context, s *cli.Session, args []string) (*executorv1.ModeInfoResponse, error) {
			return s.Executor.Tools.ModeInfo(ctx, &executorv1.ModeInfoRequest{ModeId: &args[0]})
		}, func(m *executorv1.ModeInfoResponse) {
			a.Out.Printf("%s  %s\n", a.Out.Bold(clean.Line(m.GetModeId(), 64)), clean.Line(m.GetName(), 64))
			if m.GetDescription() != "" {
				a.Out.Printf("  %s\n", clean.Line(m.GetDescription(), 300))
			}
			if m.GetCurrent() {
				a.Out.Printf("  %s\n", a.Out.Green("the host was switched to it last"))
			}
			if len(m.GetDrifted()) > 0 {
				a.Out.Printf("  %s  %s\n", a.Out.Yellow("drifted: "+clean.Line(strings.Join(m.GetDrifted(), ", "), 500)),
					a.Out.Dim("bring it back: "+a.Typed()+" switch "+clean.Line(m.GetModeId(), 64)))
			}
			a.printServices(m.GetServices())
		}),
	}
}

func (a *app) switchCommand() *cobra.Command {
	var how *cli.Asking
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
		ValidArgsFunction: a.CompleteEntries("mode"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if plan = strings.ToLower(plan); cmd.Flags().Changed("plan") && plan == "" {
				// A script that took it from a simulation without a number would else switch without any plan.
				return cli.Usage("Not every simulation has one: what takes a change of the catalogue, or names no mode, has none.", "--plan is empty")
			}
			if plan != "" && !planPrefix().MatchString(plan) {
				return cli.Usage("It is what durward simulate prints: 8 to 64 characters 0-9 and a-f.",
					"%q is not the beginning of a plan's digest", clean.Visible(plan))
			}
			return a.Run(cmd.Context(), func(ctx context.Context, s *cli.Session) error {
				return a.switchMode(ctx, s, args[0], plan, *how)
			})
		},
	}
	cmd.Flags().StringVar(&plan, "plan", "", "the number of the plan, or of an alternative, from durward simulate: refuse if it is another one now")
	how = cli.AskingFlags(cmd)
	return cmd
}

func (a *app) switchMode(ctx context.Context, s *cli.Session, mode, prefix string, how cli.Asking) error {
	request := &executorv1.SimulateModeRequest{ModeId: &mode}
	if prefix != "" {
		request.Alternatives = new(uint32(contract.MostAlternatives))
	}
	plan, err := s.Executor.Tools.SimulateMode(ctx, request)
	if err != nil {
		return err
	}
	out := a.Looks(how)
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
			return cli.Failed("See: durward simulate "+clean.Visible(mode), "the executor gave no number for the plan, so it cannot be signed")
		}
	}
	if chosen == nil && len(plan.GetSteps()) == 0 {
		modes, err := s.Executor.Tools.ListModes(ctx, &executorv1.ListModesRequest{})
		if err != nil {
			return err
		}
		if modes.GetCurrent() == plan.GetModeId() {
			return a.Show(map[string]any{"status": "ok", "changed": false, "summary": "the host is in this mode already"}, func() {
				a.Out.Printf("The host is in this mode already.\n")
			})
		}
	}
	err = a.Act(ctx, s, "switch_mode", map[string]string{"mode_id": mode, "plan_digest": digest}, how)
	if errors.Is(err, approval.ErrArguments) {
		return cli.Usage("See: durward mode ls", "%q is not a mode id", clean.Visible(mode))
	}
	return err
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
		PreRunE: func(*cobra.Command, []string) error {
			if limit < 1 || limit > 200 {
				return cli.Usage("", "--limit is 1 to 200")
			}
			return nil
		},
		RunE: cli.Asked(a.App, func(ctx context.Context, s *cli.Session, _ []string) (*executorv1.ListSwitchesResponse, error) {
			return s.Executor.ListSwitches(ctx, &executorv1.ListSwitchesRequest{Limit: limit})
		}, func(list *executorv1.ListSwitchesResponse) {
			switch {
			case len(list.GetSwitches()) == 0:
				a.Out.Printf("This host was never switched to a mode. See: %s mode ls\n", a.Typed())
			case steps:
				for _, sw := range list.GetSwitches() {
					a.printSwitch(sw)
				}
			default:
				a.Out.Table([]string{"BEGAN", "MODE", "OUTCOME", "TOOK", "WHY"}, output.Each(list.GetSwitches(), func(sw *executorv1.Switch) []string {
					return []string{began(sw), modeChange(sw), a.OutcomeColour(sw.GetOutcome()), took(sw), whyFailed(sw)}
				}))
			}
		}),
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
	return cli.Seconds(sw.GetEndedAt().AsTime().Sub(sw.GetBeganAt().AsTime()))
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
	a.Out.Printf("%s  %s  %s  %s\n", a.Out.Bold(began(sw)), modeChange(sw), a.OutcomeColour(sw.GetOutcome()), took(sw))
	if why := whyFailed(sw); why != "" {
		a.Out.Printf("  %s\n", why)
	}
	for _, step := range sw.GetSteps() {
		mark := a.Out.Green("✓")
		if !step.GetDone() {
			mark = a.Out.Yellow("·")
		}
		undo := ""
		if step.GetCompensation() {
			undo = a.Out.Dim("  to bring back what was before")
		}
		a.Out.Printf("  %s %-6s %-24s %s%s\n", mark, contract.WordOf(step.GetAction()), clean.Line(step.GetServiceId(), 64),
			cli.Seconds(time.Duration(step.GetTookMs())*time.Millisecond), undo)
	}
	a.PrintLog(clean.Line(sw.GetFailedService(), 64), sw.GetLog())
	if sw.GetOperationId() != "" {
		a.Out.Printf("  %s\n", a.Out.Dim(a.Typed()+" audit search --operation "+clean.Line(sw.GetOperationId(), 64)))
	}
}

func (a *app) modelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "model",
		Aliases: []string{"models"},
		Short:   "The models that services serve",
		Example: "  durward model ls\n  durward model show durward/demo-1b",
	}
	list := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "The catalogue's models, and which answer now",
		RunE: cli.Asked(a.App, func(ctx context.Context, s *cli.Session, _ []string) (*executorv1.ListModelsResponse, error) {
			return s.Executor.Tools.ListModels(ctx, &executorv1.ListModelsRequest{})
		}, func(list *executorv1.ListModelsResponse) {
			a.Out.Table([]string{"MODEL", "ANSWERS", "NAME IN REQUESTS", "SERVICES"}, output.Each(list.GetModels(), func(m *executorv1.ModelSummary) []string {
				answers := a.Out.Dim("no")
				if m.GetAvailable() {
					answers = a.Out.Green("yes")
				}
				return []string{clean.Line(m.GetModelId(), 128), answers, clean.Line(m.GetServedName(), 128), clean.Line(strings.Join(m.GetServices(), ", "), 500)}
			}))
		}),
	}
	show := &cobra.Command{
		Use:               "show ID",
		Short:             "One model and the services that serve it",
		Example:           "  durward model show durward/demo-1b",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.CompleteEntries("model"),
		RunE: cli.Asked(a.App, func(ctx context.Context, s *cli.Session, args []string) (*executorv1.ModelInfoResponse, error) {
			return s.Executor.Tools.ModelInfo(ctx, &executorv1.ModelInfoRequest{ModelId: &args[0]})
		}, func(m *executorv1.ModelInfoResponse) {
			a.Out.Printf("%s\n", a.Out.Bold(clean.Line(m.GetModelId(), 128)))
			a.Out.Printf("  %-17s %s\n", "name in requests", clean.Line(m.GetServedName(), 128))
			a.Out.Fields(17, [][2]string{{"source", clean.Line(m.GetSource(), 256)}})
			for _, service := range m.GetServices() {
				a.Out.Printf("  %-17s %s  %s  %s\n", "service", clean.Line(service.GetServiceId(), 64), a.StateColour(service.GetState()),
					clean.Line(service.GetBaseUrl(), 256))
			}
		}),
	}
	cmd.AddCommand(list, show)
	return cmd
}
