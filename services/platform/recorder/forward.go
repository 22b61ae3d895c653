package recorder

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/clock"
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
		return clock.Sleep(r.ctx, backoff)
	}
	probe := time.Now().Add(probeEvery)
	for {
		pause := min(r.pause(), time.Until(probe))
		if pause <= 0 {
			return r.ctx.Err() == nil
		}
		select {
		case <-r.ctx.Done():
			return false
		case <-r.wake:
		case <-time.After(pause):
		}
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

// step does one exchange with audit. An error means that it should be tried again after a pause.
func (r *Recorder) step() error {
	r.mu.Lock()
	// Also while there is always something to send: what witnesses say stands beside the head alone.
	ask := r.next == 0 || len(r.flight) == 0 && (len(r.queue) == 0 || time.Since(r.asked) >= probeEvery)
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
	if err := r.cfg.Keeper.AcceptAnswer(r.ctx, answer, time.Now()); err != nil {
		return &distrust{err}
	}
	if r.fresh {
		r.fresh = false
		if written := answer.GetLastSequence(); written > 0 {
			r.tellLost("this process has written " + clean.Count(written, "record") + ", and its spool is a new one: what waited in the old one is lost")
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = time.Now()
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

// tellLost says, in our own log and in audit's, that records which waited for audit are gone, whatever else waits.
func (r *Recorder) tellLost(text string) {
	r.cfg.Logger.Error("THE AUDIT SPOOL WAS LOST", "cause", text)
	// Its kind is one that every process may write.
	it, err := r.newItem(r.ctx, &auditv1.Record{Kind: auditv1.Kind_KIND_STARTED, Status: auditv1.Status_STATUS_ERROR, Body: &auditv1.Body{Summary: text}})
	if err == nil {
		err = r.enqueue(it, func(*item) error { return nil })
	}
	if err != nil {
		r.cfg.Logger.Error("that the audit spool was lost could not be recorded", "error", err)
	}
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
	// Nobody waits for the receipt of a spooled record.
	request := &auditv1.AppendRequest{KnownSize: r.cfg.Keeper.Held().Size, Together: true}
	r.mu.Lock()
	for _, it := range batch {
		request.Records = append(request.Records, numbered(it.record, it.sequence))
		request.Together = request.Together && it.result == nil
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
		case len(batch) == 1 && r.hide(batch[0], err):
			return nil
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
	if request.GetTogether() && answer.GetRun() != nil {
		leaves, err := logproof.RunLeaves(r.cfg.Writer, request.GetRecords(), answer.GetRun())
		if err != nil {
			return err
		}
		return r.cfg.Keeper.AcceptRun(r.ctx, answer, leaves)
	}
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

// settle ends a batch that is in the log; without receipts nobody waits for one.
func (r *Recorder) settle(batch []*item, receipts []*callv1.Receipt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, it := range batch {
		var out outcome
		if len(receipts) > 0 {
			out.receipt = receipts[i]
		}
		r.end(it, out)
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

func (r *Recorder) tidySoon() {
	if r.tidySince.IsZero() {
		r.tidySince = time.Now()
		signal(r.dirty)
	}
}

// flush is the goroutine that writes the store, when something is due that was not done meanwhile: what reached audit before its time was
// over need not be written at all.
func (r *Recorder) flush() {
	defer r.running.Done()
	for r.ctx.Err() == nil {
		pause, needed := r.due()
		if !needed || pause > 0 {
			var timer <-chan time.Time
			if needed {
				timer = time.After(pause)
			}
			select {
			case <-r.ctx.Done():
			case <-r.dirty:
			case <-timer:
			}
			continue
		}
		if err := r.commit(r.ctx); err != nil && r.ctx.Err() == nil {
			r.cfg.Logger.Error("the audit spool cannot be written", "cause", err.Error())
			clock.Sleep(r.ctx, maxBackoff)
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
	r.flushBy = time.Time{}
	if needed {
		r.flushBy = time.Now().Add(pause)
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
