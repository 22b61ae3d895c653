package recorder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/telemetry/span"
)

// forward is the one goroutine that numbers records and talks to audit.
func (r *Recorder) forward() {
	defer r.running.Done()
	backoff := time.Duration(0)
	for r.await(backoff) {
		err := r.step()
		r.note(err)
		if err == nil {
			backoff = 0
			continue
		}
		backoff = min(max(2*backoff, minBackoff), maxBackoff)
	}
}

// await returns true when there is something to do: at once for records that somebody waits for, after linger for spooled
// ones, after backoff when the last step failed, and every probeEvery to see whether audit is there and still extends the
// held checkpoint. It returns false when the recorder stops.
func (r *Recorder) await(backoff time.Duration) bool {
	if backoff > 0 {
		return sleep(r.ctx, backoff)
	}
	probe := time.Now().Add(probeEvery)
	for {
		pause := min(r.pause(), time.Until(probe))
		if pause <= 0 {
			return r.ctx.Err() == nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-r.ctx.Done():
			timer.Stop()
			return false
		case <-r.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (r *Recorder) pause() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.next == 0 || len(r.flight) > 0:
		return 0
	case len(r.queue) == 0:
		return probeEvery
	case r.onlyHeld():
		return min(probeEvery, max(0, time.Until(r.retry)))
	case r.closing || len(r.queue) >= maxBatch/2 || slices.ContainsFunc(r.queue, func(it *item) bool { return it.result != nil }):
		return 0
	}
	return linger - time.Since(r.queue[0].queued)
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// step does one exchange with audit. An error means that it should be tried again after a pause.
func (r *Recorder) step() error {
	r.mu.Lock()
	ask := r.next == 0 || len(r.flight) == 0 && len(r.queue) == 0
	r.mu.Unlock()
	if ask {
		if err := r.head(); err != nil {
			return err
		}
	}
	r.take()
	r.mu.Lock()
	batch := r.flight
	r.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	return r.send(batch)
}

// head asks audit for its newest checkpoint and for our last sequence.
func (r *Recorder) head() error {
	ctx, cancel := context.WithTimeout(r.ctx, attempt)
	defer cancel()
	answer, err := r.cfg.Client.GetHead(ctx, &auditv1.GetHeadRequest{KnownSize: r.cfg.Keeper.Held().Size})
	if err != nil {
		return err
	}
	if _, err := r.cfg.Keeper.AcceptHead(r.ctx, answer.GetCheckpoint(), answer.GetConsistency()); err != nil {
		return &distrust{err}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tidySoon()
	if len(r.flight) > 0 {
		return nil // its numbers stand until audit has answered
	}
	if r.next != 0 && r.next != answer.GetLastSequence()+1 {
		r.cfg.Logger.Error("audit holds records under this identity that this process did not write",
			"expected_sequence", r.next-1, "last_sequence", answer.GetLastSequence())
	}
	r.next = answer.GetLastSequence() + 1
	return nil
}

// take moves records from the queue to the flight and numbers them. A record from an earlier life of the process that may
// be in the log already goes alone, under its old number.
func (r *Recorder) take() {
	r.mu.Lock()
	if len(r.flight) > 0 || len(r.queue) == 0 {
		r.mu.Unlock()
		return
	}
	r.confirming = false
	if r.tight {
		slices.SortStableFunc(r.queue, func(a, b *item) int { return rank(a) - rank(b) })
	}
	var n, size int
	assign := map[uint64]uint64{}
	for _, it := range r.queue {
		earlier := it.sequence != 0 && it.sequence < r.next
		// Alone: what audit may refuse drags nothing along that it would take.
		if r.held(it) || r.tight && n > 0 && rank(it) != rank(r.queue[0]) {
			break
		}
		if n == maxBatch || n > 0 && (size+it.size > maxBatchBytes || earlier) {
			break
		}
		n++
		if earlier {
			r.confirming = true
			break
		}
		size += it.size
		it.sequence = r.next
		r.next++
		if it.stored || it.writing {
			assign[it.id] = it.sequence
		}
	}
	r.flight = slices.Clone(r.queue[:n])
	r.queue = slices.Delete(r.queue, 0, n)
	r.mu.Unlock()
	if len(assign) == 0 {
		return
	}
	// Without the numbers a crash before audit's answer would write these records twice. That is better than not
	// writing them, so a full disk does not stop us here.
	r.storing.Lock()
	defer r.storing.Unlock()
	if err := r.cfg.Store.Commit(r.ctx, Change{Assign: assign}); err != nil {
		r.cfg.Logger.Warn("the audit spool could not be numbered", "cause", err.Error())
	}
}

func (r *Recorder) send(batch []*item) error {
	request := &auditv1.AppendRequest{KnownSize: r.cfg.Keeper.Held().Size}
	r.mu.Lock()
	for _, it := range batch {
		request.Records = append(request.Records, numbered(it.record, it.sequence))
	}
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(r.ctx, attempt)
	defer cancel()
	ctx, appending := begin(ctx, batch)
	began := time.Now()
	answer, err := r.cfg.Client.Append(ctx, request)
	r.cfg.OnAppend(time.Since(began))
	span.End(appending, err)
	if err != nil {
		switch {
		case fault.Is(err, callv1.Code_CODE_CONFLICT):
			return r.renumber(batch, err)
		case fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT), fault.Is(err, callv1.Code_CODE_TOO_LARGE):
			r.isolate(batch, err)
			return nil
		case fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) && fault.From(err).Field == reserve.Field:
			r.yield(batch, err)
			return nil
		}
		return err
	}
	if err := r.verify(request, answer); err != nil {
		r.refuse(batch, err)
		return &distrust{err}
	}
	r.settle(batch, answer.GetReceipts())
	return nil
}

// begin begins the span of a batch. It is in the trace of the first record that is traced, and points to the others'.
func begin(ctx context.Context, batch []*item) (context.Context, trace.Span) {
	var first trace.Span
	var links []trace.Link
	for _, it := range batch {
		switch at := it.span.SpanContext(); {
		case !at.IsSampled():
		case first == nil:
			first = it.span
		case !at.Equal(first.SpanContext()):
			links = append(links, trace.Link{SpanContext: at})
		}
	}
	if first == nil {
		return ctx, noop.Span{}
	}
	return span.Tracer(first.TracerProvider()).Start(trace.ContextWithSpan(ctx, first), span.Append,
		trace.WithLinks(links...), trace.WithAttributes(span.Records.Int(len(batch))))
}

// numbered is the record with its sequence, sharing everything else with the original, which stays as it is.
func numbered(record *auditv1.Record, sequence uint64) *auditv1.Record {
	return &auditv1.Record{
		Sequence: sequence, Kind: record.GetKind(), Time: record.GetTime(), RequestId: record.GetRequestId(),
		OperationId: record.GetOperationId(), Tool: record.GetTool(), Tier: record.GetTier(), Status: record.GetStatus(),
		Body: record.GetBody(),
	}
}

func (r *Recorder) verify(request *auditv1.AppendRequest, answer *auditv1.AppendResponse) error {
	n := len(request.GetRecords())
	if len(answer.GetReceipts()) != n || len(answer.GetPlacements()) != n {
		return fmt.Errorf("%w: %d receipts for %d records", logproof.ErrInclusion, len(answer.GetReceipts()), n)
	}
	for i, record := range request.GetRecords() {
		if err := logproof.VerifyPlacement(r.cfg.Writer, record, answer.GetPlacements()[i], answer.GetReceipts()[i]); err != nil {
			return err
		}
	}
	return r.cfg.Keeper.Accept(r.ctx, answer)
}

// settle ends a batch that is in the log.
func (r *Recorder) settle(batch []*item, receipts []*callv1.Receipt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, it := range batch {
		r.end(it, outcome{receipt: receipts[i]})
	}
	r.flight = nil
	if r.tight && !entitled(batch[len(batch)-1]) {
		r.tight = false
		r.cfg.Logger.Info("audit's disk has room again", "spooled", r.depth)
	}
	r.tidySoon()
}

// end takes the item out of the spool and tells whoever waits.
func (r *Recorder) end(it *item, out outcome) {
	it.done = true
	if it.durable {
		r.depth--
		r.bytes -= it.size
	}
	if it.writing || it.stored {
		r.removed = append(r.removed, it.id)
	}
	if it.kept != nil {
		it.kept <- nil
		it.kept = nil
	}
	tell(it, out)
}

// tell replaces an outcome that nobody has read yet.
func tell(it *item, out outcome) {
	if it.result == nil {
		return
	}
	select {
	case <-it.result:
	default:
	}
	it.result <- out
}

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
	var f *fault.Error
	if errors.As(err, &f) && f.Cause != nil {
		return f.Message + ": " + f.Cause.Error()
	}
	return err.Error()
}

