// Package refusal records what the gateway refused before anything was decided, as KIND_REFUSED in the audit log: under
// the request id, with fixed words for the reason, and never a value that somebody sent. It runs in the untrusted edge, so
// its records are hints for an operator and no evidence of what did not happen.
//
// Recording must not become a way to fill the log, nor to hide what somebody else does: refusals that come in floods make a
// record for the first and one a minute that counts the others, of each principal by itself, and of all others beyond a rate
// of each principal's own there is only a count, which is logged. What waits for audit waits in memory alone, since the
// gateway has no disk of its own. What is lost with the process is records of its refusals, never of an effect.
package refusal

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/refusals"
)

// Rate and burst of Record for one principal; what is beyond them is counted.
const (
	perSecond = 5
	burst     = 100
)

// Bounds: how many different counts there may be in all, and of a principal (more than there are reasons), and of how many principals
// the rate is kept. The names of principals are the vault's, so that no stranger fills any.
const (
	maxCounts     = 1024
	maxReasons    = 64
	maxPrincipals = 1024
)

// MaxWaiting is how many records may wait for audit.
const MaxWaiting = 1024

// Spooler takes records that reach the log later, as platform/recorder does. It returns at once, and fails when it holds too
// many.
type Spooler interface {
	Spool(ctx context.Context, record *auditv1.Record) error
}

// Event is one refused input.
type Event struct {
	RequestID string
	Code      callv1.Code
	// Reason is one of our own words: "origin", "frame", "arguments".
	Reason string
	// Principal and Session are set where the caller is known.
	Principal, Session string
	// Tool is the name of a tool of the contract, or empty: a name that somebody made up is not recorded.
	Tool string
	Tier optionsv1.Tier
	// Field is the argument at fault, as the contract names it.
	Field string
	// Phrase is what a known phrase tries that was in a text, in one of our own words: "override".
	Phrase string
}

// Recorder records refusals. It is safe for concurrent use and never blocks its caller.
type Recorder struct {
	spool   Spooler
	logger  *slog.Logger
	dropped atomic.Uint64

	often *refusals.Counter

	mu sync.Mutex
	// rates are the principals' budgets for Record. One that is not there is full.
	rates map[string]*rate.Limiter
}

// New returns a Recorder over spool.
func New(spool Spooler, logger *slog.Logger) (*Recorder, error) {
	if spool == nil || logger == nil {
		return nil, errors.New("refusal: spool and logger are required")
	}
	r := &Recorder{spool: spool, logger: logger, rates: map[string]*rate.Limiter{}}
	r.often = refusals.New(refusals.Config{Each: maxReasons, All: maxCounts, Write: r.write})
	return r, nil
}

// RecordOften takes a refusal of a kind that comes in floods: it records the first with a principal, reason and code, and
// then, once a minute, how many more there were.
func (r *Recorder) RecordOften(ctx context.Context, e Event) {
	if !rateRequired() {
		r.write(ctx, e.record(), 0)
		return
	}
	r.often.Add(ctx, refusals.Kind{Peer: e.Principal, What: e.Code.String() + ": " + e.Reason}, e.record())
}

// flush records what was counted for long enough, or everything at the end.
func (r *Recorder) flush(ctx context.Context, end bool) {
	r.often.Flush(ctx, end)
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.rates, func(_ string, limit *rate.Limiter) bool { return limit.Tokens() >= burst })
}

// Record takes one refusal for what somebody sent, which is worth a record of its own. Each principal has a budget for them.
func (r *Recorder) Record(ctx context.Context, e Event) {
	if rateRequired() && !r.allow(e.Principal) {
		r.dropped.Add(1)
		return
	}
	r.write(ctx, e.record(), 0)
}

// allow takes one of a principal's budget and reports whether there was one.
func (r *Recorder) allow(principal string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	limit := r.rates[principal]
	if limit == nil {
		if len(r.rates) >= maxPrincipals {
			return false
		}
		limit = rate.NewLimiter(perSecond, burst)
		r.rates[principal] = limit
	}
	return limit.Allow()
}

// record is the record of an event.
func (e Event) record() *auditv1.Record {
	record := &auditv1.Record{
		Kind:      auditv1.Kind_KIND_REFUSED,
		Time:      timestamppb.Now(),
		RequestId: e.RequestID,
		Tool:      e.Tool,
		Tier:      e.Tier,
		Status:    auditv1.Status_STATUS_DENIED,
		Body: &auditv1.Body{
			Principal: e.Principal,
			Session:   e.Session,
			Action:    "refuse",
			Reason:    e.Code.String() + ": " + e.Reason,
		},
	}
	details := map[string]string{}
	if e.Field != "" {
		details["field"] = e.Field
	}
	if e.Phrase != "" {
		details["phrase"] = e.Phrase
	}
	if len(details) > 0 {
		record.Body.Details = details
	}
	return record
}

// write writes one refusal down, or how many more there were like it.
func (r *Recorder) write(ctx context.Context, record *auditv1.Record, more uint64) {
	if more > 0 {
		r.logger.InfoContext(ctx, "refused many times", "reason", record.GetBody().GetReason(), "count", more)
	}
	refusals.Note(record, "count", more)
	if err := r.spool.Spool(context.WithoutCancel(ctx), record); err != nil {
		r.dropped.Add(max(1, more))
		r.logger.DebugContext(ctx, "a refusal was not recorded", "error", err)
	}
}

// Run records what was counted, and logs how many refusals went unrecorded, once every interval in which there were any,
// until ctx ends.
func (r *Recorder) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		r.flush(ctx, ctx.Err() != nil)
		if n := r.dropped.Swap(0); n > 0 {
			r.logger.WarnContext(ctx, "refusals were not recorded: too many, or audit is away", "count", n)
		}
		if ctx.Err() != nil {
			return
		}
	}
}
