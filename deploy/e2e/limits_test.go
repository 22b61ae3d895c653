package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

// TestDefaultLimits: a client that asks too often is told so in the envelope, by every tool alike and in both eras, and when
// to come back; the log holds one record of it and no flood; nobody else notices (SEC-R2, SEC-R3).
func TestDefaultLimits(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{Limits: harness.DefaultLimits})
	h.StartAll()
	busy, quiet := h.AddClient("busy"), h.AddClient("quiet")
	agent, other := h.Connect(busy), h.Connect(quiet)

	var mu sync.Mutex
	var over []harness.Envelope
	served := 0
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	var flood sync.WaitGroup
	for range 8 {
		flood.Go(func() {
			for ctx.Err() == nil {
				e, err := agent.TryCall(t.Context(), "gpu_status", nil)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				switch {
				case e.Status == "ok":
					served++
				case !e.NotNow(): // what a busy machine puts off is no refusal of the limits
					over = append(over, e)
				}
				if len(over) > 0 && time.Since(began) > 2*time.Second {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	for tick := time.Tick(250 * time.Millisecond); ctx.Err() == nil; <-tick {
		if e := other.Ask("gpu_status", nil); e.Status != "ok" {
			t.Errorf("another client: %s", e.Raw)
		}
	}
	flood.Wait()
	if most := 20 + int(time.Since(began).Seconds()*10) + 1; served < 20 || served > most {
		t.Errorf("%d calls were served in %s, want 20 to %d", served, time.Since(began), most)
	}
	if len(over) == 0 {
		t.Fatal("nothing was refused")
	}
	for _, e := range over {
		if e.Status != "error" || e.Error.Code != "RATE_LIMITED" || e.Error.Message != "Rate limit exceeded" || !e.Error.Retryable || e.Error.RetryAfterS != 1 {
			t.Fatalf("a refusal: %s", e.Raw)
		}
	}
	// What changes something has a bucket of its own.
	if e := agent.Ask("start_service", map[string]any{"service_id": harness.DemoService}); e.Status != "pending_approval" {
		t.Errorf("a change beside too many reads: %s", e.Raw)
	}
	modern := harness.StatelessCall(busy, "gpu_status", "{}")
	if a := untilLimited(t, h, modern); a.HTTPStatus != http.StatusOK || !strings.Contains(string(a.Result), `"resultType":"complete"`) {
		t.Errorf("the stateless era: %d %s", a.HTTPStatus, a.Body)
	}
	list := harness.Stateless(busy, "tools/list", "", "{}")
	if a := untilLimited(t, h, list); a.HTTPStatus != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "" {
		t.Errorf("a list of the stateless era: %d %s", a.HTTPStatus, a.Body)
	}

	// The first is recorded. Answers are held back for different times, so that it need not have been answered first.
	var refused []*auditv1.Record
	harness.Eventually(t, "the refusal is recorded", func() error {
		refused = nil
		for _, e := range h.Records(nil) {
			if strings.Contains(e.GetRecord().GetBody().GetReason(), "limit: reads") {
				refused = append(refused, e.GetRecord())
			}
		}
		if len(refused) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	if len(refused) != 1 {
		t.Errorf("%d records of too many reads within a minute, want 1", len(refused))
	}
	first := refused[0]
	if first.GetBody().GetPrincipal() != "busy" || first.GetKind() != auditv1.Kind_KIND_REFUSED ||
		!slices.ContainsFunc(over, func(e harness.Envelope) bool { return e.RequestID == first.GetRequestId() }) {
		t.Errorf("the record is %v", first)
	}
}

// untilLimited sends a request until the answer is that there were too many: several at a time, since a busy machine answers them
// one by one no faster than the bucket fills.
func untilLimited(t *testing.T, h *harness.Host, r harness.RawRequest) (limited harness.RawAnswer) {
	t.Helper()
	var mu sync.Mutex
	var senders sync.WaitGroup
	sent := 0
	for range 8 {
		senders.Go(func() {
			for {
				mu.Lock()
				sent++
				enough := sent > 100 || limited.Body != ""
				mu.Unlock()
				if enough {
					return
				}
				a, err := h.Raw(t.Context(), r)
				if err != nil {
					t.Error(err)
					return
				}
				if strings.Contains(a.Body, "RATE_LIMITED") {
					mu.Lock()
					limited = a
					mu.Unlock()
				}
			}
		})
	}
	senders.Wait()
	if limited.Body == "" {
		t.Fatal("a hundred requests are not too many")
	}
	return limited
}

// TestGuessingTokens: wrong answers are slow and few, and clients that were let in before notice nothing.
func TestGuessingTokens(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{Limits: harness.DefaultLimits})
	h.StartAll()
	agent := h.Connect(h.AddClient("agent"))
	guessed := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var mu sync.Mutex
	answers := map[int]int{}
	var guessing sync.WaitGroup
	for i := range 16 {
		guessing.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				began := time.Now()
				a, err := h.Raw(t.Context(), harness.Stateless(fmt.Sprintf("guess-%d-%d", i, n), "tools/list", "", "{}"))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				answers[a.HTTPStatus]++
				mu.Unlock()
				if took := time.Since(began); took < 200*time.Millisecond {
					t.Errorf("a wrong token is answered after %v", took)
				}
			}
		})
	}
	calls := 0
	for tick := time.Tick(200 * time.Millisecond); ctx.Err() == nil || calls < 5; <-tick {
		if e := agent.Ask("gpu_status", nil); e.Status != "ok" {
			t.Errorf("the client that works: %s", e.Raw)
		}
		calls++
	}
	guessing.Wait()
	// Ten a second, twenty at once, and who still waited.
	if most := 20 + int(time.Since(guessed).Seconds()*10) + 15; answers[http.StatusUnauthorized] == 0 || answers[http.StatusUnauthorized] > most || len(answers) > 2 {
		t.Errorf("answers by status: %v, beside %d calls", answers, calls)
	}
	refused := 0
	for _, e := range h.Records(nil) {
		if e.GetRecord().GetKind() == auditv1.Kind_KIND_REFUSED {
			refused++
		}
	}
	if refused > 5 {
		t.Errorf("%d records of refusals: a flood fills the log", refused)
	}
}