func (r *Recorder) tidySoon() {
	if r.tidySince.IsZero() {
		r.tidySince = time.Now()
		signal(r.dirty)
	}
}

// flush is the goroutine that writes the store.
func (r *Recorder) flush() {
	defer r.running.Done()
	for {
		pause, any := r.due()
		var timer <-chan time.Time
		if any {
			timer = time.After(max(pause, 0))
		}
		select {
		case <-r.ctx.Done():
			return
		case <-r.dirty:
			continue
		case <-timer:
		}
		if err := r.commit(r.ctx); err != nil && r.ctx.Err() == nil {
			r.cfg.Logger.Error("the audit spool cannot be written", "cause", err.Error())
			if !sleep(r.ctx, maxBackoff) {
				return
			}
		}
	}
}

// due says how long the next Commit may wait, if one is needed at all.
func (r *Recorder) due() (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pause, needed := time.Duration(0), false
	earlier := func(d time.Duration) {
		if !needed || d < pause {
			pause, needed = d, true
		}
	}
	for _, it := range slices.Concat(r.flight, r.queue) {
		if it.kept != nil {
			earlier(0)
		} else if it.durable && !it.stored {
			earlier(commitWithin - time.Since(it.queued))
		}
	}
	if !r.tidySince.IsZero() {
		earlier(tidyWithin - time.Since(r.tidySince))
	}
	return pause, needed
}

