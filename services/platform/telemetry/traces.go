package telemetry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"durward.internal/services/platform/config"
)

// Bounds of what is kept and sent.
const (
	// ringSize is how many of the newest spans GET /traces shows.
	ringSize = 512
	// queueSize is how many spans may wait for the collector; what comes on top is dropped.
	queueSize = 2048
	batchSize = 256
	// sendEvery is how long a span waits for company.
	sendEvery = time.Second
	// sendTimeout bounds one request to the collector.
	sendTimeout = 5 * time.Second
	// tracesAtOnce is how many GET /traces are answered at a time.
	tracesAtOnce = 2
)

// traces is where spans go when they have ended: into the ring, and to the collector where there is one. It implements
// sdktrace.SpanProcessor and is never in the way of whoever ends a span.
type traces struct {
	words *vocabulary
	ring  ring
	queue chan sdktrace.ReadOnlySpan // nil without a collector
	sink  sdktrace.SpanExporter
	stop  context.CancelFunc
	done  chan struct{}
	// ended, sent, dropped and failed count spans.
	ended, sent, dropped, failed prometheus.Counter
}

// newTraces begins to send, if a collector is configured.
func newTraces(words *vocabulary, cfg config.OTLP, metrics prometheus.Registerer) (*traces, error) {
	spans := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "durward_trace_spans_total",
		Help: "Spans by what became of them: ended, and of those sent to a collector, dropped since too many waited, failed to be sent.",
	}, []string{"result"})
	metrics.MustRegister(spans)
	t := &traces{
		words: words, ended: spans.WithLabelValues("ended"), sent: spans.WithLabelValues("sent"),
		dropped: spans.WithLabelValues("dropped"), failed: spans.WithLabelValues("failed"),
		stop: func() {}, done: make(chan struct{}),
	}
	if cfg.Endpoint == "" {
		close(t.done)
		return t, nil
	}
	conn, err := dialCollector(cfg)
	if err != nil {
		return nil, err
	}
	t.sink = otlptrace.NewUnstarted(collector{conn})
	t.queue = make(chan sdktrace.ReadOnlySpan, queueSize)
	ctx, stop := context.WithCancel(context.Background())
	t.stop = stop
	go t.send(ctx)
	return t, nil
}

// OnStart implements sdktrace.SpanProcessor.
func (*traces) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor. It does not wait.
func (t *traces) OnEnd(s sdktrace.ReadOnlySpan) {
	t.ended.Inc()
	p := t.words.clean(s)
	t.ring.add(p)
	if t.queue == nil {
		return
	}
	select {
	case t.queue <- p:
	default:
		t.dropped.Inc()
	}
}

// ForceFlush implements sdktrace.SpanProcessor; nothing needs it.
func (*traces) ForceFlush(context.Context) error { return nil }

// Shutdown implements sdktrace.SpanProcessor: it sends what waits, for as long as ctx lasts.
func (t *traces) Shutdown(ctx context.Context) error {
	t.stop()
	select {
	case <-t.done:
	case <-ctx.Done():
	}
	return nil
}

// send is the goroutine that talks to the collector.
func (t *traces) send(ctx context.Context) {
	defer close(t.done)
	tick := time.NewTicker(sendEvery)
	defer tick.Stop()
	var batch []sdktrace.ReadOnlySpan
	for {
		select {
		case s := <-t.queue:
			if batch = append(batch, s); len(batch) < batchSize {
				continue
			}
		case <-tick.C:
		case <-ctx.Done():
			for len(t.queue) > 0 {
				batch = append(batch, <-t.queue)
			}
			t.export(batch)
			return
		}
		t.export(batch)
		batch = batch[:0]
	}
}

func (t *traces) export(batch []sdktrace.ReadOnlySpan) {
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
	defer cancel()
	result := t.sent
	if t.sink.ExportSpans(ctx, batch) != nil {
		result = t.failed // counted, and said nowhere else: a collector that is away concerns nobody's request
	}
	result.Add(float64(len(batch)))
}

// collector speaks OTLP over gRPC. The exporter that comes with the library would do so too, and link an HTTP gateway and
// settings from the environment into every process that holds a key; this is all of it that is needed.
type collector struct{ conn *grpc.ClientConn }

