package changelog

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/security"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/store"
)

// TestRulesOnAFullDisk: what a human forbids on a disk that is really full is written down as in force.
func TestRulesOnAFullDisk(t *testing.T) {
	dir := platformtest.SmallDisk(t, 12<<20)
	if dir == "" {
		return // it ran in a process of its own
	}
	kept, err := reserve.Open(dir, 6<<20)
	if err != nil {
		t.Fatal(err)
	}
	state, err := store.Open(t.Context(), dir, kept)
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	c := Config{Store: state, Journal: journal.New(heard{}, time.Now, platformtest.Logger()), Now: time.Now, Logger: platformtest.Logger()}
	l, err := New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	platformtest.Fill(t, filepath.Join(dir, "ballast"))
	digest := func(n int) string { return "sha256:" + strings.Repeat(string(rune('a'+n%26)), 64) }
	last := ""
	for n := range 2000 { // what the database had allocated already
		last = digest(n)
		l.Changed(security.Change{File: "security.yaml", Layer: "system", After: last})
		if kept.InUse() {
			break
		}
	}
	if !kept.InUse() {
		t.Fatal("the reserve was not needed: the disk was not full")
	}
	if again, err := New(t.Context(), c); err != nil || again.inForce["security.yaml"] != last {
		t.Errorf("in force after a restart: %v, %v; want %s", again.inForce, err, last)
	}
}

// heard is a log that takes everything.
type heard struct{}

func (heard) Record(context.Context, *auditv1.Record) (*callv1.Receipt, error) {
	return &callv1.Receipt{}, nil
}
func (heard) Spool(context.Context, *auditv1.Record) error { return nil }
func (heard) Reachable() bool                              { return true }
