// Package metrics is what audit shows of its work on its loopback listener. Its one label that comes from records is their
// kind.
package metrics

import (
	"context"
	"math"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/telemetry"
	"durward.internal/services/platform/telemetry/span"
)

// patience bounds what a scrape asks of the database. It is well below the scrape's own, so that what needs no database is shown while one hangs.
const patience = 250 * time.Millisecond

// Log is what is shown of the log.
type Log interface {
	Size() uint64
	Ready() error
	// Follows reports whether another process writes it.
	Follows() bool
	// Waiting is how many requests wait to be written, and how many may.
	Waiting() (now, most int)
}

// Store is what is shown of the disk.
type Store interface {
	// Folder is where the log lies, "" if another process knows; Bytes is what it takes.
	Folder() string
	Bytes() uint64
	// Growth is by how much it grows in a day.
	Growth(ctx context.Context, now time.Time) (store.Growth, error)
}

// Metrics counts appends. It is safe for concurrent use.
type Metrics struct {
	appends *prometheus.HistogramVec
	records *prometheus.CounterVec
}

// prompt is a value, or the one of before where it does not come within patience.
func prompt(value func() float64) func() float64 {
	var last atomic.Uint64
	return func() float64 {
		came := make(chan struct{})
		go func() {
			last.Store(math.Float64bits(value()))
			close(came)
		}()
		select {
		case <-came:
		case <-time.After(patience):
		}
		return math.Float64frombits(last.Load())
	}
}

// New registers the metrics.
func New(registry prometheus.Registerer, log Log, store Store) *Metrics {
	m := &Metrics{
		appends: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "durward_audit_append_duration_seconds", Help: "How long appends took until they were on disk, by status: ok or error.",
			Buckets: telemetry.Latency,
		}, []string{"status"}),
		records: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "durward_audit_records_total", Help: "Records taken since the start, by kind. A batch that is sent again counts again.",
		}, []string{"kind"}),
	}
	m.appends.WithLabelValues(span.OK)
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	registry.MustRegister(m.appends, m.records,
		gauge("durward_audit_log_records", "Records that the log holds.", func() float64 { return float64(log.Size()) }),
		gauge("durward_audit_requests_waiting", "Requests that wait for the one that writes.", func() float64 {
			now, _ := log.Waiting()
			return float64(now)
		}),
		gauge("durward_audit_requests_waiting_limit", "How many may wait before further ones are held back.", func() float64 {
			_, most := log.Waiting()
			return float64(most)
		}),
		gauge("durward_audit_log_bytes", "What the log takes on disk.", prompt(func() float64 { return float64(store.Bytes()) })),
		gauge("durward_audit_log_growth_bytes_per_day", "By how much the log grows in a day, as it did in the last week, or since it began; 0: too young to tell.", func() float64 {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			growth, err := store.Growth(ctx, time.Now())
			if err != nil {
				return 0
			}
			return growth.Bytes
		}),
		gauge("durward_audit_log_writable", "1 while the log's last transaction went well, else 0.", func() float64 {
			if log.Ready() != nil {
				return 0
			}
			return 1
		}),
		gauge("durward_audit_log_leads", "1 while this process writes the log, 0 while it follows one that does.", func() float64 {
			if log.Follows() {
				return 0
			}
			return 1
		}),
	)
	if store.Folder() == "" {
		return m
	}
	registry.MustRegister(
		gauge("durward_audit_disk_free_bytes", "Space that is left where the log lies.", func() float64 {
			disk := statfs(store.Folder())
			return float64(disk.Bavail) * float64(disk.Bsize)
		}),
		gauge("durward_audit_disk_bytes", "Space in all where the log lies.", func() float64 {
			disk := statfs(store.Folder())
			return float64(disk.Blocks) * float64(disk.Bsize)
		}),
	)
	return m
}

// statfs describes a folder's file system; one that cannot be asked has no space.
func statfs(folder string) syscall.Statfs_t {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(folder, &disk); err != nil {
		return syscall.Statfs_t{}
	}
	return disk
}

// Unary returns the interceptor that measures appends.
func (m *Metrics) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		batch, ok := request.(*auditv1.AppendRequest)
		if !ok {
			return handler(ctx, request)
		}
		began := time.Now()
		response, err := handler(ctx, request)
		took := time.Since(began).Seconds()
		if err != nil {
			m.appends.WithLabelValues("error").Observe(took)
			return response, err
		}
		m.appends.WithLabelValues(span.OK).Observe(took)
		for _, r := range batch.GetRecords() {
			m.records.WithLabelValues(strings.ToLower(strings.TrimPrefix(r.GetKind().String(), "KIND_"))).Inc()
		}
		return response, err
	}
}
