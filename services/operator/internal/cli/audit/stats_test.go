package audit

import (
	"regexp"
	"strings"
	"testing"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/history"
	"durward.internal/services/platform/logproof"
)

// TestReportIsTextAlone: what an agent had recorded makes no link, image, row or HTML of a reviewer's document, and what stands out is in it.
func TestReportIsTextAlone(t *testing.T) {
	s := statistics{Tally: history.NewTally(), Since: clitest.Now.Add(-48 * time.Hour), Size: 2000, Bytes: 2_000_000, DiskFree: 10_000_000}
	for _, hostile := range []string{"[x](http://evil)", "![x](http://evil/a.png)", "<img src=x>", "a | b |\n| c", "https://evil.example", "`code`", "a\\| b"} {
		s.Add(&auditv1.Entry{Salt: make([]byte, logproof.SaltSize), Record: &auditv1.Record{Kind: auditv1.Kind_KIND_SINK_REFUSED, Status: auditv1.Status_STATUS_DENIED, Tool: "stop_service", Body: &auditv1.Body{Principal: hostile, Summary: hostile}}})
	}
	s.PerDay, s.DaysLeft, s.DaysKnown = 4, 7, true
	got := markdown(s, clitest.Now)
	unescaped := regexp.MustCompile(`\\.`).ReplaceAllString(got, "")
	for _, bad := range []string{"](", "![", "[", "<", "://", "`"} {
		if strings.Contains(unescaped, bad) {
			t.Errorf("the report holds %q:\n%s", bad, got)
		}
	}
	for _, want := range []string{"2000 records", "7 days at 4 records a day", "**denied**", "| stop\\_service | 7 | 0 | 7 | 0 |", "a \\| b \\|"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	for line := range strings.SplitSeq(got, "\n") {
		if strings.Contains(line, "**denied**") && strings.Count(regexp.MustCompile(`\\.`).ReplaceAllString(line, ""), "|") != 8 {
			t.Errorf("a row has another number of cells: %s", line)
		}
	}
	core, out, _ := clitest.Printing(false)
	(&app{core}).showStatistics(s)
	if !strings.Contains(out.String(), "stop_service") || !strings.Contains(out.String(), "7 refused before that") {
		t.Errorf("stats:\n%s", out)
	}
}
