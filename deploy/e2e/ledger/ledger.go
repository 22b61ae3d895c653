// Package ledger is the other side of the audit log in tests that break audit: writers that append without end, what each of them was
// told, kept in the test's own process, and the whole log held against that. It is for tests alone; it believes no process.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/recorder/spool"
	"durward.internal/services/platform/rpc"
)

// Ledger is the writers of one installation.
type Ledger struct {
	Writers []*Writer

	t    testing.TB
	h    *harness.Host
	said lines
}

// New returns a ledger without writers.
func New(t testing.TB, h *harness.Host) *Ledger { return &Ledger{t: t, h: h} }

// lines is what the recorders log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// Writer appends records, and remembers which were acknowledged. It is safe for concurrent use.
type Writer struct {
	Name     string
	Recorder *recorder.Recorder

	mu       sync.Mutex
	issued   int
	acked    []acknowledgement
	reported []string
}

// acknowledgement is what a writer was told: the record of that request is at that index.
type acknowledgement struct {
	id    string
	index uint64
	at    time.Time
}

// Add adds a writer with the identity of a process, or "ROLE/INSTANCE", who writes to the audits of these names, and to the first of them
// as long as it answers.
func (l *Ledger) Add(identity string, audits ...string) *Writer {
	l.t.Helper()
	must := func(err error) {
		l.t.Helper()
		if err != nil {
			l.t.Fatal(err)
		}
	}
	id := l.h.Identity(identity)
	var others []string
	for _, audit := range audits[1:] {
		others = append(others, l.h.Address(audit))
	}
	logger := slog.New(slog.NewTextHandler(&l.said, nil))
	conn, err := rpc.DialAny(rpc.ClientConfig{
		Identity: l.h.Source(id), Address: l.h.Address(audits[0]), Server: l.h.Identity(audits[0]), Logger: slog.New(slog.DiscardHandler),
	}, others)
	must(err)
	l.t.Cleanup(func() { _ = conn.Close() })
	kept, err := spool.Open(l.t.Context(), l.t.TempDir())
	must(err)
	records, err := recorder.Open(l.t.Context(), conn, l.h.Identity(audits[0]).String(), l.h.Trust(), recorder.Config{
		Writer: id.String(), Store: kept, Logger: logger,
	})
	must(err)
	w := &Writer{Name: identity, Recorder: records}
	l.Writers = append(l.Writers, w)
	// One that is not closed by its test delivers nothing more.
	l.t.Cleanup(func() {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		_ = records.Close(over)
	})
	return w
}

// Append writes one record. An error says that it was not acknowledged; it may be in the log all the same.
func (w *Writer) Append(ctx context.Context) error {
	r := w.next()
	receipt, err := w.Recorder.Record(ctx, r)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acked = append(w.acked, acknowledgement{r.GetRequestId(), receipt.GetIndex(), time.Now()})
	return nil
}

// Report writes one record as of a fact that has happened: acknowledged by audit, or kept until it is.
func (w *Writer) Report(ctx context.Context) error {
	r := w.next()
	_, err := w.Recorder.Report(ctx, r)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reported = append(w.reported, r.GetRequestId())
	return nil
}

// prefix is what the request ids of this writer's records begin with.
func (w *Writer) prefix() string { return strings.ReplaceAll(w.Name, "/", "-") + "-n" }

func (w *Writer) next() *auditv1.Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := fmt.Sprintf("%s%d", w.prefix(), w.issued)
	w.issued++
	return &auditv1.Record{Kind: auditv1.Kind_KIND_READ, Status: auditv1.Status_STATUS_OK, RequestId: id, Body: &auditv1.Body{Summary: id}}
}

// Run appends until ctx ends, one after the other, and reports each tenth record. pause is how long it waits in between.
func (w *Writer) Run(ctx context.Context, pause time.Duration) {
	for n := 0; ctx.Err() == nil; n++ {
		if n%10 == 9 {
			_ = w.Report(ctx) // what is not acknowledged is as it may be: the ledger holds what is
		} else {
			_ = w.Append(ctx) // as above
		}
		select {
		case <-time.After(pause): // the rate that is wanted
		case <-ctx.Done():
		}
	}
}

