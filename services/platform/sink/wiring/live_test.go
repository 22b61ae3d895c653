package wiring

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/security/ownership"
)

// TestAFileThatMayBeMissing: the list of domains is empty where it is not there, and one that is taken away allows nothing any more.
func TestAFileThatMayBeMissing(t *testing.T) {
	var log ledger
	path := filepath.Join(t.TempDir(), destination.File)
	open := func(optional bool) (*Live[*destination.List], error) {
		return OpenLive(LiveConfig[*destination.List]{
			Name: destination.File, Path: path, Max: 1000, Optional: optional, Log: &log, Logger: platformtest.Logger(),
			Parse: func(raw []byte) (*destination.List, error) {
				return destination.ParseList(destination.Source{File: destination.File}, raw)
			},
			Tell: func(_, now *destination.List) string { return fmt.Sprint(len(now.Allow), " allowed") },
		})
	}
	if _, err := open(false); err == nil {
		t.Error("a file that must be there was not missed")
	}
	l, err := open(true)
	must(t, err)
	if len(l.Current().Allow) != 0 || len(log.records) != 0 {
		t.Errorf("at the start: %v, recorded %v", l.Current(), log.records)
	}
	write := func(text string) {
		t.Helper()
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	for i, step := range []struct {
		text    string // "": taken away
		allowed int
		kind    auditv1.Kind
	}{
		{"allow: [docs.example]", 1, auditv1.Kind_KIND_CONFIG_FOUND},
		{"allow: [docs.example, b", 1, auditv1.Kind_KIND_CONFIG_REFUSED},
		{"allow: [docs.example, b.example]", 2, auditv1.Kind_KIND_CONFIG_FOUND},
		{"", 0, auditv1.Kind_KIND_CONFIG_FOUND},
	} {
		log.records = nil
		if write(step.text); step.text == "" {
			must(t, os.Remove(path))
		}
		for range 2 {
			if err := l.check(t.Context()); (err != nil) != (step.kind == auditv1.Kind_KIND_CONFIG_REFUSED) || (err != nil) != (l.Refused() != "") {
				t.Errorf("%d: %v, refused %q", i, err, l.Refused())
			}
		}
		if len(l.Current().Allow) != step.allowed || len(log.records) != 1 || log.records[0].GetKind() != step.kind {
			t.Errorf("%d: %d allowed, recorded %v", i, len(l.Current().Allow), log.records)
		}
	}
}

// TestAFileThatIsBeingWritten: what changed while it was read is looked at again, and is recorded as refused by nobody.
func TestAFileThatIsBeingWritten(t *testing.T) {
	var log ledger
	path := filepath.Join(t.TempDir(), destination.File)
	must(t, os.WriteFile(path, []byte("allow: [docs.example]"), 0o600))
	l, err := OpenLive(LiveConfig[*destination.List]{
		Name: destination.File, Path: path, Max: 1000, Log: &log, Logger: platformtest.Logger(),
		Parse: func(raw []byte) (*destination.List, error) {
			return destination.ParseList(destination.Source{File: destination.File}, raw)
		},
		Tell: func(_, now *destination.List) string { return fmt.Sprint(len(now.Allow), " allowed") },
	})
	must(t, err)
	seen, failed := make(chan struct{}), make(chan error, 1)
	go func() { // its content stays
		for at := time.Now(); ; at = at.Add(time.Second) {
			select {
			case <-seen:
				failed <- nil
				return
			default:
			}
			if err := os.Chtimes(path, at, at); err != nil {
				failed <- err
				return
			}
		}
	}()
	for err == nil {
		err = l.check(t.Context())
	}
	close(seen)
	if changing := <-failed; changing != nil || !errors.Is(err, ownership.ErrUnsteady) {
		t.Fatal(changing, err)
	}
	if l.Refused() != "" || len(log.records) != 0 {
		t.Errorf("refused %q, recorded %v", l.Refused(), log.records)
	}
	if err := l.check(t.Context()); err != nil || len(l.Current().Allow) != 1 {
		t.Errorf("when it is whole: %v, %v", l.Current(), err)
	}
}
