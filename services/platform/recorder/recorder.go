// Package recorder is how a process that runs for long writes to the audit log: the vault and every sink link it with
// package spool under it, the gateway with memory alone. It trusts the log keys of the trust folder and the checkpoint it
// kept, and believes audit only what it can verify: every answer must extend the held checkpoint, and every receipt must be
// for exactly the record that was sent.
//
// When audit's disk is full it takes what stops things alone (package reserve). Such records then overtake the others, which
// are refused, or wait in the spool, until audit takes them again.
//
// Every record goes through package redaction first. Audit refuses one that holds a credential all the same: the field that it names
// is then redacted as a whole, in the spool too, and the record goes again under its sequence.
//
// There are three ways to record:
//
//   - Record, before an effect: returns a verified receipt, or an error after which the caller must not act.
//   - Report, after an effect: the same, but a fact that has happened is not lost when audit does not answer: it goes to
//     the spool and is delivered later.
//   - Spool, for reads: returns at once. Within 100 ms the record is on a disk: audit's if audit answers, else ours,
//     where there is one.
//
// # Sequences
//
// The log demands that each writer number its records without gaps. One goroutine numbers records when it puts them in a
// batch, and has one batch in flight. The authority on the last number is audit, asked at the start: a record that was
// only in memory when the process died either is in audit, and then its number counts, or was never anywhere. What the
// spool holds on disk carries the number under which it was sent; after a restart such a record is sent once more under
// that number, which audit answers with the first receipt if it has it, and refuses otherwise.
//
// A batch whose fate is unknown (no answer, a broken connection, an answer that does not verify) is never changed: the same
// records under the same numbers are sent until audit answers. Therefore a record whose caller gave up meanwhile may
// still reach the log; a caller that was refused and told its client so should Report that nothing was done. A record
// that was not sent yet when its caller gave up is dropped.
package recorder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"buf.build/go/protovalidate"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/mod/sumdb/note"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/redaction"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/telemetry/span"
	"durward.internal/services/platform/trust"
)

// Bounds of the spool and of a batch.
const (
	// MaxSpooled and MaxAge are how much Spool takes while audit is away.
	MaxSpooled = 10_000
	MaxAge     = 5 * time.Minute
	// MaxSpooledBytes bounds the spool's memory and file.
	MaxSpooledBytes = 32 << 20
	// DefaultTimeout is how long Record waits.
	DefaultTimeout = 1500 * time.Millisecond

	maxBatch      = 512
	maxBatchBytes = 2 << 20
	// linger is how long spooled records wait for company before they are sent, commitWithin how long they may be in
	// memory alone.
	linger       = 40 * time.Millisecond
	commitWithin = 100 * time.Millisecond
	// tidyWithin is how long deletions and the newest checkpoint may wait to be written.
	tidyWithin = time.Second
	// attempt bounds one request, so that a hung audit is noticed; keepWait how long Report waits for our own disk.
	attempt    = 2 * time.Second
	keepWait   = 2 * time.Second
	minBackoff = 25 * time.Millisecond
	maxBackoff = 250 * time.Millisecond
	probeEvery = 5 * time.Second
	// closePoll is how often Close looks whether everything is delivered; well under minBackoff, so that it sees a failure
	// before the next try.
	closePoll = 5 * time.Millisecond
)

// Config is what a Recorder needs. Client, Keeper and Writer are required.
type Config struct {
	Client auditv1.LogServiceClient
	// Keeper must be used by this recorder alone.
	Keeper *logproof.Keeper
	// Writer is this process's own SPIFFE ID, which audit reads from the connection's certificate.
	Writer string
	// Store holds the spool; nil means memory. Close closes it.
	Store Store
	// MaxSpooled is how many records Spool takes while audit is away; 0 means the constant, which is also the most.
	MaxSpooled int
	Logger     *slog.Logger
	// Timeout is how long Record and Report wait for audit; 0 means DefaultTimeout.
	Timeout time.Duration
	// Shared: other processes have written, or stood by to write, under this identity, so that an empty spool is none that was lost.
	Shared bool
	// OnAppend is told how long audit took for each batch, whatever it answered. It must be quick. Nil: nobody.
	OnAppend func(took time.Duration)
}

// Open is New with the Client and the Keeper of the ordinary case: conn leads to audit, whose SPIFFE ID names the log. It closes the store
// when it fails.
func Open(ctx context.Context, conn grpc.ClientConnInterface, audit string, roots *trust.Folder, cfg Config) (r *Recorder, err error) {
	if cfg.Store == nil {
		cfg.Store = newMemoryStore()
	}
	cfg.Client = auditv1.NewLogServiceClient(conn)
	cfg.Keeper, err = logproof.NewKeeper(ctx, logproof.KeeperConfig{
		Origin: logproof.Origin(audit), Keys: func() []note.Verifier { return roots.Current().LogKeys }, Store: cfg.Store,
		Witnesses: func() logproof.Witnesses { return roots.Current().Witnesses },
	})
	if err == nil {
		r, err = New(cfg)
	}
	if err != nil {
		return nil, errors.Join(err, cfg.Store.Close())
	}
	return r, nil
}

