package log_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/fault"
)

// A log whose files are removed or replaced while it runs would go on and lose all of it with its process: it stops within a second,
// whether somebody writes or not, and goes on where the file is put back.
func TestAFileThatIsTakenAwayStopsTheLog(t *testing.T) {
	for name, take := range map[string]func(path, aside string) error{
		"removed": func(path, aside string) error { return os.Rename(path, aside) },
		"replaced": func(path, aside string) error {
			b, err := os.ReadFile(path)
			if err == nil {
				err = os.Rename(path, aside)
			}
			if err == nil {
				err = os.WriteFile(path, b, 0o600)
			}
			return err
		},
	} {
		for _, file := range []string{store.File, store.File + "-wal"} {
			t.Run(file+" "+name, func(t *testing.T) {
				r := newRig(t)
				me := writers[0]
				r.append(me, r.record(me, "in its place"))
				path, aside := filepath.Join(r.dir, file), filepath.Join(t.TempDir(), file)
				must(t, take(path, aside))
				// Nobody writes.
				for deadline := time.Now().Add(time.Second); r.log.Ready() == nil; time.Sleep(10 * time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatal("it says that it is ready")
					}
				}
				if err := r.log.Ready(); !strings.Contains(err.Error(), path+" was removed or replaced") {
					t.Errorf("it says %v", err)
				}
				_, err := r.log.Append(t.Context(), me, []*auditv1.Record{r.record(me, "out of its place")}, 0)
				r.next[me]--
				if !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
					t.Errorf("a record: %v", err)
				}
				if _, err := r.log.Head(t.Context(), me, 0); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
					t.Errorf("the head: %v", err)
				}
				must(t, os.Rename(aside, path))
				r.append(me, r.record(me, "put back"))
				if err := r.log.Ready(); err != nil {
					t.Errorf("put back: %v", err)
				}
			})
		}
	}
}
