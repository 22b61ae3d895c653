//go:build real

package postgres

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/services/platform/platformtest"
	server "durward.internal/services/platform/platformtest/postgres"
)

// serversDisk is room for a new server, its write-ahead log and some tables.
const serversDisk = 256 << 20

// smallServer is a PostgreSQL server with a small disk of its own. full fills that disk, until a record of the rig is refused; free makes
// room on it again. A nil server: the test ran in a process of its own.
func smallServer(t *testing.T, build harness.Build) (pg *server.Server, full func(*rig), free func()) {
	t.Helper()
	harness.Binaries(t, build)
	disk := platformtest.SmallDiskForAll(t, serversDisk)
	if disk == "" {
		return nil, nil, nil
	}
	elsewhere, ballast := os.TempDir(), filepath.Join(disk, "ballast")
	t.Setenv("TMPDIR", disk)
	pg = server.Start(t, "min_wal_size = 32MB", "max_wal_size = 64MB")
	t.Setenv("TMPDIR", elsewhere)
	full = func(r *rig) {
		platformtest.Fill(t, ballast)
		harness.Eventually(t, "the server has no space left", func() error {
			began := time.Now()
			if err := r.log.Writers[0].Append(t.Context()); err == nil {
				return errors.New("a record is acknowledged")
			}
			if took := time.Since(began); took > refused {
				t.Errorf("the first record without space is refused after %v", took)
			}
			return nil
		})
	}
	return pg, full, func() {
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		if !pg.Running() { // it ends when its write-ahead log cannot be written
			t.Log("PostgreSQL ended, and is started again")
			pg.Kill(t)
			pg.Run(t)
		}
	}
}

// TestServersDiskIsFull: the disk of the PostgreSQL server, its tables' and its write-ahead log's, is full under writers that never
// stop. What cannot be written is refused in time, and once there is space the audits go on: no record is lost or doubled.
func TestServersDiskIsFull(t *testing.T) {
	pg, full, free := smallServer(t, harness.Build{})
	if pg == nil {
		return
	}
	r := start(t, pg.PasswordFile, pg.CA, pg.Address())
	for range 2 {
		full(r)
		r.refuses("on a full disk")
		began := time.Now()
		free()
		r.after("there is space", began)
	}
	r.verify()
}

// TestAcknowledgedOnAFullDiskIsSeen is the control of TestServersDiskIsFull: audits that acknowledge what is not written yet. What did not
// find room is missed.
func TestAcknowledgedOnAFullDiskIsSeen(t *testing.T) {
	pg, full, free := smallServer(t, harness.Build{Weak: true})
	if pg == nil {
		return
	}
	r := startWith(t, early, pg.PasswordFile, pg.CA, pg.Address())
	full(r)
	free()
	r.misses()
}