// Recorder writes one process's records. It is safe for concurrent use.
type Recorder struct {
	cfg       Config
	validator protovalidate.Validator
	redactor  *redaction.Redactor
	ctx       context.Context // ends with Close
	stop      context.CancelFunc
	running   sync.WaitGroup
	wake      chan struct{} // to forward, holds at most one
	dirty     chan struct{} // to flush, holds at most one

	// storing is held around Store.Commit. It is taken before mu.
	storing sync.Mutex

	mu         sync.Mutex
	queue      []*item   // not sent yet, oldest first
	flight     []*item   // sent, or being sent; nil when nothing is
	confirming bool      // the flight is one record of an earlier life, under its old number
	next       uint64    // the next record's sequence; 0: audit must be asked
	asked      time.Time // when audit was last asked for its head
	lastID     uint64
	depth      int // durable items in queue and flight
	bytes      int // theirs
	removed    []uint64
	flushBy    time.Time // when flush writes the store next; zero: when it is told to
	tidySince  time.Time // since when removed or the checkpoint waits to be written; zero: nothing waits
	reachable  bool
	trouble    string // what was logged last
	storeFault error
	closing    bool
	// fresh: the store is on a disk and held nothing at the start, not even a checkpoint. Forward's alone.
	fresh bool
	// tight: audit's disk is full, and it takes what reserve.Entitled allows alone. Anything else is tried again at retry.
	tight bool
	retry time.Time
}

// item is one record on its way. Its fields are guarded by Recorder.mu; record and size change while Recorder.storing is held too.
type item struct {
	id       uint64
	record   *auditv1.Record // without sequence
	size     int
	queued   time.Time
	sequence uint64
	// result gets one outcome; nil for spooled records.
	result chan outcome
	// report marks a fact that must not be dropped although its caller does not wait any more.
	report bool
	// gone: the caller was told that the record failed.
	gone bool
	// durable: counts in the spool and belongs in the store. writing: a Commit may be writing it. stored: it is there.
	durable, writing, stored, done bool
	// kept is told the result of the item's next Commit; nil when nobody waits for it.
	kept chan error
	// span is the span that the record belongs to; it does not change.
	span trace.Span
}

type outcome struct {
	receipt *callv1.Receipt
	err     error
	// final: audit refuses this record for good.
	final bool
}

// New starts a recorder with what the store still holds. It does not wait for audit.
func New(cfg Config) (*Recorder, error) {
	if cfg.Client == nil || cfg.Keeper == nil || cfg.Writer == "" {
		return nil, errors.New("a recorder needs a client, a keeper and its writer's identity")
	}
	if cfg.Store == nil {
		cfg.Store = newMemoryStore()
	}
	if cfg.MaxSpooled < 0 || cfg.MaxSpooled > MaxSpooled {
		return nil, fmt.Errorf("a recorder spools 1 to %d records, not %d", MaxSpooled, cfg.MaxSpooled)
	}
	cfg.MaxSpooled = cmp.Or(cfg.MaxSpooled, MaxSpooled)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	if cfg.OnAppend == nil {
		cfg.OnAppend = func(time.Duration) {}
	}
	r := &Recorder{cfg: cfg, validator: protovalidate.GlobalValidator, redactor: redaction.New(), wake: make(chan struct{}, 1), dirty: make(chan struct{}, 1)}
	r.ctx, r.stop = context.WithCancel(context.Background())
	rows, kept, err := cfg.Store.Load(r.ctx)
	if err != nil {
		r.stop()
		return nil, fmt.Errorf("load the audit spool: %w", err)
	}
	for _, row := range rows {
		record := &auditv1.Record{}
		if err := proto.Unmarshal(row.Record, record); err != nil {
			r.stop()
			return nil, fmt.Errorf("the audit spool holds a record that cannot be read: %w", err)
		}
		r.queue = append(r.queue, &item{
			id: row.ID, record: record, size: len(row.Record), queued: row.Queued, sequence: row.Sequence, durable: true, stored: true,
			span: noop.Span{},
		})
		r.lastID = row.ID
		r.depth++
		r.bytes += len(row.Record)
	}
	_, memory := cfg.Store.(*memoryStore)
	r.fresh = lossTold(kept == 0 && !memory && !cfg.Shared && len(rows) == 0 && cfg.Keeper.Held().IsZero())
	if lossTold(kept != len(rows)) {
		left := strconv.Itoa(kept)
		if kept < 0 {
			left = "an unknown number of"
		}
		// In the very Commit after which the spool's count is right again.
		r.tellLost(fmt.Sprintf("this process left %s records for audit in its spool, and %d are there: somebody else changed it", left, len(rows)))
	}
	r.running.Add(2)
	go r.forward()
	go r.flush()
	return r, nil
}

