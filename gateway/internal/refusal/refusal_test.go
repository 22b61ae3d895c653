package refusal

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/recorder"
)

const (
	origin = "durward.local/audit/main"
	writer = "spiffe://durward.local/gateway/main"
)

// open returns the platform's recorder as the gateway's main makes it.
func open(t *testing.T, audit *platformtest.AuditLog, logger *slog.Logger) *recorder.Recorder {
	t.Helper()
	keeper, err := logproof.NewKeeper(t.Context(), logproof.KeeperConfig{Origin: origin, Keys: audit.Keys})
	must(t, err)
	records, err := recorder.New(recorder.Config{Client: audit, Keeper: keeper, Writer: writer, MaxSpooled: MaxWaiting, Logger: logger})
	must(t, err)
	return records
}

func end(t *testing.T, records *recorder.Recorder) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := records.Close(ctx); err != nil {
		t.Error(err)
	}
}

func TestRecordsReachTheLogOnceAndInOrder(t *testing.T) {
	for name, c := range map[string]struct {
		// earlier is how many records an earlier life of the process wrote.
		earlier int
		// manners are audit's when the records come; a while later they are good.
		manners func(*platformtest.AuditLog)
		// bad is a record that audit refuses for good.
		bad string
	}{
		"at once":               {},
		"after an earlier life": {earlier: 2},
		"audit is away":         {manners: func(a *platformtest.AuditLog) { a.Down = true }},
		"the answers get lost":  {manners: func(a *platformtest.AuditLog) { a.Deaf = true }},
		"a record that is wrong": {bad: "r-bad", manners: func(a *platformtest.AuditLog) {
			a.Refuse = func(r *auditv1.Record) bool { return r.GetRequestId() == "r-bad" }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				audit := platformtest.NewAuditLog(t, origin, writer)
				if c.earlier > 0 {
					former := open(t, audit, slog.New(slog.DiscardHandler))
					for range c.earlier {
						must(t, former.Spool(t.Context(), &auditv1.Record{Kind: auditv1.Kind_KIND_REFUSED}))
					}
					end(t, former)
				}
				if c.manners != nil {
					audit.Set(func() { c.manners(audit) })
				}
				records := open(t, audit, slog.New(slog.DiscardHandler))
				refusals, err := New(records, slog.New(slog.DiscardHandler))
				must(t, err)
				if c.bad != "" {
					refusals.Record(t.Context(), Event{RequestID: c.bad})
				}
				for i := range 3 {
					refusals.Record(t.Context(), Event{RequestID: "r-" + string(rune('a'+i)), Code: callv1.Code_CODE_DENIED, Reason: "origin", Field: "x"})
				}
				time.Sleep(time.Second)
				audit.Set(func() { audit.Down, audit.Deaf = false, false })
				time.Sleep(10 * time.Second)
				end(t, records)
				got := audit.Entries[c.earlier:]
				if len(got) != 3 {
					t.Fatalf("%d records", len(got))
				}
				for i, e := range got {
					r := e.GetRecord()
					if r.GetSequence() != uint64(c.earlier+i+1) || r.GetRequestId() != "r-"+string(rune('a'+i)) || r.GetKind() != auditv1.Kind_KIND_REFUSED ||
						r.GetBody().GetReason() != "CODE_DENIED: origin" || r.GetBody().GetDetails()["field"] != "x" {
						t.Errorf("record %d: %v", i, r)
					}
				}
			})
		})
	}
}

// The end waits for one try, and says what is lost.
func TestEndWithoutAudit(t *testing.T) {
	for name, c := range map[string]struct {
		manners func(*platformtest.AuditLog)
		tries   int
		within  time.Duration
	}{
		"away":             {manners: func(a *platformtest.AuditLog) { a.Down = true }, within: 100 * time.Millisecond},
		"hangs":            {manners: func(a *platformtest.AuditLog) { a.Hang = true }, within: 3 * time.Second},
		"answers get lost": {manners: func(a *platformtest.AuditLog) { a.Deaf = true }, tries: 1, within: 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				audit := platformtest.NewAuditLog(t, origin, writer)
				audit.Set(func() { c.manners(audit) })
				var said strings.Builder
				records := open(t, audit, slog.New(slog.NewTextHandler(&said, nil)))
				must(t, records.Spool(t.Context(), &auditv1.Record{Kind: auditv1.Kind_KIND_REFUSED}))
				began := time.Now()
				end(t, records)
				if took := time.Since(began); took > c.within {
					t.Errorf("it ends after %v, want %v", took, c.within)
				}
				if audit.Requests() != c.tries || !strings.Contains(said.String(), "count=1") {
					t.Errorf("%d tries, log %q", audit.Requests(), said.String())
				}
			})
		})
	}
}

// A flood fills neither memory nor the log, and what is left out is counted.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		logger := slog.New(slog.NewTextHandler(&said, nil))
		audit := platformtest.NewAuditLog(t, origin, writer)
		audit.Set(func() { audit.Down = true })
		records := open(t, audit, slog.New(slog.DiscardHandler))
		defer end(t, records)
		refusals, err := New(records, logger)
		must(t, err)
		for range 5000 {
			refusals.Record(t.Context(), Event{})
		}
		if n := records.Depth(); n != burst {
			t.Errorf("%d records are queued, want %d", n, burst)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		refusals.Run(ctx, time.Second)
		if !strings.Contains(said.String(), "count=4900") {
			t.Errorf("log %q", said.String())
		}
		one := &auditv1.Record{Kind: auditv1.Kind_KIND_REFUSED}
		for range MaxWaiting - burst {
			must(t, records.Spool(t.Context(), one))
		}
		if err := records.Spool(t.Context(), one); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
			t.Errorf("one too many: %v", err)
		}
	})
}

