package recorder

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/platformtest"
)

// BenchmarkSpool spools records of reads as a sink does, and reports the processor time of each: as fast as they get into the log, and a millisecond
// apart as 1000 a second, between which the process sleeps; beside that the same loop without a recorder. What the log in memory takes for its
// part is measured by itself and taken off.
func BenchmarkSpool(b *testing.B) {
	for _, c := range []struct {
		name   string
		pause  time.Duration // after eight reads
		spools bool
	}{{"full", 0, true}, {"thousand", 8 * time.Millisecond, true}, {"without", 8 * time.Millisecond, false}} {
		b.Run(c.name, func(b *testing.B) { spool(b, c.pause, c.spools) })
	}
}

func spool(b *testing.B, pause time.Duration, spools bool) {
	a := &timed{AuditLog: platformtest.NewAuditLog(b, origin, writer)}
	r := startWith(b, a, a.AuditLog, newStore())
	if _, err := r.Record(b.Context(), record("r-0")); err != nil {
		b.Fatal(err)
	}
	a.took = 0
	began := processor(b)
	n := 0
	for b.Loop() {
		id := make([]byte, 16)
		_, _ = rand.Read(id)
		read := &auditv1.Record{
			Kind: auditv1.Kind_KIND_READ, Time: timestamppb.Now(), RequestId: "r-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(id)),
			Tool: "list_modes", Tier: optionsv1.Tier_TIER_READ, Status: auditv1.Status_STATUS_OK,
			Body: &auditv1.Body{
				Principal: "claude", Session: fmt.Sprintf("s-abcdefghijklmnopqrstuvwx%02d", n%16+20), Channel: callv1.Channel_CHANNEL_API, Source: "native", Arguments: "{}",
				DurationMs: uint32(n % 3), Details: map[string]string{"caller": "spiffe://durward.local/gateway/main"},
			},
		}
		for r.Queued() > maxBatch {
			time.Sleep(time.Millisecond) // nothing says when a batch is in the log
		}
		if spools {
			must(b, r.Spool(b.Context(), read))
		}
		if n++; n%8 == 0 && pause > 0 {
			time.Sleep(pause) // reads come one by one
		}
	}
	for r.Queued() > 0 {
		time.Sleep(time.Millisecond) // nothing says when the last batch is in the log
	}
	used := processor(b) - began
	b.ReportMetric(float64((used-a.took).Nanoseconds())/1000/float64(n), "cpu-µs/read")
	b.ReportMetric(float64(a.took.Nanoseconds())/1000/float64(n), "log-µs/read")
	stop(b, r)
}

// BenchmarkTake takes records of reads in: copied, redacted, held to the contract, measured.
func BenchmarkTake(b *testing.B) {
	a := platformtest.NewAuditLog(b, origin, writer)
	r := startWith(b, a, a, newStore())
	read := &auditv1.Record{
		Kind: auditv1.Kind_KIND_READ, Time: timestamppb.Now(), RequestId: "r-" + strings.Repeat("a", 26), Tool: "list_modes", Tier: optionsv1.Tier_TIER_READ, Status: auditv1.Status_STATUS_OK,
		Body: &auditv1.Body{
			Principal: "claude", Session: "s-" + strings.Repeat("b", 26), Channel: callv1.Channel_CHANNEL_API, Source: "native", Arguments: "{}",
			DurationMs: 2, Details: map[string]string{"caller": "spiffe://durward.local/gateway/main"},
		},
	}
	for b.Loop() {
		if _, err := r.newItem(b.Context(), read); err != nil {
			b.Fatal(err)
		}
	}
	stop(b, r)
}

// timed is a log that knows how long it worked, and answers over the wire's encoding.
type timed struct {
	*platformtest.AuditLog
	took time.Duration
}

func (t *timed) Append(ctx context.Context, req *auditv1.AppendRequest, opts ...grpc.CallOption) (*auditv1.AppendResponse, error) {
	raw, err := proto.Marshal(req)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	defer func() { t.took += time.Since(began) }()
	own := &auditv1.AppendRequest{}
	if err := proto.Unmarshal(raw, own); err != nil {
		return nil, err
	}
	return t.AuditLog.Append(ctx, own, opts...)
}

func processor(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
