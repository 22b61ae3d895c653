//go:build real

package damage_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"durward.internal/services/audit/internal/store"
	server "durward.internal/services/platform/platformtest/postgres"
	"durward.internal/services/platform/postgres"
)

// TestPostgresRows: the same rows, changed in PostgreSQL, and a page of its file.
func TestPostgresRows(t *testing.T) {
	s := server.Start(t)
	open := func(t *testing.T, database string) *store.Store {
		db, err := store.OpenPostgres(t.Context(), postgres.Settings{
			Engine: postgres.Postgres, Addresses: []string{s.Socket()}, Name: database, User: "durward_audit", PasswordFile: s.PasswordFile,
		}, slog.New(slog.DiscardHandler))
		must(t, err)
		return db
	}
	r := newRig(t)
	db := open(t, "durward_audit")
	r.fill(t, db)
	must(t, db.Close())
	n := 0
	for name, tc := range rows {
		t.Run(name, func(t *testing.T) {
			n++
			copied := "copy" + strconv.Itoa(n)
			s.SQL(t, "postgres", "CREATE DATABASE "+copied+" TEMPLATE durward_audit OWNER durward_audit")
			s.SQL(t, copied, strings.ReplaceAll(tc.statement, "AS BLOB", "AS bytea"))
			db := open(t, copied)
			defer db.Close()
			says(t, r.startOn(t, db, ""), tc.says...)
		})
	}
	file := filepath.Join(s.Dir, "data", s.SQL(t, "durward_audit", "SELECT pg_relation_filepath('entries')"))
	s.SQL(t, "postgres", "CHECKPOINT")
	s.Kill(t)
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	must(t, err)
	const page = 8192
	if _, err := f.WriteAt([]byte("this is no page of PostgreSQL's"), page); err != nil {
		t.Fatal(err)
	}
	must(t, f.Close())
	s.Run(t)
	db = open(t, "durward_audit")
	defer db.Close()
	says(t, r.startOn(t, db, ""), "records ", "invalid page in block 1", fmt.Sprintf("of %d records that were read are sound", records))
}