// kept keeps records, as audit would.
type kept struct {
	mu   sync.Mutex
	list []*auditv1.Record
}

// Spool implements Spooler.
func (k *kept) Spool(_ context.Context, r *auditv1.Record) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.list = append(k.list, r)
	return nil
}

// Refusals that come in floods make one record and, a minute later, one that counts the others.
func TestFloodsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := new(kept)
		refusals, err := New(records, slog.New(slog.DiscardHandler))
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			refusals.Run(ctx, 10*time.Second)
		}()
		limited := Event{RequestID: "r-1", Code: callv1.Code_CODE_RATE_LIMITED, Reason: "limit: reads", Principal: "ada"}
		want := func(when string, counts ...string) {
			t.Helper()
			synctest.Wait()
			records.mu.Lock()
			defer records.mu.Unlock()
			var got []string
			for _, r := range records.list {
				got = append(got, r.GetBody().GetPrincipal()+" "+r.GetBody().GetReason()+" "+r.GetBody().GetDetails()["count"])
			}
			if diff := cmp.Diff(counts, got); diff != "" {
				t.Errorf("%s: %s", when, diff)
			}
		}
		for range 1000 {
			refusals.RecordOften(ctx, limited)
		}
		first := "ada CODE_RATE_LIMITED: limit: reads "
		want("at once", first)
		other := limited
		other.Principal = "grace"
		refusals.RecordOften(ctx, other)
		want("of another client", first, "grace CODE_RATE_LIMITED: limit: reads ")
		time.Sleep(65 * time.Second)
		want("a minute later", first, "grace CODE_RATE_LIMITED: limit: reads ", first+"999")
		time.Sleep(5 * time.Minute)
		want("after a rest", first, "grace CODE_RATE_LIMITED: limit: reads ", first+"999")
		if n := refusals.often.Len(); n != 0 {
			t.Errorf("after a rest %d counts are kept", n)
		}
		refusals.RecordOften(ctx, limited)
		refusals.RecordOften(ctx, limited)
		cancel()
		<-done
		want("at the end", first, "grace CODE_RATE_LIMITED: limit: reads ", first+"999", first, first+"1")
	})
}

// However many clients flood, what is kept to count them is bounded.
func TestCountsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refusals, err := New(new(kept), slog.New(slog.DiscardHandler))
		must(t, err)
		for i := range 10 * maxCounts {
			refusals.RecordOften(t.Context(), Event{Principal: strconv.Itoa(i), Reason: "limit: reads"})
		}
		if n := refusals.often.Len(); n != maxCounts {
			t.Errorf("%d counts are kept", n)
		}
	})
}

// Nobody's refusals hide another's: neither those that are recorded one by one nor those that are counted.
func TestNobodyHidesAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := new(kept)
		refusals, err := New(records, slog.New(slog.DiscardHandler))
		must(t, err)
		for range 2000 {
			refusals.Record(t.Context(), Event{Principal: "mallory", Code: callv1.Code_CODE_DENIED, Reason: "unknown tool"})
			refusals.RecordOften(t.Context(), Event{Code: callv1.Code_CODE_UNAUTHENTICATED, Reason: "no token"})
		}
		refusals.Record(t.Context(), Event{Principal: "ada", Code: callv1.Code_CODE_INVALID_ARGUMENT, Reason: "phrase"})
		refusals.RecordOften(t.Context(), Event{Principal: "mallory", Code: callv1.Code_CODE_INVALID_ARGUMENT, Reason: "frame"})
		refusals.RecordOften(t.Context(), Event{Principal: "ada", Code: callv1.Code_CODE_INVALID_ARGUMENT, Reason: "frame"})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		refusals.Run(ctx, time.Second)
		got := map[string]int{}
		for _, r := range records.list {
			got[r.GetBody().GetPrincipal()+" "+r.GetBody().GetReason()+" "+r.GetBody().GetDetails()["count"]]++
		}
		want := map[string]int{
			"mallory CODE_DENIED: unknown tool ": burst, " CODE_UNAUTHENTICATED: no token ": 1, " CODE_UNAUTHENTICATED: no token 1999": 1,
			"ada CODE_INVALID_ARGUMENT: phrase ": 1, "mallory CODE_INVALID_ARGUMENT: frame ": 1, "ada CODE_INVALID_ARGUMENT: frame ": 1,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
	})
}

// Budgets are bounded, and one that is full again is as good as none.
func TestBudgetsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refusals, err := New(new(kept), slog.New(slog.DiscardHandler))
		must(t, err)
		for i := range 2 * maxPrincipals {
			refusals.Record(t.Context(), Event{Principal: strconv.Itoa(i)})
		}
		if n := len(refusals.rates); n != maxPrincipals {
			t.Errorf("%d budgets are kept", n)
		}
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		refusals.Run(ctx, time.Second)
		if n := len(refusals.rates); n != 0 {
			t.Errorf("after a rest %d budgets are kept", n)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(nil, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a recorder without a spool")
	}
	var spool struct{ Spooler }
	if _, err := New(spool, nil); err == nil {
		t.Error("a recorder without a logger")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
