package standing_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
)

// BenchmarkRedeem redeems grants of operations that run unattended, by a scope and in dangerous mode: the vault's own work, one
// durable commit each, without the network and without the log's answer.
func BenchmarkRedeem(b *testing.B) {
	for _, kind := range []string{"unattended", "scope", "dangerous"} {
		b.Run(kind, func(b *testing.B) {
			w := newWorld(b)
			live := w.open(bound)
			if kind == "dangerous" {
				w.enable(live)
			}
			var took []time.Duration
			left := 0
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				r := w.request(live, "start_service", fmt.Sprintf("s%d", i))
				var h *callv1.HumanStatement
				switch kind {
				case "scope":
					if left == 0 {
						_, err := w.book.Revoke(context.Background(), "", "", "", "alice")
						w.must(err)
						w.granted(live, 1000)
						left = 1000
					}
					left--
					h, _, _ = w.book.Use(&r.Operation)
				case "dangerous":
					h, _, _ = w.book.UseDangerous(&r.Operation)
					if h == nil {
						w.enable(live)
						h, _, _ = w.book.UseDangerous(&r.Operation)
					}
				}
				o, _, err := w.queue.Run(context.Background(), r, h, kind == "dangerous")
				w.must(err)
				signed, err := w.queue.Issue(context.Background(), o)
				w.must(err)
				begin := time.Now()
				b.StartTimer()
				_, err = w.queue.Redeem(context.Background(), signed, w.sink)
				b.StopTimer()
				took = append(took, time.Since(begin))
				w.must(err)
				w.must(w.queue.Settle(context.Background(), o.ID, 1, true, w.sink))
				b.StartTimer()
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			var all time.Duration
			for _, one := range took {
				all += one
			}
			b.ReportMetric(float64(len(took))/all.Seconds(), "redeemed/s")
		})
	}
}