// Acknowledged is how many records were after that time, and when the first of them was; zero: none.
func (w *Writer) Acknowledged(after time.Time) (count int, first time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.acked {
		if a.at.After(after) {
			if count == 0 {
				first = a.at
			}
			count++
		}
	}
	return count, first
}

// Times are when records were acknowledged, the earliest first.
func (w *Writer) Times() (times []time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.acked {
		times = append(times, a.at)
	}
	return times
}

// Deliver waits until audit has what the writers hold. One that is closed when it has just missed an answer keeps the rest for its next
// life, which a test's has not.
func (l *Ledger) Deliver() {
	l.t.Helper()
	for _, w := range l.Writers {
		harness.Eventually(l.t, w.Name+" delivers", func() error {
			if n := w.Recorder.Queued(); n > 0 {
				return fmt.Errorf("%d records wait", n)
			}
			return nil
		})
	}
}

// Close ends the writers, which deliver what waits while audit answers.
func (l *Ledger) Close() {
	l.t.Helper()
	last, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	for _, w := range l.Writers {
		if err := w.Recorder.Close(last); err != nil {
			l.t.Error(err)
		}
	}
}

// Untrue is what the writers logged of an audit whose answers do not prove themselves; "": nothing.
func (l *Ledger) Untrue() string {
	l.said.mu.Lock()
	defer l.said.mu.Unlock()
	for _, sign := range []string{"does not verify", "did not write"} {
		if text := l.said.text.String(); strings.Contains(text, sign) {
			return text
		}
	}
	return ""
}

// Log is a whole log as an audit exports it.
type Log struct {
	Size    uint64
	Entries []*auditv1.Entry
	// at are the indexes by request id.
	at map[string][]uint64
}

// Read reads the whole log from an audit, and proves it: an error says that it does not stand.
func (l *Ledger) Read(audit string) (*Log, error) {
	stream, err := auditv1.NewHistoryServiceClient(l.h.DialAs(l.h.OperatorIdentity(), audit)).ExportLog(l.t.Context(), &auditv1.ExportLogRequest{})
	if err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	head, err := logproof.OpenCheckpoint(first.GetCheckpoint(), l.h.Trust().Current().LogKeys)
	if err != nil {
		return nil, err
	}
	replay, log := &logproof.Replay{}, &Log{Size: head.Size, at: map[string][]uint64{}}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		for _, e := range part.GetEntries() {
			if err := replay.Add(e); err != nil { // indexes, sequences, leaves
				return nil, err
			}
			if id := e.GetRecord().GetRequestId(); id != "" {
				log.at[id] = append(log.at[id], e.GetIndex())
			}
			log.Entries = append(log.Entries, e)
		}
	}
	return log, replay.Finish(head)
}

// Check holds what the writers were told, until that time where it is not zero, against the log: records that it lacks, has twice or has
// elsewhere.
func (l *Ledger) Check(log *Log, until time.Time) (wrong []string) {
	for _, w := range l.Writers {
		w.mu.Lock()
		for _, a := range w.acked {
			if !until.IsZero() && a.at.After(until) {
				continue
			}
			if places := log.at[a.id]; len(places) != 1 || places[0] != a.index {
				wrong = append(wrong, fmt.Sprintf("%s was acknowledged at %d and is at %v", a.id, a.index, places))
			}
		}
		if until.IsZero() {
			for _, id := range w.reported {
				if len(log.at[id]) != 1 {
					wrong = append(wrong, fmt.Sprintf("%s was reported and is at %v", id, log.at[id]))
				}
			}
		}
		w.mu.Unlock()
		for id, places := range log.at {
			if len(places) > 1 && strings.HasPrefix(id, w.prefix()) {
				wrong = append(wrong, fmt.Sprintf("%s stands at %v", id, places))
			}
		}
	}
	return wrong
}
