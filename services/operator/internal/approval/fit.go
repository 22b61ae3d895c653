package approval

import (
	"fmt"
	"slices"
	"strings"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
)

// How the lines begin that say that a call would fail now.
const (
	DoesNotFit   = "DOES NOT FIT NOW: "
	CannotBeDone = "CANNOT BE DONE NOW: "
)

// Unfit reports whether a line says that the call would fail now.
func Unfit(line string) bool {
	line = strings.TrimSpace(line)
	return strings.HasPrefix(line, DoesNotFit) || strings.HasPrefix(line, CannotBeDone)
}

// Short reports whether memory is the reason why a plan cannot be carried out. Others come first where memory lacks too.
func Short(plan *executorv1.SimulateModeResponse) bool { return !plan.GetFits() && !plan.GetBlocked() }

// Lack is what memory such a plan lacks, without the words that begin its reason.
func Lack(plan *executorv1.SimulateModeResponse) string {
	reason := clean.Line(plan.GetReason(), 500)
	if _, what, ok := strings.Cut(reason, "does not fit: "); ok {
		return what
	}
	return reason
}

// FitLines say whether what a call starts fits at this moment, by the executor's own check: what each service needs and how that is
// known, what is free of each GPU, and where it does not fit what would make room. None where nothing is loaded.
func FitLines(fit *executorv1.SimulateModeResponse) []string {
	if fit == nil {
		return nil
	}
	var lines []string
	switch {
	case Short(fit):
		lines = append(lines, DoesNotFit+Lack(fit))
	case fit.GetReason() != "":
		lines = append(lines, CannotBeDone+clean.Line(fit.GetReason(), 500))
	default:
		lines = append(lines, "fits now")
	}
	if needs := needWords(fit); needs != "" {
		lines[0] += "; " + needs
	}
	if !Short(fit) {
		return append(lines, gpuWords(fit.GetGpus())...)
	}
	ways := output.Each(fit.GetAlternatives(), ChangeWords)
	if len(ways) == 0 {
		return append(lines, "approved now, it would fail; nothing that may be stopped or put to sleep makes room")
	}
	return append(lines, "approved now, it would fail; this would make room: "+strings.Join(ways, "; or "))
}

// needWords say what each service needs that is started or woken, and how that is known.
func needWords(fit *executorv1.SimulateModeResponse) string {
	var parts []string
	for _, n := range fit.GetNeeds() {
		if !slices.ContainsFunc(fit.GetSteps(), func(step *executorv1.PlanStep) bool {
			return step.GetServiceId() == n.GetServiceId() &&
				(step.GetAction() == executorv1.PlanAction_PLAN_ACTION_START || step.GetAction() == executorv1.PlanAction_PLAN_ACTION_WAKE)
		}) {
			continue
		}
		switch id := clean.Line(n.GetServiceId(), 64); {
		case n.GetSource() == "unknown":
			parts = append(parts, "nobody knows what "+id+" needs, so it counts nothing")
		case n.GetNeedMib() > 0:
			parts = append(parts, fmt.Sprintf("%s needs %s GiB (%s)", id, gigabytes(n.GetNeedMib()), clean.Line(n.GetSource(), 32)))
		}
	}
	return strings.Join(parts, ", ")
}

// gpuWords say what is free of each GPU whose use changes. How it is known is the weakest source of the numbers.
func gpuWords(gpus []*executorv1.GpuForecast) []string {
	var lines []string
	for _, g := range gpus {
		if g.GetNowMib() == g.GetAfterMib() {
			continue
		}
		now := int64(g.GetFreeMib()) + int64(g.GetAfterMib()) - int64(g.GetNowMib())
		lines = append(lines, fmt.Sprintf("GPU %d: %s of %s GiB free now, %s afterwards (%s)", g.GetIndex(), gigabytes(uint32(max(now, 0))),
			gigabytes(g.GetTotalMib()), gigabytes(g.GetFreeMib()), clean.Line(g.GetSource(), 32)))
	}
	return lines
}

// changes are the words before the service that a change is about; or, of a change of the catalogue, between it and the value.
var changes = map[executorv1.ChangeKind]string{
	executorv1.ChangeKind_CHANGE_KIND_KEEP: "keep ", executorv1.ChangeKind_CHANGE_KIND_SLEEP: "sleep ", executorv1.ChangeKind_CHANGE_KIND_STOP: "stop ",
	executorv1.ChangeKind_CHANGE_KIND_CONTEXT: " with a context of ", executorv1.ChangeKind_CHANGE_KIND_UTILISATION: " with a share of the GPU of ",
	executorv1.ChangeKind_CHANGE_KIND_GPU: " on GPU ", executorv1.ChangeKind_CHANGE_KIND_SPLIT: " split over GPUs ",
}

// ChangeWords says what an alternative does: "sleep chat-70b, context of qwen3-32b 16384 instead of 32768".
func ChangeWords(alternative *executorv1.Alternative) string {
	var parts []string
	for _, change := range alternative.GetChanges() {
		id, from, to := clean.Line(change.GetServiceId(), 64), clean.Line(change.GetFrom(), 64), clean.Line(change.GetTo(), 64)
		instead := to
		if from != "" {
			instead += " instead of " + from
		}
		switch words := changes[change.GetKind()]; {
		case words == "":
			parts = append(parts, "something else about "+id)
		case change.GetKind() < executorv1.ChangeKind_CHANGE_KIND_CONTEXT:
			parts = append(parts, words+id)
		default:
			parts = append(parts, id+words+instead)
		}
	}
	return strings.Join(parts, ", ")
}
