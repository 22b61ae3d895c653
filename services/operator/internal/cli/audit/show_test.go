package audit

import (
	"errors"
	"slices"
	"strings"
	"testing"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/history"
)

// TestReportSaysBoth: the root that was proved, the statements that do not stand, and exit code 1.
func TestReportSaysBoth(t *testing.T) {
	report := history.Report{Records: 8, Root: "c0ffee", SignedBy: "log", BadStatements: 22,
		Bad: []history.BadStatement{{Index: 7, Writer: "spiffe://durward.local/vault/main", Problem: "signature"}}}
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

func TestSignedEntries(t *testing.T) {
	entry := func(index uint64, writer string, kind auditv1.Kind) *auditv1.Entry {
		return &auditv1.Entry{Index: index, Writer: "spiffe://durward.local/" + writer, Record: &auditv1.Record{Kind: kind,
			Body: &auditv1.Body{Statement: &callv1.HumanStatement{Statement: []byte("{}")}}}}
	}
	bare := entry(4, "vault/main", auditv1.Kind_KIND_APPROVED)
	bare.Record.Body = nil
	var got []uint64
	for _, e := range signedEntries([]*auditv1.Entry{
		entry(0, "gateway/main", auditv1.Kind_KIND_REFUSED), entry(1, "gateway/main", auditv1.Kind_KIND_APPROVED),
		entry(2, "executor/local", auditv1.Kind_KIND_INTENT), entry(3, "executor/local", auditv1.Kind_KIND_OUTCOME), bare,
		entry(5, "vault/main", auditv1.Kind_KIND_APPROVED),
	}) {
		got = append(got, e.GetIndex())
	}
	if want := []uint64{5, 2}; !slices.Equal(got, want) {
		t.Errorf("signed: %v, want %v", got, want)
	}
}
