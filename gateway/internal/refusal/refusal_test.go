package refusal

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

// fakeAudit is a log that demands sequences without gaps and answers a repeated record like the first time.
type fakeAudit struct {
	auditv1.LogServiceClient
	mu      sync.Mutex
	records []*auditv1.Record
	// fail is what the next calls answer; with lose, Append has worked all the same.
	fail  []error
	lose  bool
	calls int
}

func (a *fakeAudit) GetHead(context.Context, *auditv1.GetHeadRequest, ...grpc.CallOption) (*auditv1.GetHeadResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &auditv1.GetHeadResponse{LastSequence: uint64(len(a.records))}, nil
}

func (a *fakeAudit) Append(_ context.Context, req *auditv1.AppendRequest, _ ...grpc.CallOption) (*auditv1.AppendResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls++
	var fail error
	if len(a.fail) > 0 {
		fail, a.fail = a.fail[0], a.fail[1:]
		if !a.lose {
			return nil, fail
		}
	}
	for _, r := range req.GetRecords() {
		switch n := uint64(len(a.records)); {
		case r.GetSequence() == n+1:
			a.records = append(a.records, r)
		case r.GetSequence() <= n && a.records[r.GetSequence()-1] == r:
		default:
			return nil, fault.New(callv1.Code_CODE_CONFLICT, "another sequence is next")
		}
	}
	return &auditv1.AppendResponse{}, fail
}

func TestRecordsReachTheLogOnceAndInOrder(t *testing.T) {
	away := fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "no")
	for name, audit := range map[string]*fakeAudit{
		"at once":                {},
		"after an earlier life":  {records: []*auditv1.Record{{Sequence: 1}, {Sequence: 2}}},
		"audit is away":          {fail: []error{away, away, away}},
		"the answers get lost":   {fail: []error{away, away}, lose: true},
		"a record that is wrong": {fail: []error{fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "no")}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				before := len(audit.records)
				log, err := NewLog(audit, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { log.Run(ctx) })
				recorder, err := New(log, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				first := 0
				if name == "a record that is wrong" {
					recorder.Record(ctx, Event{RequestID: "r-bad"})
					time.Sleep(time.Second)
					first = 1
				}
				for i := first; i < 3; i++ {
					recorder.Record(ctx, Event{RequestID: "r-" + string(rune('a'+i)), Code: callv1.Code_CODE_DENIED, Reason: "origin", Field: "x"})
				}
				time.Sleep(10 * time.Second)
				cancel()
				running.Wait()
				got := audit.records[before:]
				if len(got) != 3-first {
					t.Fatalf("%d records", len(got))
				}
				for i, r := range got {
					if r.GetSequence() != uint64(before+i+1) || r.GetKind() != auditv1.Kind_KIND_REFUSED || r.GetBody().GetReason() != "CODE_DENIED: origin" || r.GetBody().GetDetails()["field"] != "x" {
						t.Errorf("record %d: %v", i, r)
					}
				}
			})
		})
	}
}

func TestEndWithoutAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "no")
		audit := &fakeAudit{fail: []error{away, away, away, away, away, away, away, away, away, away}}
		var said strings.Builder
		log, err := NewLog(audit, slog.New(slog.NewTextHandler(&said, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if err := log.Spool(t.Context(), &auditv1.Record{}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		log.Run(ctx)
		if audit.calls != 1 || !strings.Contains(said.String(), "count=1") {
			t.Errorf("%d tries, log %q", audit.calls, said.String())
		}
	})
}

// A flood fills neither memory nor the log, and what is left out is counted.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		logger := slog.New(slog.NewTextHandler(&said, nil))
		log, err := NewLog(&fakeAudit{}, logger)
		if err != nil {
			t.Fatal(err)
		}
		recorder, err := New(log, logger)
		if err != nil {
			t.Fatal(err)
		}
		for range 5000 {
			recorder.Record(t.Context(), Event{})
		}
		if len(log.queue) != burst {
			t.Errorf("%d records are queued, want %d", len(log.queue), burst)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		recorder.Run(ctx, time.Second)
		if !strings.Contains(said.String(), "count=4800") {
			t.Errorf("log %q", said.String())
		}
		for range maxWaiting - burst {
			if err := log.Spool(t.Context(), &auditv1.Record{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := log.Spool(t.Context(), &auditv1.Record{}); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
			t.Errorf("one too many: %v", err)
		}
	})
}
