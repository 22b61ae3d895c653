package server_test

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// BenchmarkAppendOverTLS appends records of reads over mutual TLS, as sinks do: so many writers at once, each with an identity and a
// connection of its own, and so many records at a time, with one proof for them all or a receipt for each. It reports the processor time of
// a record at both ends, without the verification of answers.
func BenchmarkAppendOverTLS(b *testing.B) {
	for _, load := range []struct {
		writers, records int
		together         bool
	}{{1, 1, false}, {64, 64, false}, {64, 64, true}, {64, 512, true}} {
		b.Run(fmt.Sprintf("writers=%d/records=%d/together=%t", load.writers, load.records, load.together), func(b *testing.B) {
			h := newHouse(b)
			clients := make([]auditv1.LogServiceClient, load.writers)
			for i := range clients {
				clients[i] = auditv1.NewLogServiceClient(h.as(optionsv1.Role_ROLE_EXECUTOR, fmt.Sprintf("w%d", i)))
				if _, err := clients[i].GetHead(b.Context(), &auditv1.GetHeadRequest{}); err != nil {
					b.Fatal(err)
				}
			}
			var left atomic.Int64
			left.Store(int64(b.N))
			var running sync.WaitGroup
			b.ResetTimer()
			before := processor(b)
			for i, client := range clients {
				running.Go(func() {
					for sequence := uint64(0); left.Add(-1) >= 0; {
						request := &auditv1.AppendRequest{Together: load.together}
						for range load.records {
							sequence++
							request.Records = append(request.Records, readOf(i, sequence))
						}
						if _, err := client.Append(b.Context(), request); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			running.Wait()
			records := float64(b.N * load.records)
			b.ReportMetric(records/b.Elapsed().Seconds(), "records/s")
			b.ReportMetric(float64((processor(b)-before).Nanoseconds())/1000/records, "cpu-µs/record")
		})
	}
}

// readOf is a record of a read as an executor writes it.
func readOf(writer int, sequence uint64) *auditv1.Record {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails (crypto/rand)
	return &auditv1.Record{
		Sequence: sequence, Kind: auditv1.Kind_KIND_READ, Time: timestamppb.Now(), Tool: "gpu_status", Tier: optionsv1.Tier_TIER_READ, Status: auditv1.Status_STATUS_OK,
		RequestId: "r-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(id)),
		Body: &auditv1.Body{
			Principal: "client:bench", Session: fmt.Sprintf("s-abcdefghijklmnopqrstuvwx%02d", writer), Channel: callv1.Channel_CHANNEL_API, Source: "native", Arguments: "{}",
			DurationMs: uint32(sequence % 3), Details: map[string]string{"caller": "spiffe://durward.local/gateway/main"},
		},
	}
}

func processor(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