// Record returns when the record is durable in the log and that is proved. On an error (a *fault.Error, mostly
// CODE_AUDIT_UNAVAILABLE) the caller must not act on the strength of the record. The record's sequence is ignored and its
// time set if it has none; the message is not kept.
func (r *Recorder) Record(ctx context.Context, record *auditv1.Record) (_ *callv1.Receipt, err error) {
	ctx, waiting := span.Start(ctx, span.Record, trace.SpanKindInternal)
	defer func() { span.End(waiting, err) }()
	_, out := r.ask(ctx, record, false)
	return out.receipt, out.err
}

// ask enqueues a record and waits for its outcome. Where there is no item, the record was not taken.
func (r *Recorder) ask(ctx context.Context, record *auditv1.Record, report bool) (*item, outcome) {
	it, err := r.newItem(ctx, record)
	if err != nil {
		return nil, outcome{err: err}
	}
	it.result, it.report = make(chan outcome, 1), report
	if err := r.enqueue(it, nil); err != nil {
		return nil, outcome{err: err}
	}
	return it, r.wait(ctx, it)
}

// Report records a fact that has already happened. It waits like Record; when audit does not answer in time the record
// goes to the durable spool, limits or not, and Report returns nil and no error. An error means that it could not be kept
// durably either; it is still in memory and tried again.
func (r *Recorder) Report(ctx context.Context, record *auditv1.Record) (_ *callv1.Receipt, err error) {
	ctx, waiting := span.Start(ctx, span.Record, trace.SpanKindInternal)
	defer func() { span.End(waiting, err) }()
	it, out := r.ask(ctx, record, true)
	if it == nil || out.err == nil || out.final {
		return out.receipt, out.err
	}
	r.mu.Lock()
	if it.done {
		r.mu.Unlock()
		out = <-it.result
		return out.receipt, out.err
	}
	if it.stored {
		r.mu.Unlock()
		return nil, nil
	}
	kept := make(chan error, 1)
	it.kept = kept
	r.makeDurable(it)
	r.mu.Unlock()
	signal(r.dirty)
	select {
	case err = <-kept:
	case <-time.After(keepWait):
		err = errors.New("our own disk does not answer")
	}
	if err != nil {
		return nil, unavailable(err)
	}
	return nil, nil
}

// Spool takes a record of a read. It returns at once; see the package comment for when the record is durable. It refuses
// with CODE_AUDIT_UNAVAILABLE when the spool is full, its oldest record is over MaxAge old while audit is away, or the
// record could go neither to audit nor to our own disk. A halt, and the end of what a human granted, waits however old the oldest is,
// and has as much room again.
func (r *Recorder) Spool(ctx context.Context, record *auditv1.Record) error {
	it, err := r.newItem(ctx, record)
	if err != nil {
		return err
	}
	return r.enqueue(it, r.room)
}

// Depth is how many spooled records wait for audit.
func (r *Recorder) Depth() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.depth
}

// Capacity is how many records the spool takes.
func (r *Recorder) Capacity() int { return r.cfg.MaxSpooled }

// Queued is how many records are on their way to audit, those of the spool among them.
func (r *Recorder) Queued() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queue) + len(r.flight)
}

// Reachable reports whether audit's newest answer came and stood up to verification; it is asked at least every 5 s.
func (r *Recorder) Reachable() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reachable
}

// Checkpoint returns the newest checkpoint that was verified, as audit signed it; nil before the first.
func (r *Recorder) Checkpoint() []byte { return r.cfg.Keeper.Signed() }

// Witnessed returns an error, with what it means, where the trust folder has changes wait for witnesses and no quorum of them is fresh.
func (r *Recorder) Witnessed() error {
	_, err := r.cfg.Keeper.Witnessed(time.Now())
	return err
}

// Close takes no more records, delivers what is left while audit answers and ctx lasts, writes the rest to the store, logs
// how much that was, and closes the store. It ends soon after ctx does.
func (r *Recorder) Close(ctx context.Context) error {
	r.mu.Lock()
	if r.closing {
		r.mu.Unlock()
		return nil
	}
	r.closing = true
	r.mu.Unlock()
	signal(r.wake)
	for r.delivering() {
		if !clock.Sleep(ctx, closePoll) {
			break
		}
	}
	r.stop()
	r.running.Wait()
	r.mu.Lock()
	for _, it := range slices.Concat(r.flight, r.queue) {
		if it.report && !it.durable {
			r.makeDurable(it)
		}
	}
	left := r.depth
	r.mu.Unlock()
	if left > 0 {
		r.cfg.Logger.Warn("records had not reached audit at the end: what is on a disk waits for the next start", "count", left)
	}
	err := r.commit(context.WithoutCancel(ctx))
	return errors.Join(err, r.cfg.Store.Close())
}

func (r *Recorder) delivering() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return (r.reachable || r.trouble == "") && len(r.queue)+len(r.flight) > 0
}

func unavailable(cause error) *fault.Error {
	return reserve.Unrecorded("the audit log cannot record this now", time.Second, cause)
}