// Start implements otlptrace.Client.
func (collector) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (c collector) Stop(context.Context) error { return c.conn.Close() }

// UploadTraces implements otlptrace.Client. TracesData is ExportTraceServiceRequest under another name: OTLP keeps the two
// alike on the wire. The answer's partial success is not read.
func (c collector) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	return c.conn.Invoke(ctx, "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
		&tracepb.TracesData{ResourceSpans: spans}, new(emptypb.Empty))
}

// dialCollector returns a connection that is made when the first span is sent.
func dialCollector(cfg config.OTLP) (*grpc.ClientConn, error) {
	secure := insecure.NewCredentials()
	if cfg.CA != "" {
		pem, err := os.ReadFile(cfg.CA)
		if err != nil {
			return nil, fmt.Errorf("telemetry.otlp.ca: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, errors.New("telemetry.otlp.ca: the file holds no certificate")
		}
		secure = credentials.NewTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12})
	}
	target := "passthrough:///" + cfg.Endpoint
	if path, ok := cfg.UnixSocket(); ok {
		target = "unix://" + path
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(secure), grpc.WithNoProxy(), grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, fmt.Errorf("telemetry.otlp.endpoint: %w", err)
	}
	return conn, nil
}

// ring holds the newest spans. Its zero value is ready.
type ring struct {
	mu    sync.Mutex
	spans [ringSize]public
	next  int
}

func (r *ring) add(s public) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spans[r.next%ringSize] = s
	r.next++
}

// newest returns what is kept, oldest first.
func (r *ring) newest() []public {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []public
	for i := max(r.next-ringSize, 0); i < r.next; i++ {
		out = append(out, r.spans[i%ringSize])
	}
	return out
}

// Span is a span as GET /traces shows it.
type Span struct {
	TraceID string `json:"trace_id"`
	SpanID  string `json:"span_id"`
	// ParentID is empty for a trace's first span.
	ParentID string `json:"parent_id,omitempty"`
	Name     string `json:"name"`
	// Kind is server, client or internal.
	Kind       string            `json:"kind"`
	Start      time.Time         `json:"start"`
	DurationUS int64             `json:"duration_us"`
	Attributes map[string]string `json:"attributes,omitempty"`
	// Links are the spans, as TRACE/SPAN, that this one worked for beside its parent.
	Links []string `json:"links,omitempty"`
}

// Traces is the answer to GET /traces: the newest spans, in the order in which they ended.
type Traces struct {
	Service string `json:"service"`
	Spans   []Span `json:"spans"`
}

// handler answers GET /traces, and GET /traces?trace_id=ID with the spans of one trace. Who comes while enough others are
// answered gets 503.
func (t *traces) handler(service string) http.Handler {
	answering := make(chan struct{}, tracesAtOnce)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case answering <- struct{}{}:
			defer func() { <-answering }()
		default:
			http.Error(w, "others are being answered", http.StatusServiceUnavailable)
			return
		}
		wanted := r.URL.Query().Get("trace_id")
		if raw, err := hex.DecodeString(wanted); wanted != "" && (err != nil || len(raw) != 16) {
			http.Error(w, "trace_id is 32 hexadecimal digits", http.StatusBadRequest)
			return
		}
		out := Traces{Service: service, Spans: []Span{}}
		for _, s := range t.ring.newest() {
			if id := s.SpanContext().TraceID().String(); wanted == "" || id == wanted {
				out.Spans = append(out.Spans, show(s))
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out) // the peer may have gone
	})
}

func show(s public) Span {
	out := Span{
		TraceID: s.SpanContext().TraceID().String(), SpanID: s.SpanContext().SpanID().String(),
		Name: s.Name(), Kind: s.SpanKind().String(), Start: s.StartTime(),
		DurationUS: s.EndTime().Sub(s.StartTime()).Microseconds(), Attributes: map[string]string{},
	}
	if s.Parent().IsValid() {
		out.ParentID = s.Parent().SpanID().String()
	}
	for _, a := range s.Attributes() {
		out.Attributes[string(a.Key)] = a.Value.String()
	}
	for _, l := range s.Links() {
		out.Links = append(out.Links, l.SpanContext.TraceID().String()+"/"+l.SpanContext.SpanID().String())
	}
	return out
}