// commit writes what the store lacks.
func (r *Recorder) commit(ctx context.Context) error {
	r.storing.Lock()
	defer r.storing.Unlock()
	var items []*item
	var change Change
	r.mu.Lock()
	for _, it := range slices.Concat(r.flight, r.queue) {
		if it.durable && !it.stored {
			it.writing = true
			items = append(items, it)
			change.Add = append(change.Add, Row{ID: it.id, Sequence: it.sequence, Queued: it.queued})
		}
	}
	change.Remove, r.removed = r.removed, nil
	tidy := r.tidySince
	r.tidySince = time.Time{}
	r.mu.Unlock()
	if len(items) == 0 && len(change.Remove) == 0 && tidy.IsZero() {
		return nil
	}
	var err error
	for i, it := range items {
		// The record does not change, and was marshalled once before, when it was measured.
		if change.Add[i].Record, err = proto.Marshal(it.record); err != nil {
			break
		}
	}
	if err == nil {
		err = r.cfg.Store.Commit(ctx, change)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.storeFault = err
	for _, it := range items {
		it.writing, it.stored = false, err == nil
		if it.kept != nil {
			it.kept <- err
			it.kept = nil
		}
	}
	if err != nil {
		r.removed = append(change.Remove, r.removed...)
		if r.tidySince.IsZero() {
			r.tidySince = tidy
		}
	}
	return err
}
