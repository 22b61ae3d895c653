package database_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/reserve"
)

// TestFullDisk runs a database on a disk that is really full: nothing is written but what is entitled, a start on a full disk
// succeeds, and once there is room the reserve is taken again.
func TestFullDisk(t *testing.T) {
	dir := platformtest.SmallDisk(t, 6<<20)
	if dir == "" {
		return // it ran in a process of its own
	}
	ctx := context.Background()
	db, err := database.Open(ctx, database.Config{
		Path: filepath.Join(dir, "t.db"), StateDir: dir, Service: "test",
		Migrations: fstest.MapFS{"00001_t.sql": {Data: []byte("-- +goose Up\nCREATE TABLE t (x BLOB);\n")}},
	})
	must(t, err)
	defer db.Close()
	r, err := reserve.Open(dir, 1<<20)
	must(t, err)
	insert := func(entitled bool) error {
		return r.Write(entitled, func() error {
			_, err := db.ExecContext(ctx, `INSERT INTO t VALUES (?)`, strings.Repeat("x", 3000))
			return err
		})
	}
	if err := insert(false); err != nil {
		t.Fatalf("with room: %v", err)
	}
	if err := database.Probe(ctx, db); err != nil {
		t.Errorf("the probe with room: %v", err)
	}
	ballast := filepath.Join(dir, "ballast")
	platformtest.Fill(t, ballast)
	var refused error
	for i := 0; i < 2000 && refused == nil; i++ { // what the database had allocated already
		refused = insert(false)
	}
	if f := fault.From(refused); refused == nil || f.Code != callv1.Code_CODE_UNAVAILABLE || r.InUse() {
		t.Fatalf("not entitled on a full disk: %v; given up %v", refused, r.InUse())
	}
	if err := database.Probe(ctx, db); err == nil {
		t.Error("the probe finds room on a full disk")
	}
	for i := range 50 { // a log that is written ahead takes some 12 kB for each
		if err := insert(true); err != nil {
			t.Fatalf("entitled write %d on a full disk: %v", i, err)
		}
	}
	if !r.InUse() {
		t.Error("the disk was not full at all")
	}
	if err := insert(false); fault.From(err) == nil || fault.From(err).Message != reserve.Sentence {
		t.Errorf("not entitled while the reserve is in use: %v", err)
	}
	if err := r.Refill(); !reserve.Full(err) || !r.InUse() {
		t.Errorf("Refill on a full disk: %v", err)
	}
	platformtest.Fill(t, filepath.Join(dir, "ballast2"))
	again, err := reserve.Open(dir, 1<<20)
	if err != nil || !again.InUse() {
		t.Errorf("a start on a full disk: %v", err)
	}
	if err := errors.Join(os.Remove(ballast), r.Refill()); err != nil || r.InUse() {
		t.Errorf("with room again: %v, given up %v", err, r.InUse())
	}
	if err := insert(false); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// TestCopyWithoutRoom: a copy that does not fit on the disk is refused before a byte of it is written there.
func TestCopyWithoutRoom(t *testing.T) {
	dir := platformtest.SmallDisk(t, 6<<20)
	if dir == "" {
		return // it ran in a process of its own
	}
	ctx := t.Context()
	from, to := filepath.Join(dir, "t.db"), filepath.Join(dir, "copy.db")
	db, err := database.Open(ctx, database.Config{
		Path: from, StateDir: dir, Service: "test",
		Migrations: fstest.MapFS{"00001_t.sql": {Data: []byte("-- +goose Up\nCREATE TABLE t (x BLOB);\nINSERT INTO t VALUES (randomblob(1000000));\n")}},
	})
	must(t, err)
	must(t, db.Close())
	ballast := filepath.Join(dir, "ballast")
	platformtest.Fill(t, ballast)
	info, err := os.Stat(ballast)
	must(t, err)
	must(t, os.Truncate(ballast, info.Size()-(512<<10)))
	err = database.Copy(ctx, from, to)
	if !reserve.Full(err) {
		t.Errorf("with half the room: %v", err)
	}
	if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something of the copy was written: %v", err)
	}
	must(t, os.Remove(ballast))
	if err := database.Copy(ctx, from, to); err != nil {
		t.Errorf("with room: %v", err)
	}
}

// TestFullDiskInAnUpgrade: a migration for which there is no room says so and leaves the state as it was, for the program of before too;
// once there is room the same start does it.
func TestFullDiskInAnUpgrade(t *testing.T) {
	dir := platformtest.SmallDisk(t, 6<<20)
	if dir == "" {
		return // it ran in a process of its own
	}
	ctx := t.Context()
	before := fstest.MapFS{"00001_t.sql": {Data: []byte("-- +goose Up\nCREATE TABLE t (x BLOB);\nINSERT INTO t VALUES (randomblob(1000000));\n")}}
	after := fstest.MapFS{"00001_t.sql": before["00001_t.sql"], "00002_u.sql": {Data: []byte("-- +goose Up\nCREATE TABLE u AS SELECT x FROM t;\nDROP TABLE t;\n")}}
	ballast := filepath.Join(dir, "ballast")
	const says = "the disk is full. Make room and start it again; the state is whole"
	for _, start := range []struct {
		what       string
		room       int64 // bytes that are free on the disk; -1: all that there are
		migrations fstest.MapFS
		table      string // holds what the first program wrote; "": it is refused
	}{
		{"the program of before", -1, before, "t"},
		{"an upgrade without a byte", 0, after, ""},
		{"an upgrade with room to begin", 400 << 10, after, ""},
		{"the program of before, again", 400 << 10, before, "t"},
		{"an upgrade with room", -1, after, "u"},
	} {
		if err := os.Remove(ballast); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if start.room >= 0 {
			platformtest.Fill(t, ballast)
			info, err := os.Stat(ballast)
			if err == nil {
				err = os.Truncate(ballast, info.Size()-start.room)
			}
			must(t, err)
		}
		db, err := database.Open(ctx, database.Config{Path: filepath.Join(dir, "t.db"), StateDir: dir, Service: "test", Migrations: start.migrations})
		if start.table == "" {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Fatalf("%s: %v", start.what, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", start.what, err)
		}
		var bytes int
		if err := db.QueryRowContext(ctx, "SELECT length(x) FROM "+start.table).Scan(&bytes); err != nil || bytes != 1000000 {
			t.Errorf("%s: %d bytes, %v", start.what, bytes, err)
		}
		if err := db.Close(); err != nil {
			t.Errorf("%s: %v", start.what, err)
		}
	}
}
