//go:build real

package postgres

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
	server "durward.internal/services/platform/platformtest/postgres"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/recorder/spool"
	"durward.internal/services/platform/rpc"
)

// follows is how long a writer may take until its records are acknowledged again. A process that is stopped is noticed after one
// call of 2 s, and loses its lead after 3 s; the rest is for a busy machine.
const follows = 10 * time.Second

// refused is how long a change may wait for a refusal where nothing can be recorded.
const refused = 2 * time.Second

// writer appends records without end, one after the other, and remembers which were acknowledged.
type writer struct {
	name     string
	recorder *recorder.Recorder

	mu       sync.Mutex
	acked    map[string]uint64 // the index, by request id
	times    []time.Time
	reported []string
}

// run appends until ctx ends.
func (w *writer) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		id := fmt.Sprintf("%s-%d", w.name, n)
		r := &auditv1.Record{Kind: auditv1.Kind_KIND_READ, Status: auditv1.Status_STATUS_OK, RequestId: id, Body: &auditv1.Body{Summary: id}}
		if n%10 == 9 {
			// A fact that has happened: acknowledged by audit, or kept until it is.
			if _, err := w.recorder.Report(ctx, r); err == nil {
				w.mu.Lock()
				w.reported = append(w.reported, id)
				w.mu.Unlock()
			}
			continue
		}
		receipt, err := w.recorder.Record(ctx, r)
		if err != nil {
			continue
		}
		w.mu.Lock()
		w.acked[id], w.times = receipt.GetIndex(), append(w.times, time.Now())
		w.mu.Unlock()
	}
}

// enough is how many records are acknowledged before the next fault.
const enough = 15

// after waits until enough records are acknowledged after that time.
func (w *writer) after(t *testing.T, what string, began time.Time) {
	t.Helper()
	var first time.Duration
	harness.Eventually(t, w.name+"'s records are acknowledged after "+what, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		later := w.times[len(w.times):]
		for i, at := range w.times {
			if at.After(began) {
				later = w.times[i:]
				break
			}
		}
		if len(later) < enough {
			return fmt.Errorf("%d so far", len(later))
		}
		first = later[0].Sub(began)
		return nil
	})
	if first > follows {
		t.Errorf("after %s %s waited %v", what, w.name, first)
	}
	t.Logf("%s: %s goes on after %v", what, w.name, first.Round(time.Millisecond))
}

// rig is two audits on one server, and writers to both.
type rig struct {
	t       *testing.T
	h       *harness.Host
	pg      *server.Server
	writers []*writer
	said    *strings.Builder
}

