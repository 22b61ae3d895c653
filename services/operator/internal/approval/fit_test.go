package approval

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
)

// TestEveryApprovalShowsTheFitNow: a start, a wake and a switch say whether they fit, on which GPU, what is needed and free, how that is
// known, and what would make room.
func TestEveryApprovalShowsTheFitNow(t *testing.T) {
	start := []*executorv1.PlanStep{{Action: executorv1.PlanAction_PLAN_ACTION_START, ServiceId: "chat"}}
	stop := &executorv1.Alternative{Changes: []*executorv1.Change{{Kind: executorv1.ChangeKind_CHANGE_KIND_STOP, ServiceId: "embed"}}}
	sleep := &executorv1.Alternative{Changes: []*executorv1.Change{{Kind: executorv1.ChangeKind_CHANGE_KIND_SLEEP, ServiceId: "coder"}}}
	for name, c := range map[string]struct {
		fit  *executorv1.SimulateModeResponse
		want []string
	}{
		"nothing is loaded": {nil, nil},
		"it fits": {&executorv1.SimulateModeResponse{Fits: true, Steps: start,
			Needs: []*executorv1.ServiceNeed{{ServiceId: "chat", NeedMib: 8192, Source: "estimated"}, {ServiceId: "embed", NeedMib: 1024, Source: "measured"}},
			Gpus: []*executorv1.GpuForecast{{Index: 0, NowMib: 1, AfterMib: 1, TotalMib: 24576},
				{Index: 1, NowMib: 2048, AfterMib: 10240, FreeMib: 14336, TotalMib: 24576, Source: "estimated"}},
		}, []string{"fits now; chat needs 8.0 GiB (estimated)", "GPU 1: 22.0 of 24.0 GiB free now, 14.0 afterwards (estimated)"}},
		"it does not": {&executorv1.SimulateModeResponse{Steps: start, Reason: "chat does not fit: GPU 1 has 10 MiB free for it\x1b[2J",
			Needs: []*executorv1.ServiceNeed{{ServiceId: "chat", NeedMib: 8192, Source: "declared"}}, Alternatives: []*executorv1.Alternative{stop, sleep},
		}, []string{"DOES NOT FIT NOW: GPU 1 has 10 MiB free for it; chat needs 8.0 GiB (declared)",
			"approved now, it would fail; this would make room: stop embed; or sleep coder"}},
		"nothing makes room": {&executorv1.SimulateModeResponse{Reason: "it does not fit: GPU 1 is small"},
			[]string{"DOES NOT FIT NOW: GPU 1 is small", "approved now, it would fail; nothing that may be stopped or put to sleep makes room"}},
		"it fits and cannot be done":            {&executorv1.SimulateModeResponse{Fits: true, Blocked: true, Reason: "base does not run"}, []string{"CANNOT BE DONE NOW: base does not run"}},
		"it does not and cannot be done either": {&executorv1.SimulateModeResponse{Blocked: true, Reason: "base does not run"}, []string{"CANNOT BE DONE NOW: base does not run"}},
		"nobody knows": {&executorv1.SimulateModeResponse{Fits: true, Steps: start, Needs: []*executorv1.ServiceNeed{{ServiceId: "chat", Source: "unknown"}}},
			[]string{"fits now; nobody knows what chat needs, so it counts nothing"}},
	} {
		got := FitLines(c.fit)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		p := preview()
		p.Fit = c.fit
		sheet := Card{Number: "K7F3", Operation: operation(t), Preview: p}.Sheet(testNow)
		for _, want := range c.want {
			found := false
			for _, line := range sheet {
				found = found || strings.TrimSpace(line.Text) == want && (line.Kind == Danger) == Unfit(want)
			}
			if !found {
				t.Errorf("%s: %q is not on the card %v", name, want, sheet)
			}
		}
	}
}
