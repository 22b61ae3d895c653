package recorder

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/redaction"
	"durward.internal/services/platform/reserve"
)

// refuse tells the batch's callers that audit's answer does not stand. The batch stays as it is.
func (r *Recorder) refuse(batch []*item, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, it := range batch {
		if it.result != nil && !it.gone {
			it.gone = !it.report
			tell(it, outcome{err: unavailable(cause)})
		}
	}
}

// renumber puts a batch back whose numbers audit refuses; nothing of it was written.
func (r *Recorder) renumber(batch []*item, cause error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requeue(batch)
	if r.confirming {
		return nil // another record has its number: it is not in the log, and gets a new one
	}
	r.next = 0
	return fmt.Errorf("audit refuses this process's sequence: %w", cause)
}

// tightRetry is how long records wait that audit has no room for, before one of them is tried again.
const tightRetry = 2 * time.Second

// yield takes back a batch that audit refuses because its disk is full; nothing of it was written. Whoever waits for a record
// that audit will not take now is told so; reports and spooled records wait.
func (r *Recorder) yield(batch []*item, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.tight {
		r.cfg.Logger.Warn("audit's disk is full: it takes only what takes load off the host", "spooled", r.depth)
	}
	r.tight, r.retry = true, time.Now().Add(tightRetry)
	for _, it := range batch {
		if it.result != nil && !entitled(it) {
			it.gone = !it.report
			tell(it, outcome{err: unavailable(cause)})
		}
	}
	if !r.confirming {
		r.next = batch[0].sequence
	}
	r.requeue(batch)
}

func entitled(it *item) bool { return reserve.Entitled(it.record) }

// rank puts first what audit takes when its disk is full.
func rank(it *item) int {
	if entitled(it) {
		return 0
	}
	return 1
}

// held reports whether audit has no room for the record, and it is not yet time to try again.
func (r *Recorder) held(it *item) bool { return r.tight && time.Now().Before(r.retry) && !entitled(it) }

// onlyHeld reports whether nothing may be sent before r.retry.
func (r *Recorder) onlyHeld() bool {
	return r.tight && !slices.ContainsFunc(r.queue, func(it *item) bool { return !r.held(it) })
}

func (r *Recorder) requeue(batch []*item) {
	back := make([]*item, 0, len(batch)+len(r.queue))
	for _, it := range batch {
		it.sequence = 0
		if !it.gone || it.durable {
			back = append(back, it)
		}
	}
	r.queue = append(back, r.queue...)
	r.flight = nil
}

// isolate finds the record for which audit refuses a batch, by halves, and drops it.
func (r *Recorder) isolate(batch []*item, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.confirming {
		r.next = batch[0].sequence // nothing of it was written
	}
	if len(batch) > 1 {
		half := batch[:len(batch)/2]
		r.requeue(batch[len(batch)/2:])
		r.flight = half
		r.next += uint64(len(half))
		return
	}
	it := batch[0]
	r.cfg.Logger.Error("audit refuses a record for good; it is dropped", "kind", it.record.GetKind().String(),
		"request_id", it.record.GetRequestId(), "cause", describe(cause))
	r.end(it, outcome{err: fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(cause)), final: true})
	r.flight = nil
	r.tidySoon()
}

// hide redacts the field in which audit found a credential, in the spool before the record is sent again under its sequence. It
// returns false where audit found none, or asks for what is redacted already.
func (r *Recorder) hide(it *item, cause error) bool {
	name, asked := redaction.Asked(cause)
	if !asked {
		return false
	}
	r.storing.Lock() // nobody writes the record meanwhile
	defer r.storing.Unlock()
	record, done := redaction.Field(it.record, name)
	if !done {
		return false
	}
	r.cfg.Logger.Error("audit found a credential in a record that this process's own rules let pass; the field is redacted as a whole",
		"kind", record.GetKind().String(), "request_id", record.GetRequestId(), "field", name)
	size := proto.Size(record)
	r.mu.Lock()
	if it.durable {
		r.bytes += size - it.size
	}
	it.record, it.size = record, size
	old, stored := it.id, it.stored
	if stored {
		r.lastID++
		it.id = r.lastID
	}
	row := Row{ID: it.id, Sequence: it.sequence, Queued: it.queued}
	r.mu.Unlock()
	if !stored {
		return true
	}
	var err error
	if row.Record, err = proto.Marshal(record); err == nil {
		err = r.cfg.Store.Commit(r.ctx, Change{Add: []Row{row}, Remove: []uint64{old}})
	}
	if err != nil {
		r.cfg.Logger.Warn("a record could not be redacted in the audit spool", "cause", err.Error())
		r.mu.Lock()
		it.stored = false // the next Commit adds it
		r.removed = append(r.removed, old)
		r.mu.Unlock()
	}
	return true
}

// distrust is an answer that came and did not stand up to verification.
type distrust struct{ error }

func (d *distrust) Unwrap() error { return d.error }

// note keeps Reachable and logs what changed.
func (r *Recorder) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil {
		return
	}
	r.reachable = err == nil
	trouble := ""
	if err != nil {
		trouble = describe(err)
	}
	if trouble == r.trouble {
		return
	}
	r.trouble = trouble
	var untrue *distrust
	switch {
	case err == nil:
		r.cfg.Logger.Info("the audit log is reachable again", "spooled", r.depth)
	case errors.As(err, &untrue):
		r.cfg.Logger.Error("the audit log's answer does not verify: do not trust its history, and see SECURITY.md", "cause", trouble, "spooled", r.depth)
	default:
		r.cfg.Logger.Warn("the audit log cannot be used", "cause", trouble, "spooled", r.depth)
	}
}

// describe is an error's text for our own log, with the private half of a fault.
func describe(err error) string {
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Cause != nil {
		return f.Message + ": " + f.Cause.Error()
	}
	return err.Error()
}