func start(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, h: harness.New(t, harness.Options{}), pg: server.Start(t), said: &strings.Builder{}}
	settings := r.h.ReadFile("config/audit.yaml") + fmt.Sprintf("\ndatabase:\n  engine: postgres\n  addresses: [\"localhost:%d\"]\n  name: durward_audit\n  user: durward_audit\n  password_file: %s\n  ca: %s\n",
		r.pg.Port, r.pg.PasswordFile, r.pg.CA)
	r.h.WriteFile("config/audit.yaml", settings)
	second := strings.NewReplacer(r.h.Address(harness.Audit), r.h.Address(harness.Standby), r.h.HealthAddress(harness.Audit), r.h.HealthAddress(harness.Standby),
		"state/audit", "state/standby").Replace(settings)
	r.h.WriteFile("config/standby.yaml", second)
	r.h.StartProcess(harness.Audit)
	r.h.StartProcess(harness.Standby)
	for _, role := range []string{harness.Executor, harness.Vault} {
		id := r.h.Identity(role)
		conn, err := rpc.DialAny(rpc.ClientConfig{
			Identity: r.h.Source(id), Address: r.h.Address(harness.Audit), Server: r.h.Identity(harness.Audit), Logger: slog.New(slog.DiscardHandler),
		}, []string{r.h.Address(harness.Standby)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		kept, err := spool.Open(t.Context(), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		records, err := recorder.Open(t.Context(), recorder.OpenConfig{
			Conn: conn, Audit: r.h.Identity(harness.Audit).String(), Writer: id.String(), Trust: r.h.Trust(), Store: kept,
			Logger: slog.New(slog.NewTextHandler(&locked{w: r.said}, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		r.writers = append(r.writers, &writer{name: role, recorder: records, acked: map[string]uint64{}})
	}
	return r
}

// locked is a writer for several loggers.
type locked struct{ w io.Writer }

var logging sync.Mutex

func (l *locked) Write(b []byte) (int, error) {
	logging.Lock()
	defer logging.Unlock()
	return l.w.Write(b)
}

// after waits until every writer goes on.
func (r *rig) after(what string, began time.Time) {
	r.t.Helper()
	for _, w := range r.writers {
		w.after(r.t, what, began)
	}
}

// TestFailover: under writers that never stop, the audit that leads is killed, then the next one is stopped past its lock and
// goes on, then PostgreSQL itself hangs, and is killed. No record that was acknowledged is lost or doubled, and no index is used twice.
func TestFailover(t *testing.T) {
	r := start(t)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, w := range r.writers {
		running.Go(func() { w.run(ctx) })
	}
	r.after("the start", time.Now())

	began := time.Now()
	r.h.Process(harness.Audit).Kill()
	r.after("kill -9 of the audit that leads", began)
	r.h.StartProcess(harness.Audit)

	leader := r.h.Process(harness.Standby)
	began = time.Now()
	leader.Hang()
	r.after("SIGSTOP of the audit that leads", began)
	began = time.Now()
	leader.Continue()
	harness.Eventually(t, "the audit that was stopped stands by", func() error {
		if log := leader.Log(); !strings.Contains(log, "stands by") {
			return errors.New(log)
		}
		return nil
	})
	r.after("it goes on", began)

	resume := r.pg.Hang(t)
	for _, w := range r.writers {
		began := time.Now()
		_, err := w.recorder.Record(t.Context(), &auditv1.Record{Kind: auditv1.Kind_KIND_READ, Status: auditv1.Status_STATUS_OK})
		if took := time.Since(began); err == nil || took > refused {
			t.Errorf("while PostgreSQL hangs a record of %s gets %v after %v", w.name, err, took)
		}
	}
	began = time.Now()
	resume()
	r.after("SIGSTOP of PostgreSQL", began)

	r.pg.Kill(t)
	began = time.Now()
	r.pg.Run(t)
	r.after("kill -9 of PostgreSQL", began)

	stop()
	running.Wait()
	last, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	for _, w := range r.writers {
		if err := w.recorder.Close(last); err != nil {
			t.Error(err)
		}
	}
	logging.Lock()
	defer logging.Unlock()
	if strings.Contains(r.said.String(), "does not verify") || strings.Contains(r.said.String(), "did not write") {
		t.Errorf("a writer found the log untrue:\n%s", r.said)
	}
	r.verify()
}

// verify reads the whole log from each audit, proves it, and looks for each record that was acknowledged.
func (r *rig) verify() {
	t := r.t
	t.Helper()
	for _, role := range []string{harness.Audit, harness.Standby} {
		stream, err := auditv1.NewHistoryServiceClient(r.h.DialAs(r.h.OperatorIdentity(), role)).ExportLog(t.Context(), &auditv1.ExportLogRequest{})
		if err != nil {
			t.Fatal(err)
		}
		first, err := stream.Recv()
		if err != nil {
			t.Fatalf("%s: %v", role, err)
		}
		head, err := logproof.OpenCheckpoint(first.GetCheckpoint(), r.h.Trust().Current().LogKeys)
		if err != nil {
			t.Fatal(err)
		}
		replay, at, sequences := &logproof.Replay{}, map[string][]uint64{}, map[string]uint64{}
		for {
			part, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range part.GetEntries() {
				if err := replay.Add(e); err != nil {
					t.Fatalf("entry %d: %v", e.GetIndex(), err)
				}
				if id := e.GetRecord().GetRequestId(); id != "" {
					at[id] = append(at[id], e.GetIndex())
				}
				if sequences[e.GetWriter()]++; e.GetRecord().GetSequence() != sequences[e.GetWriter()] {
					t.Fatalf("entry %d has the sequence %d of %s, want %d", e.GetIndex(), e.GetRecord().GetSequence(), e.GetWriter(), sequences[e.GetWriter()])
				}
			}
		}
		if err := replay.Finish(head); err != nil {
			t.Errorf("%s: %v", role, err)
		}
		for id, places := range at {
			if len(places) > 1 {
				t.Errorf("%s stands at %v", id, places)
			}
		}
		for _, w := range r.writers {
			for id, index := range w.acked {
				if places := at[id]; len(places) != 1 || places[0] != index {
					t.Errorf("%s was acknowledged at %d and is at %v", id, index, places)
				}
			}
			for _, id := range w.reported {
				if len(at[id]) != 1 {
					t.Errorf("%s was reported and is at %v", id, at[id])
				}
			}
			if len(w.acked) < 50 {
				t.Errorf("%s had %d records acknowledged: the test shows little", w.name, len(w.acked))
			}
		}
		t.Logf("%s: %d entries verify", role, head.Size)
	}
}
