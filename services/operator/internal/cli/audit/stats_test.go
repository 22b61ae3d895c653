package audit

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/logproof"
)

// TestReportIsTextAlone: what an agent had recorded makes no link, image, row or HTML of a reviewer's document, and what stands out is in it.
func TestReportIsTextAlone(t *testing.T) {
	status := &auditv1.GetStatusResponse{Size: 2000, DatabaseBytes: 2_000_000, DiskFreeBytes: 10_000_000, RecordsPerDay: 4, BytesPerDay: 1_400_000}
	counted := &auditv1.CountRecordsResponse{Records: 7, Kinds: map[string]uint64{"KIND_SINK_REFUSED": 7, "KIND_APPROVED": 2}, Tools: []*auditv1.CallCount{{Name: "stop_service", Denied: 7}}, MoreClients: 3}
	var found []*auditv1.Entry
	for _, hostile := range []string{"[x](http://evil)", "![x](http://evil/a.png)", "<img src=x>", "a | b |\n| c", "https://evil.example", "`code`", "a\\| b"} {
		counted.Clients = append(counted.Clients, &auditv1.CallCount{Name: hostile, Denied: 1})
		found = append(found, &auditv1.Entry{Record: &auditv1.Record{Kind: auditv1.Kind_KIND_SINK_REFUSED, Status: auditv1.Status_STATUS_DENIED, Tool: "stop_service", Body: &auditv1.Body{Principal: hostile, Summary: hostile}}})
	}
	s := counts(status, counted)
	s.Notable = output.Each(found, notableOf)
	got := markdown(s, clitest.Now)
	unescaped := regexp.MustCompile(`\\.`).ReplaceAllString(got, "")
	for _, bad := range []string{"](", "![", "[", "<", "://", "`"} {
		if strings.Contains(unescaped, bad) {
			t.Errorf("the report holds %q:\n%s", bad, got)
		}
	}
	for _, want := range []string{"2000 records", "7 days at 4 records a day", "**denied**", "| stop\\_service | 7 | 0 | 7 | 0 |", "a \\| b \\|", "2 approved", "| and 3 more |"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	for line := range strings.SplitSeq(got, "\n") {
		if strings.Contains(line, "**denied**") && strings.Count(regexp.MustCompile(`\\.`).ReplaceAllString(line, ""), "|") != 8 {
			t.Errorf("a row has another number of cells: %s", line)
		}
	}
	// A program reads the same rows. Who asked for none gets none.
	core, out, _ := clitest.Printing(true)
	var rows struct{ Notable []notable }
	if err := core.Show(s, nil); err != nil || json.Unmarshal(out.Bytes(), &rows) != nil || !slices.Equal(rows.Notable, s.Notable) || rows.Notable[0].What != "denied" {
		t.Errorf("%v: %s", err, out)
	}
	out.Reset()
	if err := core.Show(counts(status, counted), nil); err != nil || strings.Contains(out.String(), "notable") {
		t.Errorf("%v: %s", err, out)
	}
	// A disk that is full today has no day left, to programs too.
	status.DiskFreeBytes = 4096
	for asJSON, want := range map[bool]string{false: "0 days at", true: `"days_left": 0`} {
		core, out, _ := clitest.Printing(asJSON)
		a, full := &app{core}, counts(status, counted)
		if err := a.Show(full, func() { a.showStatistics(full) }); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("--json %v: %v\n%s", asJSON, err, out)
		}
	}
	status.DiskFreeBytes = 0
	if remote := counts(status, counted); strings.Contains(remote.disk(), "free") || remote.DaysLeft != nil {
		t.Errorf("a database server's disk: %s", remote.disk())
	}
	core, out, _ = clitest.Printing(false)
	(&app{core}).showStatistics(s)
	if !strings.Contains(out.String(), "stop_service") || !strings.Contains(out.String(), "7 refused before that") {
		t.Errorf("stats:\n%s", out)
	}
}

// paged is an audit whose searches find so many records of each sort, newest first, and which answers with a few at a time.
type paged struct {
	auditv1.HistoryServiceClient
	records []*auditv1.Entry
	asked   int
}

func (p *paged) SearchRecords(_ context.Context, q *auditv1.SearchRecordsRequest, _ ...grpc.CallOption) (*auditv1.SearchRecordsResponse, error) {
	p.asked++
	out := &auditv1.SearchRecordsResponse{}
	for _, e := range slices.Backward(p.records) {
		r := e.GetRecord()
		if q.GetBefore() > 0 && e.GetIndex() >= q.GetBefore() || len(q.GetStatuses()) > 0 && !slices.Contains(q.GetStatuses(), r.GetStatus()) ||
			len(q.GetKinds()) > 0 && !slices.Contains(q.GetKinds(), r.GetKind()) || q.GetTier() != 0 && q.GetTier() != r.GetTier() {
			continue
		}
		if len(out.Entries) == 30 {
			out.NextBefore = out.GetEntries()[29].GetIndex()
			break
		}
		out.Entries = append(out.Entries, e)
	}
	return out, nil
}

// TestStandOut: a report has the newest hundred records that stand out, whichever search finds them, and takes none that is not its leaf.
func TestStandOut(t *testing.T) {
	audit := &paged{}
	add := func(r *auditv1.Record) {
		r.Sequence, r.Time = uint64(len(audit.records)+1), timestamppb.New(clitest.Now)
		e := &auditv1.Entry{Index: uint64(len(audit.records)), Writer: "spiffe://durward.local/executor/local", Record: r, LoggedAt: timestamppb.New(clitest.Now), Salt: make([]byte, logproof.SaltSize)}
		if err := logproof.Seal(e); err != nil {
			t.Fatal(err)
		}
		audit.records = append(audit.records, e)
	}
	for range 60 {
		add(&auditv1.Record{Kind: auditv1.Kind_KIND_INTENT, Body: &auditv1.Body{Dangerous: true}})
		add(&auditv1.Record{Kind: auditv1.Kind_KIND_READ, Status: auditv1.Status_STATUS_OK})
		add(&auditv1.Record{Kind: auditv1.Kind_KIND_OUTCOME, Status: auditv1.Status_STATUS_ERROR, Tier: optionsv1.Tier_TIER_DESTRUCTIVE})
	}
	found, err := standOut(t.Context(), audit, nil)
	if err != nil || len(found) != 100 {
		t.Fatalf("%d records, %v", len(found), err)
	}
	for i, e := range found {
		if want := uint64(30 + i/2*3 + i%2*2); e.GetIndex() != want {
			t.Errorf("record %d is %d, want %d", i, e.GetIndex(), want)
		}
	}
	if audit.asked > 12 {
		t.Errorf("audit was asked %d times", audit.asked)
	}
	audit.records[100].Record.Tool = "another"
	audit.records[100].Record.Status = auditv1.Status_STATUS_DENIED
	if _, err := standOut(t.Context(), audit, nil); err == nil || !strings.Contains(err.Error(), "does not match its leaf") {
		t.Errorf("a record that is not its leaf: %v", err)
	}
}
