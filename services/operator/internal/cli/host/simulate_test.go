package host

import (
	"strings"
	"testing"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/cli/clitest"
)

// Where something other than memory keeps a plan from being carried out, memory is not what the operator is sent to look at.
func TestWhatIsInTheWayOfAPlan(t *testing.T) {
	const away = "nobody can tell whether ollama runs: its manager does not answer"
	for name, test := range map[string]struct {
		plan          *executorv1.SimulateModeResponse
		verdict, next string
	}{
		"memory":                          {&executorv1.SimulateModeResponse{Reason: "it does not fit: GPU 0 is full"}, "DOES NOT FIT: GPU 0 is full", "durward gpu"},
		"memory, in other words":          {&executorv1.SimulateModeResponse{Reason: "GPU 0 is full"}, "DOES NOT FIT: GPU 0 is full", "durward gpu"},
		"memory, without a sentence":      {&executorv1.SimulateModeResponse{}, "DOES NOT FIT: there is not enough GPU memory", "durward gpu"},
		"a manager":                       {&executorv1.SimulateModeResponse{Fits: true, Blocked: true, Reason: away}, "CANNOT BE DONE NOW: " + away, "durward doctor"},
		"a manager, where it is too full": {&executorv1.SimulateModeResponse{Blocked: true, Reason: away}, "CANNOT BE DONE NOW: " + away, "durward doctor"},
	} {
		core, _, errs := clitest.Printing(false)
		if got := verdict(core.Out, test.plan); got != test.verdict {
			t.Errorf("%s: %q", name, got)
		}
		if core.Explain(feasible(test.plan)); !strings.Contains(errs.String(), test.next) {
			t.Errorf("%s: %q", name, errs)
		}
	}
}
