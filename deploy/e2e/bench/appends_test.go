//go:build bench

package bench

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/transparency-dev/tessera"
	"github.com/transparency-dev/tessera/storage/posix"
	"golang.org/x/mod/sumdb/note"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/platformtest/postgres"
)

// appendFor is how long each load is put on a log.
const appendFor = 3 * time.Second

// Aims of the log.
const (
	appendMust  = 2.0 // times a bare fsync, plus one hop
	batchesMust = 20000
	verifyMust  = 15 * time.Microsecond
)

// loads are how many append at once, and how many records each of them brings at a time: one is an intent, which a call waits for, and
// more are reads, as sinks send them in batches.
var loads = []struct{ writers, records int }{{1, 1}, {16, 1}, {64, 1}, {64, 64}}

// add brings so many records of a writer to a log, and returns when they are durable.
type add func(ctx context.Context, writer, records int) error

// put has writers add records, as fast as they are taken, and returns how long each add took, how many records came in a second, and how
// much processor time the log's process took for one.
func (s *suite) put(writers, records, pid int, do add) (sample, float64, time.Duration) {
	s.Helper()
	before, err := processor(pid)
	s.must(err)
	var all sync.Mutex
	var running sync.WaitGroup
	var took []time.Duration
	var failed error
	began := time.Now()
	for w := range writers {
		running.Go(func() {
			var mine []time.Duration
			var err error
			for err == nil && time.Since(began) < appendFor {
				at := time.Now()
				if err = do(s.Context(), w, records); err == nil {
					mine = append(mine, time.Since(at))
				}
			}
			all.Lock()
			defer all.Unlock()
			took = append(took, mine...)
			if err != nil {
				failed = err
			}
		})
	}
	running.Wait()
	lasted := time.Since(began)
	s.must(failed)
	used, err := processor(pid)
	s.must(err)
	n := len(took) * records
	return summarise(took), float64(n) / lasted.Seconds(), (used - before) / time.Duration(n)
}

// logs measures what logs take that answer when a record is durable: ours with both of its stores, over mutual TLS as sinks reach it, and
// the POSIX driver of Tessera, in this process, beside a bare write and fdatasync.
func (s *suite) logs() {
	bare := map[string]float64{}
	h := harness.New(s, harness.Options{})
	process := h.StartProcess(harness.Audit)
	took, err := disk(h.Path("state"), 4096, 300)
	s.must(err)
	fsync := summarise(took)
	s.row(row{"bare write and fdatasync, p50; p99", "", ms(fsync.p50) + "; " + ms(fsync.p99), "", "", ""})
	adder, hop := s.audits(h)
	s.row(row{"one question to audit over mutual TLS, p50", "", ms(hop), "", "", ""})
	tess := s.tessera()
	for _, l := range loads {
		took, rate, used := s.put(l.writers, l.records, os.Getpid(), tess)
		bare[fmt.Sprint(l)] = rate
		s.loaded("Tessera 1.0.4, POSIX", l.writers, l.records, took, rate, used, 0, fsync, 0)
	}
	s.loadAll("audit on SQLite", process.PID(), adder, bare, fsync, hop)
	s.verify(h)

	pg := postgres.Start(s)
	h = harness.New(s, harness.Options{})
	h.WriteFile("config/audit.yaml", h.ReadFile("config/audit.yaml")+fmt.Sprintf(
		"\ndatabase:\n  engine: postgres\n  addresses: [%q]\n  name: durward_audit\n  user: durward_audit\n  password_file: %s\n", pg.Socket(), pg.PasswordFile))
	process = h.StartProcess(harness.Audit)
	adder, hop = s.audits(h)
	s.loadAll("audit on PostgreSQL", process.PID(), adder, bare, fsync, hop)
}

func (s *suite) loadAll(name string, pid int, do add, bare map[string]float64, fsync sample, hop time.Duration) {
	for _, l := range loads {
		took, rate, used := s.put(l.writers, l.records, pid, do)
		s.loaded(name, l.writers, l.records, took, rate, used, bare[fmt.Sprint(l)], fsync, hop)
	}
}

// verify measures the proof of the whole log.
func (s *suite) verify(h *harness.Host) {
	var found struct {
		Records int `json:"records"`
	}
	began := time.Now()
	h.DurwardJSON(&found, "audit", "verify")
	took := time.Since(began) / time.Duration(found.Records)
	s.row(row{fmt.Sprintf("durward audit verify, %d records: a record", found.Records), "", fmt.Sprintf("%.1f µs", float64(took)/1000), "",
		fmt.Sprintf("<= %v", verifyMust), verdict(took <= verifyMust)})
}

