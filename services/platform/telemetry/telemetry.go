package telemetry

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/telemetry/span"
)

// Config is what Open needs.
type Config struct {
	// Service is the process's name, "vault".
	Service, Version string
	Settings         config.Telemetry
	// Lifetime is from when to when the process's certificate is valid, as of now.
	Lifetime func() (from, until time.Time)
	// Methods are the MCP methods that spans may name, at the gateway.
	Methods []string
}

// Telemetry holds a process's metrics and traces. It is safe for concurrent use.
type Telemetry struct {
	// Metrics is where a process registers its own, all named durward_SERVICE_….
	Metrics *prometheus.Registry

	cfg      Config
	traces   *traces
	provider *sdktrace.TracerProvider
	ratio    float64
	appends  prometheus.Histogram
}

// Open begins to gather. The caller calls Close.
func Open(cfg Config) (*Telemetry, error) {
	if cfg.Service == "" || cfg.Lifetime == nil {
		return nil, errors.New("telemetry: a service's name and its certificate's end are required")
	}
	t := &Telemetry{Metrics: prometheus.NewRegistry(), cfg: cfg, ratio: cfg.Settings.Ratio()}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "durward_build_info", Help: "1, with the program's name and version.",
		ConstLabels: prometheus.Labels{"service": cfg.Service, "version": cfg.Version},
	})
	build.Set(1)
	t.appends = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "durward_recorder_append_duration_seconds", Help: "How long the audit log takes to take a batch of this process's records, as seen from here.",
		Buckets: Latency,
	})
	t.Metrics.MustRegister(build, t.appends)
	// The package that succeeds these two links database/sql, which the gateway must not have.
	t.Metrics.MustRegister(
		prometheus.NewGoCollector(),                                       //nolint:staticcheck // see above
		prometheus.NewProcessCollector(prometheus.ProcessCollectorOpts{}), //nolint:staticcheck // see above
	)
	t.Gauge("durward_certificate_start_timestamp_seconds", "When this process's certificate became valid, in Unix time.",
		func() float64 { from, _ := cfg.Lifetime(); return float64(from.Unix()) })
	t.Gauge("durward_certificate_expiry_timestamp_seconds", "When this process's certificate ends, in Unix time.",
		func() float64 { _, until := cfg.Lifetime(); return float64(until.Unix()) })
	var err error
	if t.traces, err = newTraces(newVocabulary(cfg.Methods), cfg.Settings.OTLP, t.Metrics); err != nil {
		return nil, err
	}
	t.provider = sdktrace.NewTracerProvider(
		// Whoever asks for a span has decided that there is one: Sample, or the caller's process.
		sdktrace.WithSampler(sdktrace.AlwaysSample()),
		sdktrace.WithSpanProcessor(t.traces),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "durward-"+cfg.Service), attribute.String("service.version", cfg.Version))),
		sdktrace.WithRawSpanLimits(sdktrace.SpanLimits{
			AttributeValueLengthLimit: 128, AttributeCountLimit: 16, LinkCountLimit: 64,
		}),
	)
	return t, nil
}

// Latency are the buckets of histograms of durations, in seconds: from a read on a warm connection to what waits for a
// human.
var Latency = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 15, 45}

// Gauge adds a metric whose value is asked for at each scrape.
func (t *Telemetry) Gauge(name, help string, value func() float64) {
	t.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
}

// Halted adds the metric that says whether this process is halted.
func (t *Telemetry) Halted(halted func() bool) {
	t.Gauge("durward_halted", "1 while changes are halted in this process, by an operator or by itself, else 0.", func() float64 { return truth(halted()) })
}

// Recorder is what is shown of a process's recorder; *recorder.Recorder is one.
type Recorder interface {
	// Depth and Capacity are records in the spool and how many fit.
	Depth() int
	Capacity() int
	// Queued is how many records are on their way, spooled or waited for.
	Queued() int
	// Reachable reports whether audit's newest answer came and was true.
	Reachable() bool
}

// WatchRecorder adds the metrics of the process's recorder.
func (t *Telemetry) WatchRecorder(r Recorder) {
	t.Gauge("durward_recorder_spool_records", "Records that wait in this process's spool for the audit log.", func() float64 { return float64(r.Depth()) })
	t.Gauge("durward_recorder_spool_capacity_records", "How many records the spool takes before reads are refused.", func() float64 { return float64(r.Capacity()) })
	t.Gauge("durward_recorder_queue_records", "Records on their way to the audit log, spooled or waited for.", func() float64 { return float64(r.Queued()) })
	t.Gauge("durward_recorder_audit_reachable", "1 while the audit log's newest answer came and stood up to verification, else 0.", func() float64 { return truth(r.Reachable()) })
}

// WatchDisk adds the metric of the disk of the process's state; full is reserve.Reserve's InUse.
func (t *Telemetry) WatchDisk(full func() bool) {
	t.Gauge("durward_disk_full", "1 while the disk of the process's state is full and only what takes load off the host goes on, else 0.", func() float64 { return truth(full()) })
}

// ObserveAppend notes how long the audit log took for one batch; it is the recorder's OnAppend.
func (t *Telemetry) ObserveAppend(d time.Duration) { t.appends.Observe(d.Seconds()) }

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Tracer makes spans. Whoever begins a trace asks Sample first.
func (t *Telemetry) Tracer() trace.Tracer { return span.Tracer(t.provider) }

// Sample draws whether a request is traced that changes nothing and that no process of ours traces already. What the client
// says of its own trace has no part in it.
func (t *Telemetry) Sample() bool {
	return t.ratio > 0 && rand.Float64() < t.ratio //nolint:gosec // who foresees the draw gains a look at what he does himself
}

// metricsTimeout and metricsAtOnce bound the scrapes.
const (
	metricsTimeout = time.Second
	metricsAtOnce  = 2
)

// Serve answers GET /health, /metrics and /traces on lis until ctx ends; see ServeHealth. systemd is told that the process is up: all that it
// listens on has to be open by then.
func (t *Telemetry) Serve(ctx context.Context, lis net.Listener, ready func() error) error {
	if err := tellSystemd(); err != nil {
		return errors.Join(err, lis.Close())
	}
	return ServeHealth(ctx, lis, t.Handler(ready))
}

// Handler is Serve's handler.
func (t *Telemetry) Handler(ready func() error) http.Handler {
	return HealthHandler(t.cfg.Service, t.cfg.Version, ready, map[string]http.Handler{
		"/metrics": promhttp.HandlerFor(t.Metrics, promhttp.HandlerOpts{
			ErrorHandling: promhttp.ContinueOnError, DisableCompression: true, MaxRequestsInFlight: metricsAtOnce, Timeout: metricsTimeout,
		}),
		"/traces": t.traces.handler(t.cfg.Service),
	})
}

// closing is how long the last spans may take to reach the collector.
const closing = time.Second

// Close sends the spans that wait, for at most a second; what is not delivered then is lost.
func (t *Telemetry) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // it has nothing to say
}
