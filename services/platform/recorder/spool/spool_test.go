package spool_test

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/recorder/spool"
)

// TestStore runs the spool's life on a real file.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	open := func() *spool.Store {
		s, err := spool.Open(t.Context(), dir)
		must(t, err)
		return s
	}
	s := open()
	if b, err := s.LoadCheckpoint(t.Context(), logproof.KeptSeen); b != nil || err != nil {
		t.Fatalf("%q, %v", b, err)
	}
	when := time.Unix(1_700_000_000, 5)
	must(t, errors.Join(s.SaveCheckpoint(t.Context(), logproof.KeptSeen, []byte("one")), s.SaveCheckpoint(t.Context(), logproof.KeptWitnessed, []byte("two"))))
	must(t, s.Commit(t.Context(), recorder.Change{Add: []recorder.Row{{ID: 1, Queued: when, Record: []byte("a")}, {ID: 2, Queued: when, Record: []byte("b")}, {ID: 3, Sequence: 9, Queued: when, Record: []byte("c")}}}))
	must(t, s.Commit(t.Context(), recorder.Change{Assign: map[uint64]uint64{1: 7, 99: 8}, Remove: []uint64{2, 98}}))
	// A change that fails halfway leaves nothing behind.
	if err := s.Commit(t.Context(), recorder.Change{Remove: []uint64{1}, Add: []recorder.Row{{ID: 4, Queued: when, Record: []byte("d")}, {ID: 3, Queued: when, Record: []byte("c")}}}); err == nil {
		t.Fatal("a row was added twice")
	}
	must(t, s.Close())
	s = open()
	defer s.Close()
	if _, err := os.Lstat(filepath.Join(dir, spool.File+"-shm")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it takes a file of shared memory, which a full disk may have no room for: %v", err)
	}
	rows, kept, err := s.Load(t.Context())
	if err != nil || len(rows) != 2 || kept != 2 || rows[0].Sequence != 7 || rows[1].ID != 3 || !rows[0].Queued.Equal(when) || string(rows[1].Record) != "c" {
		t.Fatalf("rows %+v, %v", rows, err)
	}
	if b, err := s.LoadCheckpoint(t.Context(), logproof.KeptSeen); string(b) != "one" || err != nil {
		t.Fatalf("checkpoint %q, %v", b, err)
	}
	if b, err := s.LoadCheckpoint(t.Context(), logproof.KeptWitnessed); string(b) != "two" || err != nil {
		t.Fatalf("what witnesses cosigned %q, %v", b, err)
	}
	if _, err := spool.Open(t.Context(), filepath.Join("relative", "folder")); err == nil {
		t.Error("a relative state folder was taken")
	}
}

//go:embed migrations/00001_spool.sql
var firstSchema []byte

// TestEarlierFile: a spool that an earlier version wrote keeps its rows and its checkpoint.
func TestEarlierFile(t *testing.T) {
	dir := t.TempDir()
	db, err := database.Open(t.Context(), database.Config{
		Path: filepath.Join(dir, spool.File), StateDir: dir, Service: "audit spool", Migrations: fstest.MapFS{"00001_spool.sql": {Data: firstSchema}},
	})
	must(t, err)
	if _, err := db.ExecContext(t.Context(), `INSERT INTO checkpoint VALUES (1, CAST('one' AS BLOB)); INSERT INTO spool VALUES (3, 9, 1, CAST('c' AS BLOB))`); err != nil {
		t.Fatal(err)
	}
	must(t, db.Close())
	s, err := spool.Open(t.Context(), dir)
	must(t, err)
	defer s.Close()
	rows, kept, err := s.Load(t.Context())
	checkpoint, err2 := s.LoadCheckpoint(t.Context(), logproof.KeptSeen)
	witnessed, err3 := s.LoadCheckpoint(t.Context(), logproof.KeptWitnessed)
	if err := errors.Join(err, err2, err3); err != nil || len(rows) != 1 || kept != 1 || rows[0].Sequence != 9 || string(checkpoint) != "one" || witnessed != nil {
		t.Errorf("%+v, %q, %q, %v", rows, checkpoint, witnessed, err)
	}
}

