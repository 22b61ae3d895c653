package changelog

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/journal"
)

// TestAnnouncementsAreBounded: what is announced and never done takes a bounded room, and gives it back with time.
func TestAnnouncementsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := New(t.Context(), Config{
			Store: nothingInForce{}, Journal: journal.New(heard{}, time.Now, platformtest.Logger()), Now: time.Now, Logger: platformtest.Logger(),
		})
		if err != nil {
			t.Fatal(err)
		}
		announce := func(n int) error {
			v := &statement.Verified{Statement: &statement.Statement{Change: &statement.Change{File: "security.yaml"}}, Digest: [32]byte{byte(n), byte(n >> 8)}}
			return l.Announce(t.Context(), &callv1.HumanStatement{}, v, "")
		}
		for n := range most {
			if err := announce(n); err != nil {
				t.Fatalf("announcement %d: %v", n, err)
			}
		}
		if err := announce(most); !fault.Is(err, callv1.Code_CODE_RATE_LIMITED) {
			t.Errorf("one more: %v", err)
		}
		if err := announce(0); !fault.Is(err, callv1.Code_CODE_ALREADY_SPENT) {
			t.Errorf("one of them again: %v", err)
		}
		time.Sleep(Patience + 2*statement.Skew + time.Second) // the bubble's clock
		if err := announce(most); err != nil {
			t.Errorf("once they are over: %v", err)
		}
	})
}

// A change that the log cannot be told of, since the spool is full, is not written down either: the next start finds it, and tells.
func TestAChangeThatIsNotRecordedIsFoundAgain(t *testing.T) {
	kept, recorder := inForce{}, &spool{full: true}
	for _, full := range []bool{true, false, false} {
		recorder.full = full
		l, err := New(t.Context(), Config{
			Store: kept, Journal: journal.New(recorder, time.Now, platformtest.Logger()), Now: time.Now, Logger: platformtest.Logger(),
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			l.Changed(security.Change{File: "security.yaml", After: "sha256:1"})
		}
		if want := map[bool]int{true: 0, false: 1}[full]; recorder.took != want {
			t.Errorf("full %t: %d records, want %d", full, recorder.took, want)
		}
	}
}

// inForce remembers files.
type inForce map[string]string

func (f inForce) InForce(context.Context) (map[string]string, error) { return maps.Clone(f), nil }

func (f inForce) SetInForce(_ context.Context, file, _, digest string, _ time.Time) error {
	f[file] = digest
	return nil
}

// spool is a recorder that may be full.
type spool struct {
	heard
	full bool
	took int
}

func (s *spool) Spool(context.Context, *auditv1.Record) error {
	if s.full {
		return errors.New("the spool is full")
	}
	s.took++
	return nil
}

// nothingInForce remembers no file.
type nothingInForce struct{ Store }

func (nothingInForce) InForce(context.Context) (map[string]string, error) {
	return map[string]string{}, nil
}