// loaded reports one load; beside is Tessera's rate, 0 for its own. The processor time of Tessera, which runs here, has its clients' in it.
func (s *suite) loaded(name string, writers, records int, took sample, rate float64, used time.Duration, beside float64, fsync sample, hop time.Duration) {
	r := row{
		What:    fmt.Sprintf("%s, %d writers, %d at once: records/s; p50; p99; processor time of a record", name, writers, records),
		Reached: fmt.Sprintf("%.0f; %s; %s; %d µs", rate, ms(took.p50), ms(took.p99), used.Microseconds()),
	}
	if beside > 0 {
		r.Baseline, r.Ratio = fmt.Sprintf("%.0f", beside), fmt.Sprintf("%.2f x", rate/beside)
		switch {
		case writers == 1:
			most := time.Duration(appendMust*float64(fsync.p50)) + hop
			r.Aim, r.Met = "p50 <= "+ms(most), verdict(took.p50 <= most)
		case records > 1:
			r.Aim, r.Met = fmt.Sprintf(">= %d, and Tessera's", batchesMust), verdict(rate >= batchesMust && rate >= beside)
		}
	}
	s.row(r)
}

// audits returns what adds records to audit, each writer with an identity and a connection of its own, and how long a question takes.
func (s *suite) audits(h *harness.Host) (add, time.Duration) {
	type writer struct {
		log         auditv1.LogServiceClient
		next, known uint64
	}
	most := 0
	for _, l := range loads {
		most = max(most, l.writers)
	}
	writers := make([]*writer, most)
	for i := range writers {
		writers[i] = &writer{log: auditv1.NewLogServiceClient(h.DialAs(h.Identity(fmt.Sprintf("executor/w%d", i)), harness.Audit))}
		_, err := writers[i].log.GetHead(s.Context(), &auditv1.GetHeadRequest{})
		s.must(err)
	}
	var hops []time.Duration
	for range 300 {
		at := time.Now()
		_, err := writers[0].log.GetHead(s.Context(), &auditv1.GetHeadRequest{})
		s.must(err)
		hops = append(hops, time.Since(at))
	}
	return func(ctx context.Context, w, records int) error {
		me := writers[w]
		request := &auditv1.AppendRequest{KnownSize: me.known, Together: records > 1}
		for range records {
			me.next++
			request.Records = append(request.Records, record(w, me.next, records == 1))
		}
		answer, err := me.log.Append(ctx, request)
		if err != nil {
			return err
		}
		head, err := logproof.ReadCheckpoint(answer.GetCheckpoint())
		me.known = head.Size
		return err
	}, summarise(hops).p50
}

// record is what the executor writes of a read, or of a change before its effect.
func record(writer int, sequence uint64, intent bool) *auditv1.Record {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails (crypto/rand)
	r := &auditv1.Record{
		Sequence: sequence, Kind: auditv1.Kind_KIND_READ, Time: timestamppb.Now(), Status: auditv1.Status_STATUS_OK, Tool: "gpu_status", Tier: optionsv1.Tier_TIER_READ,
		RequestId: "r-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(id)), Body: &auditv1.Body{
			Principal: "client:bench", Session: fmt.Sprintf("s-abcdefghijklmnopqrstuvwx%02d", writer), Channel: callv1.Channel_CHANNEL_API, Source: "native",
			Arguments: "{}", Details: map[string]string{"caller": "spiffe://durward.local/gateway/main"},
		},
	}
	if intent {
		r.Kind, r.Tool, r.Tier, r.OperationId = auditv1.Kind_KIND_INTENT, "start_service", optionsv1.Tier_TIER_WRITE, hex.EncodeToString(id)
		r.Body.Arguments, r.Body.Summary = `{"service_id":"chat"}`, "Starts chat."
	}
	return r
}

// tessera returns what adds the same records to a log of Tessera's.
func (s *suite) tessera() add {
	secret, _, err := note.GenerateKey(nil, "durward.local/bench")
	s.must(err)
	signer, err := note.NewSigner(secret)
	s.must(err)
	driver, err := posix.New(s.Context(), posix.Config{Path: filepath.Join(s.TempDir(), "tessera")})
	s.must(err)
	appender, shutdown, _, err := tessera.NewAppender(s.Context(), driver, tessera.NewAppendOptions().
		WithCheckpointSigner(signer).WithBatching(1024, time.Millisecond).WithCheckpointInterval(100*time.Millisecond).WithPushback(1<<16))
	s.must(err)
	s.Cleanup(func() {
		if err := shutdown(context.Background()); err != nil && !strings.Contains(err.Error(), "context canceled") {
			s.Error(err)
		}
	})
	var mu sync.Mutex
	next := uint64(0)
	return func(ctx context.Context, writer, records int) error {
		futures := make([]tessera.IndexFuture, records)
		for i := range futures {
			mu.Lock()
			next++
			sequence := next
			mu.Unlock()
			b, err := proto.Marshal(record(writer, sequence, records == 1))
			if err != nil {
				return err
			}
			futures[i] = appender.Add(ctx, tessera.NewEntry(b))
		}
		for _, f := range futures {
			if _, err := f(); err != nil {
				return err
			}
		}
		return nil
	}
}
