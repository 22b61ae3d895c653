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

// TestReportSaysWhatDoesNotFit: each finding with the operation that it is about and exit code 1; a wrong clock alone is none.
func TestReportSaysWhatDoesNotFit(t *testing.T) {
	const vault, id = "spiffe://durward.local/vault/main", "0123456789abcdef0123456789abcdef"
	found := &history.Completed{Operations: 3, Open: 1, Count: 5, Clocks: []history.Clock{{Writer: vault, Ahead: "-1h0m0s", Steps: 1}}, Findings: []history.Problem{
		{Kind: history.FoundNoOutcome, Operation: id, Index: 7, Writer: vault, Text: "it began"}, {Kind: history.FoundGap, Index: 9, Writer: vault, Text: "it wrote 5 after 3"},
	}}
	for asJSON, want := range map[bool][]string{
		false: {"3 changes, 1 of them open", "clock of vault/main is 1h0m0s behind the log's; it was set 1 time", "✗ record 7 of " + id + ": intent without outcome: it began", "✗ record 9 of vault/main: gap: it wrote 5 after 3", "and 3 more"},
		true:  {`"findings_count": 5`, `"kind": "gap"`, `"operation": "` + id + `"`, `"ahead": "-1h0m0s"`},
	} {
		core, out, _ := clitest.Printing(asJSON)
		a := &app{core}
		var p *cli.Problem
		if err := a.showReport(history.Report{Records: 8, Complete: found}, "kept"); !errors.As(err, &p) || p.Code != cli.ExitFailed {
			t.Errorf("--json %v: %v", asJSON, err)
		}
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("--json %v: %q is not in\n%s", asJSON, w, out)
			}
		}
		if err := a.showReport(history.Report{Records: 8, Complete: &history.Completed{Operations: 3, Open: 1, Clocks: found.Clocks}}, "kept"); err != nil {
			t.Errorf("--json %v: nothing but a wrong clock: %v", asJSON, err)
		}
	}
}
