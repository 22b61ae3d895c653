package refusal

import (
	"context"
	"errors"
	"log/slog"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

// Bounds of the Log.
const (
	// maxWaiting is how many records wait in memory for audit.
	maxWaiting = 1024
	maxBatch   = 128
	// linger is how long a record waits for company.
	linger     = 20 * time.Millisecond
	attempt    = 2 * time.Second
	minBackoff = 100 * time.Millisecond
	maxBackoff = 2 * time.Second
)

// Log sends records to audit, from memory alone: the gateway has no disk of its own to spool to, which is why it does not
// link platform/recorder and the database under it. What is lost with the process is records of its refusals, never of an
// effect. Nothing waits for a receipt, and none is kept.
type Log struct {
	client auditv1.LogServiceClient
	logger *slog.Logger
	queue  chan *auditv1.Record
	// next is the next record's sequence; 0: audit must be asked. Run's alone.
	next uint64
}

// NewLog returns a Log over a connection to audit. Run makes it work.
func NewLog(client auditv1.LogServiceClient, logger *slog.Logger) (*Log, error) {
	if client == nil || logger == nil {
		return nil, errors.New("refusal: client and logger are required")
	}
	return &Log{client: client, logger: logger, queue: make(chan *auditv1.Record, maxWaiting)}, nil
}

// Spool implements Spooler. The record is the Log's from then on.
func (l *Log) Spool(_ context.Context, record *auditv1.Record) error {
	select {
	case l.queue <- record:
		return nil
	default:
		return fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "too many records wait for audit")
	}
}

// Run delivers records until ctx ends and then what is left, while audit answers at once.
func (l *Log) Run(ctx context.Context) {
	for {
		batch := l.collect(ctx)
		if len(batch) == 0 {
			return
		}
		if !l.deliver(ctx, batch) {
			l.logger.WarnContext(ctx, "records were lost, since audit does not answer at the end", "count", len(batch)+len(l.queue))
			return
		}
	}
}

// collect returns the next records; none when ctx has ended and nothing is left.
func (l *Log) collect(ctx context.Context) []*auditv1.Record {
	var batch []*auditv1.Record
	select {
	case r := <-l.queue:
		batch = append(batch, r)
	case <-ctx.Done():
	}
	enough := time.NewTimer(linger)
	defer enough.Stop()
	for len(batch) < maxBatch {
		select {
		case r := <-l.queue:
			batch = append(batch, r)
		case <-enough.C:
			return batch
		}
	}
	return batch
}

// deliver sends one batch until audit has it. A batch whose fate is unknown is sent again as it was: audit knows what it
// has by the sequence. It gives up when ctx has ended and a try has failed.
func (l *Log) deliver(ctx context.Context, batch []*auditv1.Record) bool {
	pause := minBackoff
	for {
		err := l.send(context.WithoutCancel(ctx), batch)
		switch {
		case err == nil:
			return true
		case fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT):
			l.logger.ErrorContext(ctx, "audit refuses records of ours", "count", len(batch), "error", err)
			l.next = 0
			return true
		case fault.Is(err, callv1.Code_CODE_CONFLICT):
			l.next = 0 // somebody wrote as us meanwhile: an earlier life of this process
		default:
			l.logger.DebugContext(ctx, "audit does not take records now", "error", err)
		}
		if ctx.Err() != nil {
			return false
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, maxBackoff)
	}
}

func (l *Log) send(ctx context.Context, batch []*auditv1.Record) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	if l.next == 0 {
		head, err := l.client.GetHead(ctx, &auditv1.GetHeadRequest{})
		if err != nil {
			return err
		}
		l.next = head.GetLastSequence() + 1
	}
	for i, r := range batch {
		r.Sequence = l.next + uint64(i)
	}
	if _, err := l.client.Append(ctx, &auditv1.AppendRequest{Records: batch}); err != nil {
		return err
	}
	l.next += uint64(len(batch))
	return nil
}
