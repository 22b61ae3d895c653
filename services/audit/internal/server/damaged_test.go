package server_test

import (
	"database/sql"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/fault"
)

// TestDamagedRecordIsNamed: who reads a record that cannot be read is told which one it is, and that trying again does not help.
func TestDamagedRecordIsNamed(t *testing.T) {
	h := newHouse(t)
	h.fill()
	db, err := sql.Open("sqlite", filepath.Join(h.dir, store.File))
	must(t, err)
	for _, statement := range []string{`UPDATE entries SET tool = CAST(x'ff' AS TEXT) WHERE idx = 3`, `DELETE FROM entries WHERE idx = 4`} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	must(t, db.Close())
	named := func(what, want string, err error) {
		t.Helper()
		if f := fault.From(err); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) || !strings.Contains(f.Message, want) || f.Retryable {
			t.Errorf("%s: %v", what, err)
		}
	}
	client := h.history()
	_, err = client.GetRecord(t.Context(), &auditv1.GetRecordRequest{Index: 3})
	named("the record", "record 3: cannot be read", err)
	_, err = client.GetRecord(t.Context(), &auditv1.GetRecordRequest{Index: 4})
	named("the missing record", "record 4: missing", err)
	_, err = client.GetRecord(t.Context(), &auditv1.GetRecordRequest{Index: 5})
	if err != nil {
		t.Errorf("a sound record: %v", err)
	}
	_, err = client.SearchRecords(t.Context(), &auditv1.SearchRecordsRequest{})
	named("a search", "durward doctor", err)
	stream, err := client.ExportLog(t.Context(), &auditv1.ExportLogRequest{})
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		t.Error("the export ends as if all were there")
	}
	named("an export", "record 3: cannot be read", err)
}

// TestStatusOfADamagedLog: a block that cannot be read leaves the growth unknown, and everything else of the status is told.
func TestStatusOfADamagedLog(t *testing.T) {
	h := newHouse(t)
	h.fill()
	db, err := sql.Open("sqlite", filepath.Join(h.dir, store.File))
	must(t, err)
	for _, statement := range []string{`INSERT INTO blocks VALUES (1000, 1000, 1, 1, x'')`, `INSERT INTO packs VALUES (1000, x'00')`} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	must(t, db.Close())
	if status, err := h.history().GetStatus(t.Context(), &auditv1.GetStatusRequest{}); err != nil || status.GetSize() == 0 || status.GetRecordsPerDay() != 0 {
		t.Errorf("%v, %v", status, err)
	}
}
