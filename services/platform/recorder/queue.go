package recorder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/reserve"
)

func (r *Recorder) newItem(ctx context.Context, record *auditv1.Record) (*item, error) {
	own, _ := r.redactor.Record(copied(record)) // without a kind it is refused below
	own.Sequence = 1                            // any valid one: the real one is given when it is sent
	if own.Time == nil {
		own.Time = timestamppb.Now()
	}
	if !plain(own) {
		// Audit would refuse the record, and everything in its batch with it.
		if err := r.validator.Validate(own); err != nil {
			return nil, fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(fmt.Errorf("a record of kind %s breaks the contract: %w", own.GetKind(), err)))
		}
	}
	own.Sequence = 0
	return &item{record: own, size: proto.Size(own), queued: time.Now(), span: trace.SpanFromContext(ctx)}, nil
}

// copied is a record of our own that says the same: proto.CloneOf, at a fraction of its cost. TestCopied holds the two together.
func copied(record *auditv1.Record) *auditv1.Record {
	own := numbered(record, record.GetSequence())
	if at := record.GetTime(); at != nil {
		own.Time = &timestamppb.Timestamp{Seconds: at.GetSeconds(), Nanos: at.GetNanos()}
	}
	b := record.GetBody()
	if b == nil {
		return own
	}
	own.Body = &auditv1.Body{
		Principal: b.GetPrincipal(), Session: b.GetSession(), Channel: b.GetChannel(), Source: b.GetSource(), Arguments: b.GetArguments(),
		Summary: b.GetSummary(), Confirmed: b.GetConfirmed(), DurationMs: b.GetDurationMs(), Dangerous: b.GetDangerous(),
		ParentRequestId: b.GetParentRequestId(), Action: b.GetAction(), Reason: b.GetReason(), Persistent: b.GetPersistent(),
		DecisionSource: b.GetDecisionSource(), ResultDigest: slices.Clone(b.GetResultDigest()), Details: maps.Clone(b.GetDetails()),
	}
	if statement := b.GetStatement(); statement != nil {
		own.Body.Statement = proto.CloneOf(statement)
	}
	return own
}

// enqueue adds the item; with a check it is a spooled one.
func (r *Recorder) enqueue(it *item, check func(*item) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing {
		return unavailable(errors.New("the recorder is closed"))
	}
	if check != nil {
		if err := check(it); err != nil {
			return unavailable(err)
		}
		r.makeDurable(it)
	} else if !it.report && r.held(it) {
		return unavailable(fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, reserve.Sentence, fault.WithField(reserve.Field)))
	}
	r.lastID++
	it.id = r.lastID
	// A spooled record wakes nobody who waits for an earlier one anyway.
	if len(r.queue) == 0 || len(r.queue) >= maxBatch/2 || it.result != nil || r.tight {
		signal(r.wake)
	}
	r.queue = append(r.queue, it)
	if check != nil && (r.flushBy.IsZero() || it.queued.Add(commitWithin).Before(r.flushBy)) {
		signal(r.dirty)
	}
	return nil
}

func (r *Recorder) room(it *item) error {
	records, size, ends := r.cfg.MaxSpooled, MaxSpooledBytes, false
	switch it.record.GetKind() {
	case auditv1.Kind_KIND_HALTED, auditv1.Kind_KIND_STANDING_ENDED, auditv1.Kind_KIND_MUTED:
		// What a human ends has ended, recorded or not, and most is ended when nothing answers: it has as much room again.
		records, size, ends = 2*records, 2*size, true
	default:
	}
	switch {
	case r.depth >= records || r.bytes+it.size > size:
		return errors.New("the spool is full")
	case !r.reachable && r.storeFault != nil:
		return fmt.Errorf("audit is away and the spool cannot be written: %w", r.storeFault)
	case !r.reachable && !ends:
		if oldest := r.oldest(); oldest != nil && time.Since(oldest.queued) > MaxAge {
			return errors.New("the spool's oldest record has waited too long")
		}
	}
	return nil
}

func (r *Recorder) oldest() *item {
	for _, list := range [][]*item{r.flight, r.queue} {
		for _, it := range list {
			if it.durable {
				return it
			}
		}
	}
	return nil
}

func (r *Recorder) makeDurable(it *item) {
	it.durable = true
	r.depth++
	r.bytes += it.size
}

// wait waits for the item's outcome. When it gives up, an item that was not sent is taken back, unless it is a report.
func (r *Recorder) wait(ctx context.Context, it *item) outcome {
	var cause error
	select {
	case out := <-it.result:
		return out
	case <-ctx.Done():
		cause = context.Cause(ctx)
	case <-time.After(r.cfg.Timeout):
		cause = errors.New("audit did not answer in time")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case out := <-it.result:
		return out
	default:
	}
	if !it.report {
		it.gone = true
		if i := slices.Index(r.queue, it); i >= 0 {
			r.queue = slices.Delete(r.queue, i, i+1)
		}
	}
	return outcome{err: unavailable(cause)}
}

// signal wakes a goroutine that waits on c, now or when it next looks.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
