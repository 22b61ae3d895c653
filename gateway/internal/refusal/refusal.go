// Package refusal records what the gateway refused before anything was decided, as KIND_REFUSED in the audit log: under
// the request id, with fixed words for the reason, and never a value that somebody sent. It runs in the untrusted edge, so
// its records are hints for an operator and no evidence of what did not happen.
//
// Recording must not become a way to fill the log: beyond a rate, refusals are counted, and the count is logged. What waits
// for audit waits in memory alone, since the gateway has no disk of its own. What is lost with the process is records of its
// refusals, never of an effect.
package refusal

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// Rate and burst of records; what is beyond them is counted.
const (
	perSecond = 20
	burst     = 200
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
}

// Recorder records refusals. It is safe for concurrent use and never blocks its caller.
type Recorder struct {
	spool   Spooler
	logger  *slog.Logger
	limit   *rate.Limiter
	dropped atomic.Uint64
}

// New returns a Recorder over spool.
func New(spool Spooler, logger *slog.Logger) (*Recorder, error) {
	if spool == nil || logger == nil {
		return nil, errors.New("refusal: spool and logger are required")
	}
	return &Recorder{spool: spool, logger: logger, limit: rate.NewLimiter(perSecond, burst)}, nil
}

// Record takes one refusal.
func (r *Recorder) Record(ctx context.Context, e Event) {
	if !r.limit.Allow() {
		r.dropped.Add(1)
		return
	}
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
	if e.Field != "" {
		record.Body.Details = map[string]string{"field": e.Field}
	}
	if err := r.spool.Spool(context.WithoutCancel(ctx), record); err != nil {
		r.dropped.Add(1)
		r.logger.DebugContext(ctx, "a refusal was not recorded", "error", err)
	}
}

// Run logs how many refusals went unrecorded, once every interval in which there were any, until ctx ends.
func (r *Recorder) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		if n := r.dropped.Swap(0); n > 0 {
			r.logger.WarnContext(ctx, "refusals were not recorded: too many, or audit is away", "count", n)
		}
		if ctx.Err() != nil {
			return
		}
	}
}
