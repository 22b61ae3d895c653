package log_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

func benchRecord(sequence uint64) *auditv1.Record {
	return &auditv1.Record{
		Sequence: sequence, Kind: auditv1.Kind_KIND_INTENT, Time: timestamppb.Now(), RequestId: "r-abcdefghijklmnopqrstuvwxyz",
		OperationId: "0123456789abcdef0123456789abcdef", Tool: "start_service",
		Body: &auditv1.Body{Principal: "claude", Session: "s-1", Arguments: `{"service":"demo-chat"}`, Summary: "starts demo-chat"},
	}
}

// BenchmarkAppend writes one record after the other, and before each the same bytes to a bare file with write and fdatasync
// on the same disk: both medians, and how many times the bare one an append takes.
func BenchmarkAppend(b *testing.B) {
	r := newRig(b)
	bare, err := os.Create(filepath.Join(r.dir, "bare"))
	if err != nil {
		b.Fatal(err)
	}
	defer bare.Close()
	var appends, writes []time.Duration
	known := uint64(0)
	for sequence := uint64(1); b.Loop(); sequence++ {
		record := benchRecord(sequence)
		started := time.Now()
		answer, err := r.log.Append(b.Context(), writers[0], []*auditv1.Record{record}, known)
		if err != nil {
			b.Fatal(err)
		}
		appends = append(appends, time.Since(started))
		known = sequence

		b.StopTimer()
		bytes, err := proto.Marshal(&auditv1.Entry{Record: record, Leaf: answer.GetCheckpoint(), Salt: answer.GetPlacements()[0].GetSalt()})
		if err != nil {
			b.Fatal(err)
		}
		started = time.Now()
		if _, err := bare.Write(bytes); err != nil {
			b.Fatal(err)
		}
		if err := syscall.Fdatasync(int(bare.Fd())); err != nil {
			b.Fatal(err)
		}
		writes = append(writes, time.Since(started))
		b.StartTimer()
	}
	appended, written := median(appends), median(writes)
	b.ReportMetric(float64(appended.Microseconds()), "p50-µs")
	b.ReportMetric(float64(written.Microseconds()), "bare-p50-µs")
	b.ReportMetric(float64(appended)/float64(written), "times-bare")
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// BenchmarkAppendAtOnce is the same from 16 writers at a time, who share transactions.
func BenchmarkAppendAtOnce(b *testing.B) {
	r := newRig(b)
	var writer atomic.Int64
	b.SetParallelism(8)
	started := time.Now()
	b.RunParallel(func(pb *testing.PB) {
		me := fmt.Sprintf("spiffe://durward.local/operator/o%d", writer.Add(1))
		for sequence := uint64(1); pb.Next(); sequence++ {
			if _, err := r.log.Append(b.Context(), me, []*auditv1.Record{benchRecord(sequence)}, 0); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/time.Since(started).Seconds(), "records/s")
}

// BenchmarkAppendBatches appends 64 records at a time, from 16 writers at a time.
func BenchmarkAppendBatches(b *testing.B) {
	const batch = 64
	r := newRig(b)
	var writer atomic.Int64
	b.SetParallelism(8)
	started := time.Now()
	b.RunParallel(func(pb *testing.PB) {
		me := fmt.Sprintf("spiffe://durward.local/operator/o%d", writer.Add(1))
		for sequence := uint64(1); pb.Next(); {
			var records []*auditv1.Record
			for range batch {
				records = append(records, benchRecord(sequence))
				sequence++
			}
			if _, err := r.log.Append(b.Context(), me, records, 0); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)*batch/time.Since(started).Seconds(), "records/s")
}