// TestOnDisk runs a recorder on a real file through an outage and a restart.
func TestOnDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a disk that is busy takes no time from a record
		const origin, writer = "durward.local/audit/main", "spiffe://durward.local/executor/local"
		dir, a := t.TempDir(), platformtest.NewAuditLog(t, origin, writer)
		open := func() (*recorder.Recorder, *logproof.Keeper) {
			s, err := spool.Open(t.Context(), dir)
			must(t, err)
			keeper, err := logproof.NewKeeper(t.Context(), logproof.KeeperConfig{Origin: origin, Keys: a.Keys, Store: s})
			must(t, err)
			r, err := recorder.New(recorder.Config{Client: a, Keeper: keeper, Writer: writer, Store: s})
			must(t, err)
			return r, keeper
		}
		stop := func(r *recorder.Recorder) {
			t.Helper()
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			if err := r.Close(ctx); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		record := func(id string) *auditv1.Record {
			return &auditv1.Record{Kind: auditv1.Kind_KIND_READ, RequestId: id, Body: &auditv1.Body{Summary: "about " + id}}
		}
		a.Set(func() { a.Down = true })
		r, _ := open()
		defer func() { stop(r) }()
		must(t, r.Spool(t.Context(), record("r-1")))
		if receipt, err := r.Report(t.Context(), record("r-2")); receipt != nil || err != nil {
			t.Fatalf("%v, %v", receipt, err)
		}
		stop(r)
		a.Set(func() { a.Down = false })
		r, _ = open()
		if _, err := r.Record(t.Context(), record("r-3")); err != nil {
			t.Fatal(err)
		}
		stop(r)
		a.Holds(t, "r-1", "r-2", "r-3")
		var keeper *logproof.Keeper
		if r, keeper = open(); r.Depth() != 0 || keeper.Held().Size != 3 {
			t.Errorf("depth %d, checkpoint of %d", r.Depth(), keeper.Held().Size)
		}
	})
}

// TestALostSpoolIsTold: a spool that was emptied, removed or edited between two lives of a process that has written before is told in the
// log, once; one that is removed under a running process takes nothing more.
func TestALostSpoolIsTold(t *testing.T) {
	const writer, origin = "spiffe://durward.local/executor/local", "durward.local/audit/main"
	edit := func(statement string) func(path string) error {
		return func(path string) error {
			db, err := sql.Open("sqlite", path)
			if err != nil {
				return err
			}
			_, err = db.ExecContext(t.Context(), statement)
			return errors.Join(err, db.Close())
		}
	}
	const anew = "this process has written 1 record, and its spool is a new one"
	for name, c := range map[string]struct {
		lose func(path string) error
		// told is how what the log is told of it begins; "": it is told nothing.
		told string
		// written is how many records of the first life are in the log at the end.
		written int
	}{
		"emptied":                  {func(path string) error { return os.Truncate(path, 0) }, anew, 1},
		"removed":                  {os.Remove, anew, 1},
		"kept":                     {func(string) error { return nil }, "", 3},
		"its rows deleted":         {edit(`DELETE FROM spool`), "this process left 2 records for audit in its spool, and 0 are there", 1},
		"a row deleted":            {edit(`DELETE FROM spool WHERE id = (SELECT max(id) FROM spool)`), "this process left 2 records for audit in its spool, and 1 are there", 2},
		"rows and count deleted":   {edit(`DELETE FROM spool; DELETE FROM kept`), "this process left an unknown number of records for audit in its spool, and 0 are there", 1},
		"everything in it deleted": {edit(`DELETE FROM spool; DELETE FROM kept; DELETE FROM checkpoint`), "this process left an unknown number of records", 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir, log := t.TempDir(), platformtest.NewAuditLog(t, origin, writer)
			live := func(f func(*recorder.Recorder)) {
				t.Helper()
				s, err := spool.Open(t.Context(), dir)
				must(t, err)
				keeper, err := logproof.NewKeeper(t.Context(), logproof.KeeperConfig{Origin: origin, Keys: log.Keys, Store: s})
				must(t, err)
				r, err := recorder.New(recorder.Config{Client: log, Keeper: keeper, Writer: writer, Store: s})
				must(t, err)
				f(r)
				must(t, r.Close(t.Context()))
			}
			record := &auditv1.Record{Kind: auditv1.Kind_KIND_READ, RequestId: "r-1"}
			write := func(r *recorder.Recorder) {
				if _, err := r.Record(t.Context(), record); err != nil {
					t.Fatal(err)
				}
			}
			live(func(r *recorder.Recorder) {
				write(r)
				log.Set(func() { log.Down = true })
				must(t, errors.Join(r.Spool(t.Context(), record), r.Spool(t.Context(), record)))
			})
			must(t, c.lose(filepath.Join(dir, spool.File)))
			log.Set(func() { log.Down = false })
			live(write)
			live(write)
			var told []string
			written := -2 // those of the later lives
			log.Set(func() {
				for _, e := range log.Entries {
					if r := e.GetRecord(); r.GetKind() == auditv1.Kind_KIND_STARTED {
						told = append(told, r.GetBody().GetSummary())
					} else {
						written++
					}
				}
			})
			if written != c.written {
				t.Errorf("%d records of the first life are in the log, want %d", written, c.written)
			}
			if c.told == "" && len(told) > 0 || c.told != "" && (len(told) != 1 || !strings.HasPrefix(told[0], c.told)) {
				t.Errorf("the log is told %q, want %q", told, c.told)
			}
		})
	}
	dir := t.TempDir()
	s, err := spool.Open(t.Context(), dir)
	must(t, err)
	defer s.Close()
	must(t, os.Remove(filepath.Join(dir, spool.File)))
	if err := s.Commit(t.Context(), recorder.Change{}); err == nil {
		t.Error("a spool that was removed takes records")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
