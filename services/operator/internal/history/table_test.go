package history

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// TestCellsAreNoFormulas: whatever an agent had recorded, no spreadsheet computes it, also one whose cells end at a semicolon.
func TestCellsAreNoFormulas(t *testing.T) {
	for _, hostile := range []string{
		`=1+1`, `+1`, `-1`, `@SUM(A1)`, ` =1`, "\t=1", "\r\n=1", `"=1`, `'=1`, `＝1`, `x;=1`, `x; =1`, `x;"=1`, "x\t=1", `x,=cmd|' /C calc'!A0`, `;@a;-b`, "\u200b=1", "\x00=1", "\ufeff=1",
		`=HYPERLINK("http://x","y")`,
	} {
		cell := Cell(hostile)
		rows, err := csv.NewReader(strings.NewReader(cell + "\r\n")).ReadAll()
		if err != nil || len(rows) != 1 || len(rows[0]) != 1 {
			t.Errorf("%q: %q is no cell: %v", hostile, cell, err)
			continue
		}
		for part := range strings.FieldsFuncSeq(rows[0][0], func(r rune) bool { return strings.ContainsRune(";,|\t\r\n", r) }) {
			if strings.ContainsAny(strings.TrimLeft(part, " \"\u200b\ufeff\x00")[:1], "=+-@") || strings.HasPrefix(part, "＝") {
				t.Errorf("%q is the cell %q, in which %q begins a formula", hostile, rows[0][0], part)
			}
		}
	}
	for _, plain := range []string{"", "chat is running", `{"service_id":"chat"}`, "a - b", "r-mjvkg", "2026-01-31T12:00:00.000Z", "x=1"} {
		if got := Cell(plain); got != `"`+strings.ReplaceAll(plain, `"`, `""`)+`"` {
			t.Errorf("%q is the cell %s", plain, got)
		}
	}
}

// TestExportFormats: each holds every record, and the log is proved on the way.
func TestExportFormats(t *testing.T) {
	l := newLog(t)
	for i, r := range []*auditv1.Record{
		{Status: auditv1.Status_STATUS_OK, Body: remark("=1+1")}, {Status: auditv1.Status_STATUS_DENIED, Body: remark("a, \"b\"")},
		{Status: auditv1.Status_STATUS_TIMEOUT, Body: remark("c")}, {Status: auditv1.Status_STATUS_OK, Tier: optionsv1.Tier_TIER_DESTRUCTIVE, Body: remark("d")},
	} {
		r.Sequence, r.Kind, r.Time = uint64(i+1), auditv1.Kind_KIND_NOTE, timestamppb.New(testNow)
		l.add(r)
	}
	own := l.open(t.TempDir())
	write := func(format string) (string, error) {
		var file bytes.Buffer
		report, err := own.Export(l.export(0), &file, format)
		if err == nil && report.Records != 4 {
			t.Errorf("%s: %+v", format, report)
		}
		return file.String(), err
	}
	for range 2 { // the second time is like the first
		text, err := write("csv")
		rows, parsed := csv.NewReader(strings.NewReader(text)).ReadAll()
		if err != nil || parsed != nil || len(rows) != 5 {
			t.Fatalf("csv: %d rows, %v, %v", len(rows), err, parsed)
		}
		for i, want := range []string{"stands_out", "", "denied", "failed", "destructive"} {
			if got := rows[i][len(rows[i])-1]; got != want || len(rows[i]) != len(columns) {
				t.Errorf("row %d of %d cells stands out as %q, want %q", i, len(rows[i]), got, want)
			}
		}
		if rows[0][0] != "index" || rows[1][19] != "'=1+1" || rows[2][19] != `a, "b"` || rows[4][6] != "DESTRUCTIVE" {
			t.Errorf("rows %q", rows)
		}
	}
	text, err := write("json")
	var object struct {
		Checkpoint string
		Entries    []json.RawMessage
	}
	if parsed := json.Unmarshal([]byte(text), &object); err != nil || parsed != nil || len(object.Entries) != 4 || object.Checkpoint != string(l.checkpoint()) {
		t.Errorf("json: %d entries, %v, %v", len(object.Entries), err, parsed)
	}
	if text, err = write("jsonl"); err != nil || strings.Count(text, "\n") != 5 {
		t.Errorf("jsonl: %v\n%s", err, text)
	}
	if _, err := write("xlsx"); err == nil {
		t.Error("xlsx")
	}
	l.entries[1].Record.Body.Summary = "changed"
	if text, err := write("csv"); err == nil {
		t.Errorf("a changed record is exported:\n%s", text)
	}
	if text, err := write("json"); err == nil || json.Valid([]byte(text)) {
		t.Errorf("what is left of an export looks whole, %v:\n%s", err, text)
	}
	l.must(own.Close())
}
