package history

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

// TestLeave: a change that is made while another command has the log is recorded by the next one that has it, behind what waited.
func TestLeave(t *testing.T) {
	l, dir := newLog(t), filepath.Join(t.TempDir(), "a home of [mine") // no pattern of a file's name
	other := l.open(dir)
	l.down = true
	if sent, err := other.Write(t.Context(), auditv1.Kind_KIND_CONFIG_CHANGED, "r-1", &auditv1.Body{}); sent || err != nil {
		t.Fatalf("sent: %t, %v", sent, err)
	}
	l.down = false
	hurried, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(hurried, other.cfg); !errors.Is(err, ErrBusy) {
		t.Fatalf("the log is had twice: %v", err)
	}
	for i, request := range []string{"r-2", "r-3"} {
		l.must(Leave(dir, testNow.Add(time.Duration(i)*time.Second), auditv1.Kind_KIND_CONFIG_CHANGED, request, &auditv1.Body{Action: "operator-revoked"}))
	}
	l.must(other.Close())
	own := l.open(dir)
	l.must(own.Flush(t.Context()))
	l.must(own.Flush(t.Context()))
	l.must(own.Close())
	var recorded []string
	for _, e := range l.own() {
		recorded = append(recorded, e.GetRecord().GetRequestId())
	}
	if diff := cmp.Diff([]string{"r-1", "r-2", "r-3"}, recorded); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	if files, err := fs.Glob(os.DirFS(dir), unsentFile+"*"); err != nil || len(files) != 0 {
		t.Errorf("left over: %v, %v", files, err)
	}
}

// TestManyWait: however much other commands left meanwhile, it goes to the log once audit is there.
func TestManyWait(t *testing.T) {
	l, dir := newLog(t), t.TempDir()
	own := l.open(dir)
	l.must(own.keepUnsent(slices.Repeat([]*auditv1.Record{newRecord(testNow, auditv1.Kind_KIND_CONFIG_CHANGED, "r-1", &auditv1.Body{})}, maxUnsent)))
	l.must(Leave(dir, testNow, auditv1.Kind_KIND_CONFIG_CHANGED, "r-2", &auditv1.Body{}))
	l.down = true
	if err := own.Flush(t.Context()); err == nil {
		t.Error("more waits than may, and nobody says so")
	}
	l.down = false
	l.must(own.Flush(t.Context()))
	l.must(own.Close())
	if recorded := l.own(); len(recorded) != maxUnsent+1 || recorded[maxUnsent].GetRecord().GetRequestId() != "r-2" {
		t.Errorf("%d are recorded", len(recorded))
	}
}
