package store_test

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/hex"
	"flag"
	"fmt"
	mrand "math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/logproof"
)

// searched is how many records the log of BenchmarkSearch has; the goals are for 1,000,000.
var searched = flag.Int("records", 20_000, "records in the log that is searched")

// BenchmarkSearch fills a log as a busy host would and asks each filter many times, at places all over it. It reports the 50th and 99th
// percentile; go test's own figure is the mean of all.
func BenchmarkSearch(b *testing.B) {
	db, err := store.Open(b.Context(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close() })
	random := mrand.New(mrand.NewPCG(1, 2)) // the same log each time
	began := time.Now()
	operations := fill(b, db, random, *searched)
	filled := time.Since(began)
	b.Logf("%d records in %v, %d bytes each", *searched, filled.Round(time.Second), db.Bytes()/uint64(*searched))
	any := func(list ...string) string { return list[random.IntN(len(list))] }
	day := time.Unix(1_700_000_000, 0)
	for _, c := range []struct {
		name string
		next func() store.Query
	}{
		{"none", func() store.Query { return store.Query{} }},
		{"request", func() store.Query { return store.Query{RequestID: fmt.Sprint("r-", random.IntN(*searched))} }},
		{"operation", func() store.Query { return store.Query{OperationID: operations[random.IntN(len(operations))]} }},
		{"session", func() store.Query { return store.Query{Session: fmt.Sprint("s-", random.IntN(1000))} }},
		{"principal", func() store.Query { return store.Query{Principal: fmt.Sprint("client-", random.IntN(20))} }},
		{"no such principal", func() store.Query { return store.Query{Principal: "nobody"} }},
		{"tool", func() store.Query {
			return store.Query{Tool: any("start_service", "list_services", "gpu_status", "nothing")}
		}},
		{"tier", func() store.Query { return store.Query{Tier: optionsv1.Tier(1 + random.IntN(3))} }},
		{"status", func() store.Query { return store.Query{Statuses: []auditv1.Status{auditv1.Status(1 + random.IntN(6))}} }},
		{"statuses", func() store.Query {
			return store.Query{Statuses: []auditv1.Status{auditv1.Status_STATUS_DENIED, auditv1.Status_STATUS_ERROR}}
		}},
		{"kind", func() store.Query {
			return store.Query{Kinds: []auditv1.Kind{[]auditv1.Kind{23, 24, 25, 28, 40, 41, 42, 61}[random.IntN(8)]}}
		}},
		{"kinds", func() store.Query {
			return store.Query{Kinds: []auditv1.Kind{auditv1.Kind_KIND_DENIED, auditv1.Kind_KIND_REFUSED}}
		}},
		{"channel", func() store.Query { return store.Query{Channel: callv1.Channel(1 + random.IntN(4))} }},
		{"role", func() store.Query { return store.Query{Writer: any("vault", "executor", "operator", "egress")} }},
		{"writer", func() store.Query { return store.Query{Writer: any(benchExecutor, benchVault, benchOperator)} }},
		{"hour", func() store.Query {
			from := day.Add(time.Duration(random.IntN(*searched)) * time.Second)
			return store.Query{Since: from, Until: from.Add(time.Hour)}
		}},
		{"tool and hour", func() store.Query {
			from := day.Add(time.Duration(random.IntN(*searched)) * time.Second)
			return store.Query{Tool: "start_service", Since: from, Until: from.Add(time.Hour)}
		}},
		{"a later page", func() store.Query {
			return store.Query{Principal: "client-1", Before: uint64(1 + random.IntN(*searched))}
		}},
		{"text, common", func() store.Query { return store.Query{Text: "chat"} }},
		{"text, rare", func() store.Query { return store.Query{Text: fmt.Sprint("word", random.IntN(*searched))} }},
		{"text, two words", func() store.Query { return store.Query{Text: "running " + fmt.Sprint("gpu", random.IntN(100))} }},
		{"text, none", func() store.Query { return store.Query{Text: "nosuchword chat"} }},
		{"text and tool", func() store.Query { return store.Query{Text: "chat", Tool: "start_service"} }},
	} {
		b.Run(c.name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				q := c.next()
				began := time.Now()
				if _, err := db.Search(context.Background(), q, 50, 2<<20); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}

const (
	benchExecutor = "spiffe://durward.local/executor/local"
	benchVault    = "spiffe://durward.local/vault/main"
	benchOperator = "spiffe://durward.local/operator/ada"
)

// fill writes records, 512 a batch, a second apart: nine reads of ten, one change of six records of a hundred, and a few others. The
// tree's hashes are none: searching reads no tree. It returns the operations' ids.
func fill(b *testing.B, db *store.Store, random *mrand.Rand, n int) (operations []string) {
	salt := make([]byte, logproof.SaltSize)
	last := map[string]uint64{}
	batch := store.Batch{}
	id := func() string {
		raw := make([]byte, 16)
		_, _ = rand.Read(raw)
		return hex.EncodeToString(raw)
	}
	operation, step := id(), 0
	for i := range n {
		r := &auditv1.Record{Time: timestamppb.New(time.Unix(1_700_000_000+int64(i), 0)), RequestId: fmt.Sprint("r-", i), Body: &auditv1.Body{
			Principal: fmt.Sprint("client-", random.IntN(20)), Session: fmt.Sprint("s-", random.IntN(1000)), Channel: callv1.Channel(1 + random.IntN(3)), Source: "native",
		}}
		who := benchExecutor
		switch {
		case i%16 < 6:
			if step = i % 16; step == 0 {
				operation = id()
				operations = append(operations, operation)
			}
			who = benchVault
			if step > 3 {
				who = benchExecutor
			}
			r.Kind, r.Tool, r.OperationId = []auditv1.Kind{23, 24, 27, 28, 40, 41}[step], "start_service", operation
			r.Tier, r.Status = optionsv1.Tier(2+i%2), []auditv1.Status{2, 1, 1, 1, 2, 1}[step]
			r.Body.Arguments, r.Body.Summary = fmt.Sprintf(`{"service_id":"chat-%d"}`, random.IntN(50)), fmt.Sprint("chat is running on gpu", random.IntN(100), " word", i)
			if i%97 == 0 {
				r.Kind, r.Status, who = auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, benchVault
			}
		case i%5000 == 4999:
			r.Kind, who = auditv1.Kind_KIND_NOTE, benchOperator
		default:
			r.Kind, r.Tier, r.Status, r.Tool = auditv1.Kind_KIND_READ, optionsv1.Tier_TIER_READ, auditv1.Status_STATUS_OK, []string{"list_services", "gpu_status"}[i%2]
			r.Body.Arguments = "{}"
		}
		last[who]++
		r.Sequence = last[who]
		batch.Entries = append(batch.Entries, &auditv1.Entry{
			Index: uint64(i), Writer: who, Record: r, LoggedAt: r.Time, Salt: salt, BodyCommitment: salt, LeafHash: salt,
		})
		if len(batch.Entries) == 512 || i == n-1 {
			batch.Checkpoint = fmt.Append(nil, i)
			if err := db.Commit(b.Context(), batch); err != nil {
				b.Fatal(err)
			}
			batch.Entries = nil
		}
	}
	return operations
}

// BenchmarkBytes reports what a record takes on disk, all told, by what it is and by how many came at once.
func BenchmarkBytes(b *testing.B) {
	id := func(prefix string) string {
		raw := make([]byte, 16)
		_, _ = rand.Read(raw)
		return prefix + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(raw))
	}
	sessions := make([]string, 16)
	for i := range sessions {
		sessions[i] = id("s-")
	}
	body := func(i int) *auditv1.Body {
		return &auditv1.Body{
			Principal: "claude", Session: sessions[i%len(sessions)], Channel: callv1.Channel_CHANNEL_API, Source: "native", Arguments: "{}", DurationMs: uint32(i % 3),
			Details: map[string]string{"caller": "spiffe://durward.local/gateway/main"},
		}
	}
	read := func(i int) *auditv1.Record {
		return &auditv1.Record{Kind: auditv1.Kind_KIND_READ, RequestId: id("r-"), Tool: "list_modes", Tier: optionsv1.Tier_TIER_READ, Status: auditv1.Status_STATUS_OK, Body: body(i)}
	}
	arguments := func(i int) *auditv1.Record {
		r := read(i)
		r.Body.Arguments, r.Body.Summary = fmt.Sprintf(`{"lines":100,"service_id":"chat-%d"}`, i%40), fmt.Sprintf("%d lines of chat-%d", i%101, i%40)
		return r
	}
	change := func(i int) *auditv1.Record {
		r := arguments(i)
		r.Kind, r.Tool, r.Tier, r.OperationId = []auditv1.Kind{23, 24, 27, 28, 40, 41}[i%6], "start_service", optionsv1.Tier_TIER_WRITE, fmt.Sprintf("%032x", i/6*0x9e3779b9)
		return r
	}
	permit := func(i int) *auditv1.Record {
		return &auditv1.Record{Kind: auditv1.Kind_KIND_PERMIT_ISSUED, Status: auditv1.Status_STATUS_OK, Body: body(i)}
	}
	for _, c := range []struct {
		name   string
		record func(i int) *auditv1.Record
		group  int
	}{
		{"reads, 100 at once", read, 100}, {"reads, 8 at once", read, 8}, {"reads, one at once", read, 1}, {"reads with arguments, 100 at once", arguments, 100},
		{"a change's records, one at once", change, 1}, {"permits, one at once", permit, 1},
	} {
		b.Run(c.name, func(b *testing.B) {
			db, err := store.Open(b.Context(), b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			tr := &tree{t: b, db: db, random: true}
			size := func() uint64 {
				for more, err := true, error(nil); more; { // the write-ahead log has a length of its own
					if more, err = db.Wipe(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
				return db.Bytes()
			}
			began, n := size(), 0
			for b.Loop() {
				records := make([]*auditv1.Record, c.group)
				for i := range records {
					records[i] = c.record(n)
					records[i].Time = timestamppb.New(time.Unix(1_700_000_000, 0).Add(time.Duration(n)*97*time.Millisecond + time.Duration(mrand.IntN(1e6))))
					n++
				}
				batch := tr.batch(benchExecutor, records...)
				batch.Checkpoint = make([]byte, 200) // about what a signed one takes
				if err := db.Commit(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(size()-began)/float64(n), "bytes/record")
		})
	}
}
