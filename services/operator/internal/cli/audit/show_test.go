package audit

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/operator/internal/peers"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/statement"
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

// TestEvidenceOfAnotherOperation: a signature that stands, and that audit shows beside what nobody signed, is not shown as one for it, and
// not written as its statement.
func TestEvidenceOfAnotherOperation(t *testing.T) {
	kit := platformtest.New(t)
	const signed, other = "0123456789abcdef0123456789abcdef", "ffffffffffffffffffffffffffffffff"
	st := &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindResume, ID: signed, Operator: platformtest.Operator, Epoch: 1,
		Audience: "spiffe://durward.local/vault/main", IssuedAt: statement.FormatTime(clitest.Now), NotBefore: statement.FormatTime(clitest.Now),
		ExpiresAt: statement.FormatTime(clitest.Now.Add(time.Minute)),
	}
	evidence, err := statement.Sign(st, kit.OperatorSigner)
	if err != nil {
		t.Fatal(err)
	}
	for kind, stands := range map[auditv1.Kind]bool{auditv1.Kind_KIND_RESUMED: true, auditv1.Kind_KIND_APPROVED: false} {
		e := &auditv1.Entry{Writer: "spiffe://durward.local/vault/main", LoggedAt: timestamppb.New(clitest.Now), Record: &auditv1.Record{
			Kind: kind, OperationId: other, Body: &auditv1.Body{Statement: evidence}}}
		s := &cli.Session{Peers: &peers.Peers{Trust: kit.Trust, Audit: peers.Audit{HistoryServiceClient: &paged{records: []*auditv1.Entry{e}}}}}
		core, out, _ := clitest.Printing(false)
		a, dir := &app{core}, t.TempDir()
		a.showEvidence(s, e, evidence)
		if got := strings.Contains(out.String(), "the signature stands (alice)"); got != stands || strings.Contains(out.String(), "NOT FOR THIS RECORD") == stands {
			t.Errorf("%s:\n%s", kind, out)
		}
		if err := a.writeStatement(t.Context(), s, other, dir); (err == nil) != stands {
			t.Errorf("%s: %v", kind, err)
		}
	}
}
