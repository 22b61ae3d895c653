package cli

import (
	"cmp"
	"strings"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
)

// MaxLogLine is how many characters of a service's line are shown.
const MaxLogLine = 4000

// OutcomeColour says for people how a switch ended, in its colour.
func (a *App) OutcomeColour(o executorv1.SwitchOutcome) string {
	switch o {
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED:
		return a.Out.Green("done")
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK:
		return a.Out.Yellow("rolled back")
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_DEGRADED:
		return a.Out.Red("degraded")
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_NEEDS_A_HUMAN:
		return a.Out.Red("needs a human")
	default:
		return a.Out.Blue("under way")
	}
}

// switchProblem is how a switch that did not come to its mode ended, and what to do now.
func switchProblem(m *executorv1.SwitchModeResponse) error {
	what := "the switch did not come to its end"
	if service := clean.Line(m.GetFailedService(), 64); service != "" {
		what = service + ": " + cmp.Or(clean.Line(m.GetCause(), 300), "it failed")
	} else if m.GetCause() != "" {
		what = clean.Line(m.GetCause(), 300)
	}
	mode := clean.Line(m.GetModeId(), 64)
	switch m.GetOutcome() {
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK:
		return Failed("What ran before runs again. Once the cause is gone: durward switch "+mode, "rolled back: %s", what)
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_DEGRADED:
		return Failed("Not everything from before could be brought back. See: durward services; durward switches --steps",
			"degraded: %s", what)
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_NEEDS_A_HUMAN:
		return Failed("Nothing more is tried. See what runs: durward services, durward gpu. Then switch again.",
			"needs a human: %s", what)
	default:
		return Failed("See: durward switches --steps", "%s", what)
	}
}

// printSwitched prints what a switch did.
func (a *App) printSwitched(m *executorv1.SwitchModeResponse) {
	steps := output.Each(m.GetDone(), func(step *executorv1.PlanStep) string {
		return contract.WordOf(step.GetAction()) + " " + clean.Line(step.GetServiceId(), 64)
	})
	if len(steps) > 0 {
		a.Out.Printf("  %s\n", strings.Join(steps, ", "))
	}
	if len(m.GetNotRunning()) > 0 {
		a.Out.Printf("  %s\n", a.Out.Red("should run and do not: "+clean.Line(strings.Join(m.GetNotRunning(), ", "), 500)))
	}
	if m.GetLog() != "" {
		a.PrintLog(clean.Line(m.GetFailedService(), 64), strings.Split(m.GetLog(), "\n"))
	}
}

// PrintLog prints the last lines of a failed service's log, as its own words.
func (a *App) PrintLog(service string, lines []string) {
	if len(lines) == 0 {
		return
	}
	a.Out.Printf("  %s\n", a.Out.Dim("the last lines of "+service+"'s log, its own words:"))
	for _, line := range lines {
		a.Out.Printf("  %s %s\n", a.Out.Dim("│"), clean.Text(line, MaxLogLine))
	}
}
