package log_test

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/logproof"
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

// benchRead is a record of a read as an executor writes it.
func benchRead(sequence uint64) *auditv1.Record {
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	return &auditv1.Record{
		Sequence: sequence, Kind: auditv1.Kind_KIND_READ, Time: timestamppb.Now(), RequestId: "r-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(id)),
		Tool: "list_modes", Tier: optionsv1.Tier_TIER_READ, Status: auditv1.Status_STATUS_OK,
		Body: &auditv1.Body{
			Principal: "claude", Session: fmt.Sprintf("s-abcdefghijklmnopqrstuvwx%02d", sequence%16), Channel: callv1.Channel_CHANNEL_API, Source: "native", Arguments: "{}",
			DurationMs: uint32(sequence % 3), Details: map[string]string{"caller": "spiffe://durward.local/gateway/main"},
		},
	}
}

// BenchmarkReads writes records of reads in batches of so many, and reports the processor time of each and what it takes on disk.
func BenchmarkReads(b *testing.B) {
	for _, size := range []int{1, 16, 100, 512} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			r := newRig(b)
			sequence, known := uint64(0), uint64(0)
			began, filled := processor(b), r.db.Bytes()
			for b.Loop() {
				b.StopTimer()
				before := processor(b)
				records := make([]*auditv1.Record, size)
				for i := range records {
					sequence++
					records[i] = benchRead(sequence)
				}
				began += processor(b) - before
				b.StartTimer()
				if _, err := r.log.AppendTogether(b.Context(), writers[0], records, known); err != nil {
					b.Fatal(err)
				}
				known = sequence
			}
			b.ReportMetric(float64((processor(b)-began).Nanoseconds())/1000/float64(sequence), "cpu-µs/read")
			for more, err := true, error(nil); more; { // the write-ahead log has a length of its own
				if more, err = r.db.Wipe(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((float64(r.db.Bytes())-float64(filled))/float64(sequence), "bytes/read")
		})
	}
}

func processor(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkVerify reads a log of reads as an export does, over the wire's encoding, and replays it as a verifier does: the processor time of
// a record at both ends.
func BenchmarkVerify(b *testing.B) {
	r := newRig(b)
	const size = 20_000
	for sequence := uint64(0); sequence < size; {
		records := make([]*auditv1.Record, 100)
		for i := range records {
			sequence++
			records[i] = benchRead(sequence)
		}
		if _, err := r.log.AppendTogether(b.Context(), writers[0], records, 0); err != nil {
			b.Fatal(err)
		}
	}
	n, began := 0, processor(b)
	for b.Loop() {
		replay := &logproof.Replay{}
		for replay.Size() < size {
			entries, err := r.db.Bare(b.Context(), replay.Size(), size, 1024, 2<<20)
			if err != nil {
				b.Fatal(err)
			}
			page := &auditv1.ExportLogResponse{Entries: entries}
			logproof.Apart(page)
			raw, err := proto.Marshal(page)
			if err != nil {
				b.Fatal(err)
			}
			came := &auditv1.ExportLogResponse{}
			if err := proto.Unmarshal(raw, came); err != nil {
				b.Fatal(err)
			}
			for _, c := range logproof.CheckPage(came) {
				if err := replay.AddChecked(c); err != nil {
					b.Fatal(err)
				}
			}
		}
		_, signed := r.log.Newest()
		head, err := logproof.OpenCheckpoint(signed, r.keys)
		if err == nil {
			err = replay.Finish(head)
		}
		if err != nil {
			b.Fatal(err)
		}
		n += size
	}
	b.ReportMetric(float64((processor(b)-began).Nanoseconds())/1000/float64(n), "cpu-µs/record")
}
