package audit

import (
	"errors"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/history"
)

// TestReportSaysBoth: the root that was proved, the statements that do not stand, and exit code 1.
func TestReportSaysBoth(t *testing.T) {
	report := history.Report{Records: 8, Root: "c0ffee", SignedBy: "log", BadStatements: 22,
		Bad: []history.Finding{{Index: 7, Writer: "spiffe://durward.local/vault/main", Problem: "signature"}}}
	for asJSON, want := range map[bool][]string{
		false: {"8 records, root c0ffee", "✗ record 7 of vault/main: signature", "and 21 more"},
		true:  {`"root": "c0ffee"`, `"bad_statements": 22`, `"index": 7`},
	} {
		core, out, _ := clitest.Printing(asJSON)
		a := &app{core}
		var p *cli.Problem
		if err := a.showReport(report, "kept"); !errors.As(err, &p) || p.Code != cli.ExitFailed {
			t.Errorf("--json %v: %v", asJSON, err)
		}
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("--json %v: %q is not in\n%s", asJSON, w, out)
			}
		}
		report := report
		report.BadStatements, report.Bad = 0, nil
		if err := a.showReport(report, "kept"); err != nil {
			t.Errorf("--json %v: a good log: %v", asJSON, err)
		}
	}
}
